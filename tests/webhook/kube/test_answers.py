"""Answers of an API server: one hostile object leaves all others readable."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.kube.json import MAX_LEVELS
from webhook.kube import api
from webhook.kube.api import LEVELS, parse_answer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
OPENED, CLOSED = b'{"a":[' * 4000, b"]}" * 4000


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"\ud83d\ude00 \\ud800 \" \udc00\ud800"', '\U0001f600 \\ud800 " \ufffd\ufffd'),
        (b'"ab\xff\xfe"', "ab\ufffd\ufffd"),
        (b'"{[\xff"', "{[\ufffd"),
    ],
)
def test_text_that_is_none_is_replaced(value: bytes, read: str) -> None:
    assert parse_answer(b'{"items":[{"a":%b},{"b":"\xc3\xa9"}]}' % value) == {
        "items": [{"a": read}, {"b": "é"}]
    }


@pytest.mark.parametrize("levels", [260, 300, 1100, 5000])
def test_what_is_too_deep_is_null(levels: int) -> None:
    deep = b'{"a":[' * (levels // 2) + b'"]"' + b"]}" * (levels // 2)
    read = parse_answer(b'{"items":[{"a":%b,"b":"}"},{"c":1}]}' % deep)
    assert read["items"][1] == {"c": 1}
    assert read["items"][0]["b"] == "}"
    orjson.dumps(read)
    inner, depth = read["items"][0]["a"], 0
    while isinstance(inner, dict | list):
        inner, depth = inner["a"] if isinstance(inner, dict) else inner[0], depth + 1
    assert inner is None
    assert MAX_LEVELS < depth < LEVELS


@given(VALUES)
def test_what_orjson_can_read_is_read_as_it_is(value: object) -> None:
    text = json.dumps(value).encode("ascii")
    assert parse_answer(text) == value
    assert b"".join(api._readable(text)) == text


@pytest.mark.parametrize(
    "text", [b"", b"[", b"{]", b'"\xff', b"\xff", OPENED, OPENED + CLOSED + b"x", CLOSED]
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse_answer(text)
