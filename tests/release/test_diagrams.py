"""The diagrams of the architecture are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from release import diagrams

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


def arrows(diagram: str, arrow: str) -> set[tuple[str, str]]:
    return set(re.findall(rf"^ +([\w.]+) {arrow} ([\w.]+)$", diagram, re.MULTILINE))


def test_the_page_has_the_generated_diagrams() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```mermaid") == 2
    assert diagrams.with_diagrams(text) == text
    assert diagrams.with_diagrams(text.replace("webhook.cli --> webhook.server", "")) == text


def test_the_arrows_between_packages_are_their_imports() -> None:
    imports = diagrams.imported()
    drawn: dict[str, set[str]] = {}
    for one, other in arrows(diagrams.packages(), "-->"):
        drawn.setdefault(one, set()).add(other)
    for name, others in imports.items():
        root = name.partition(".")[0]
        inside = {other for other in others if other.startswith(f"{root}.")}
        if name != root:
            assert drawn.get(name, set()) <= inside, name
            assert inside <= diagrams._reachable(name, drawn), name


def test_every_step_is_traced() -> None:
    found = {
        step for endpoint, obj in diagrams.REVIEWED.items() for _, step in diagrams.traced(endpoint, obj)
    }
    assert found == set(diagrams.STEPS)
