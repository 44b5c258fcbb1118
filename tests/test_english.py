"""The prose of the tree keeps to plain English, as far as counting can show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import english

pytestmark = pytest.mark.lint

LIMIT = 40
"""Marked constructions per 10,000 words."""
READERS_LIMIT = 15
"""The same, for the texts that users read first."""
STRICT = {"docs", "README.md"}


def test_every_folder_keeps_its_limit() -> None:
    found = english.tallies()
    limits = {name: READERS_LIMIT if name in STRICT else LIMIT for name in found}
    over = {
        name: f"{tally.rate:.0f} per 10,000 words, limit {limits[name]}"
        for name, tally in found.items()
        if tally.rate > limits[name] and tally.markers > 2
    }
    assert not over, "`python -m tests.english FOLDER` lists the places"


@pytest.mark.parametrize(
    ("prose", "found"),
    [
        ("The webhook injects probes.", []),
        ("It is measured beside the peer, and anew.", ["beside", "anew"]),
        ("the option --beside", ["beside"]),
        ("`beside` is code, and https://host/alone is an address", []),
        ("leave it alone, but not this alone", ["alone"]),
        ("what is not known is passed over", ["what is"]),
        ("It shows what you wrote.", []),
        ("Nothing tells how much it loads.", ["Nothing", "tells"]),
        ("The command prints nothing.", []),
        ("a stand-in stands there", ["stands"]),
        ("a Lease of its\nown", []),
    ],
)
def test_constructions_are_found(tmp_path: Path, prose: str, found: list[str]) -> None:
    text = english.Text(tmp_path, 1, english.code_free(prose))
    assert [marker for _, marker in text.markers()] == found


def prose_of(path: Path, content: str) -> str:
    path.write_text(content)
    return "\n".join(text.words for text in english.texts(path))


def test_only_prose_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(english, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "a").mkdir()
    markdown = prose_of(tmp_path / "a" / "a.md", "one\n```sh\ntwo\n```\nthree `four`\n")
    assert "one" in markdown
    assert "three" in markdown
    assert "two" not in markdown
    assert "four" not in markdown
    module = '"""A docstring."""\nbeside = "a message"\nother = "key"  # a comment\n'
    assert prose_of(tmp_path / "a" / "a.py", module).splitlines() == [
        '"""A docstring."""',
        '"a message"',
        "# a comment",
    ]
    test = '"""A docstring."""\ndef test_it_stands():\n    data = "some data"  # a comment\n'
    assert prose_of(tmp_path / "tests" / "a.py", test).splitlines() == [
        '"""A docstring."""',
        "test it stands",
        "# a comment",
    ]
    assert prose_of(tmp_path / "a" / "a.png", "anew") == ""


def test_a_place_has_the_line_of_its_construction(tmp_path: Path) -> None:
    text = english.Text(tmp_path, 7, "one\ntwo beside\n")
    assert list(text.markers()) == [(8, "beside")]
