"""The pictures of the architecture are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from release import pictures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


def arrows(picture: str, arrow: str) -> set[tuple[str, str]]:
    return set(re.findall(rf"^ +([\w.]+) {arrow} ([\w.]+)$", picture, re.MULTILINE))


def test_the_page_shows_them_and_a_change_by_hand_is_undone() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```mermaid") == 2
    assert pictures.with_pictures(text) == text
    assert pictures.with_pictures(text.replace("webhook.cli --> webhook.server", "")) == text


def test_the_arrows_of_the_rooms_lead_to_what_each_imports_and_nowhere_else() -> None:
    imports = pictures.imported()
    drawn: dict[str, set[str]] = {}
    for one, other in arrows(pictures.rooms(), "-->"):
        drawn.setdefault(one, set()).add(other)
    for name, others in imports.items():
        root = name.partition(".")[0]
        inside = {other for other in others if other.startswith(f"{root}.")}
        if name != root:
            assert drawn.get(name, set()) <= inside, name
            assert inside <= pictures._reachable(name, drawn), name


def test_every_step_of_the_way_is_taken() -> None:
    found = {
        step for endpoint, obj in pictures.REVIEWED.items() for _, step in pictures.traced(endpoint, obj)
    }
    assert found == set(pictures.STEPS)
