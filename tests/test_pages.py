"""Pages: every link leads to a file and a heading, and every command line of `chassis` is accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tables import table
from webhook.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for top in ("docs", "designs", "charts") for page in (ROOT / top).rglob("*.md")),
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
PARSER = cli.whole_parser()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> set[str]:
    """The fragments of a page: its headings, as GitHub names them, and explicit ids."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    named = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in plain]
    return {*named, *re.findall(r'id="([^"]+)"', text)}


def broken(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere in this tree."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        if not found.exists() or (fragment and found.suffix == ".md" and fragment not in anchors(found)):
            yield target


@table("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One thing\n[a](b.md) [c](#one-thing) [d](#two) [e](https://x/y) `[f](g.md)`\n")
    assert list(broken(page)) == ["b.md", "#two"]


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / it).resolve() for it in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    families = set((ROOT / "docs" / "rules").glob("*.md")) - {ROOT / "docs" / "rules" / "README.md"}
    servers = set((ROOT / "docs" / "servers").glob("*.md")) - {ROOT / "docs" / "servers" / "README.md"}
    assert set((ROOT / "docs").rglob("*.md")) - families - servers - {index} <= linked


def test_each_question_has_an_answer() -> None:
    rows = re.findall(r"^\| ([^|]+\?) \| (.+) \|$", (ROOT / "docs" / "questions.md").read_text(), re.M)
    assert len(rows) >= 40
    assert len({question for question, _ in rows}) == len(rows)
    assert all("](" in answer for _, answer in rows)


def command_lines(page: Path) -> Iterator[str]:
    """The lines of a page that run `chassis` or its kubectl plugin, without what a shell makes of them.

    They are in consoles, and in tables as the only content of a cell.
    """
    for language, block in FENCE.findall(page.read_text()):
        if language == "console":
            for line in re.findall(r"^\$ ((?:[^\\\n]|\\\n|\\.)*)", block, re.M):
                for part in re.split(r"\||&&|;|<\(", line.replace("\\\n", " ")):
                    command = re.sub(r"\s#.*|\s*[12]?>.*|\)\s*$", "", part.strip())
                    if re.match(r"(?:kubectl )?chassis\b", command):
                        yield command.removeprefix("kubectl ")
    yield from re.findall(r"^\|.*\| `(chassis [^`]+)` \|", page.read_text(), re.M)


SHOWN = [
    pytest.param(command, id=f"{name_of(page)}: {command}")
    for page in PAGES
    for command in command_lines(page)
]


def accepted(command: str) -> bool:
    """Whether the command line names a command, flags and values that exist; runs nothing."""
    try:
        PARSER.parse_args(shlex.split(command)[1:])
    except SystemExit as stopped:  # --help and --version end with 0
        return not stopped.code
    return True


@table("command", SHOWN)
def test_shown_commands_are_accepted(command: str) -> None:
    assert accepted(command)


def test_the_index_has_a_task_for_every_command() -> None:
    named = {command.split()[1] for command in command_lines(ROOT / "docs" / "README.md")}
    assert named == set(cli.COMMANDS)


def test_unknown_flags_are_not_accepted(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("```console\n$ helm template . | chassis review --quick -  # fast\n```\n")
    assert [accepted(command) for command in command_lines(page)] == [False]
    assert len(SHOWN) > 40
