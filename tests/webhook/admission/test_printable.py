from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import table
from webhook.admission.printable import printable, printable_json, printable_lines

EFFECTS = (
    "\x00\x07\x08\n\v\f\r\x1b\x7f\x80\x85\x9b\xad"
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"
)
ANY = st.text(st.one_of(st.characters(), st.sampled_from(f"{EFFECTS}:#[]\ud800\udcff\U000e0041")))


@table("character", EFFECTS)
def test_a_character_with_an_effect_is_written_as_its_escape(character: str) -> None:
    shown = printable(f"a{character}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert json.loads('"' + shown.replace("\\x", "\\u00") + '"') == f"a{character}b"


@pytest.mark.parametrize(
    "text", ["", "a b", "a\tb", "ß 模型 مدل नमस्ते", "👩\u200d🔬", "a\u00a0b", "[::1]:80 ::1", "# #1"]
)
def test_everything_else_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error file=a::b", "\\x3a:error file=a::b"),
        (" \t::add-mask::b", " \t\\x3a:add-mask::b"),
        ("a ##[group]b", "a \\x23#[group]b"),
        ("##vso[task.setvariable]b", "\\x23#vso[task.setvariable]b"),
        ("####[x]", "##\\x23#[x]"),
    ],
)
def test_a_command_to_a_ci_system_is_none(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANY)
@example("\u00a0::error::x")
@example("\x1c::error::x")
def test_the_line_of_any_text_has_no_effect(text: str) -> None:
    shown = printable(text)
    assert shown.split("\n") == [shown]
    shown.encode()
    for character in shown:
        assert character in "\t\u200c\u200d" or unicodedata.category(character) not in (
            "Cc",
            "Cf",
            "Cs",
            "Zl",
            "Zp",
        )
    assert not (shown.lstrip().startswith("::") and "::" in shown.lstrip()[2:])
    assert "##[" not in shown
    assert printable(shown) == shown


@given(ANY)
def test_lines_stay_lines(text: str) -> None:
    assert printable_lines(text).split("\n") == [printable(line) for line in text.split("\n")]


@given(
    st.text(
        st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("#[\x9b\u202e\u2028\U000e0041"))
    )
)
def test_json_is_another_spelling_of_the_same(text: str) -> None:
    rendered = printable_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(rendered) == [text]
    assert "##[" not in rendered
    assert not set(rendered) & set("\x7f\x9b\u202e\u2028\U000e0041")
