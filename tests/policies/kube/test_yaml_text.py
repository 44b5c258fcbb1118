"""YAML as the Kubernetes tools read it, and the narrower dialect of policies."""

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from policies.kube.yaml_text import (
    MANIFESTS,
    POLICIES,
    BadDocument,
    Dialect,
    as_documents,
    load_all,
    load_policy,
)
from tests.calls import calls
from tests.tables import table
from webhook.cli.output.yaml import dump

ROOT = Path(__file__).parents[3]


@table(
    ("text", "value"),
    [
        ("mode: 0644", 420),
        ("mode: 0o17", 15),
        ("mode: 0x1F", 31),
        ("mode: 08", "08"),
        ("mode: 1e3", 1000.0),
        ("mode: 22:22", "22:22"),
        ("mode: 2020-01-01", "2020-01-01"),
        ("mode: yes", True),
        ("mode: off", False),
        ('mode: "yes"', "yes"),
        ("mode: n", "n"),
        ("mode:", None),
        ("{mode: [1, null]}", [1, None]),
        ("base: &b {x: 1, y: 2}\nmode: {<<: *b, y: 3}", {"x": 1, "y": 3}),
    ],
)
def test_manifest_values(text: str, value: object) -> None:
    assert next(load_all(text))["mode"] == value


def test_keys_are_text_and_every_document_of_a_stream_is_read() -> None:
    assert list(load_all("1: a\ntrue: b\n---\n---\nb: 2\n")) == [{"1": "a", "true": "b"}, None, {"b": 2}]


BOMB = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n" for before, name in pairwise("abcdefghijklm")
)
"""Eight times as much in every line."""


def nested(inner: str = "", levels: int = 150) -> str:
    return "[" * levels + inner + "]" * levels


@table(
    ("text", "sentence"),
    [
        ("a: 1\na: 2", "line 2: the key 'a' appears twice"),
        ('{"a": 1, "a": 2}', "line 1: the key 'a' appears twice"),
        ("1: a\n'1': b", "line 2: the key '1' appears twice"),
        ("a: .nan", "line 1: .nan isn't a valid JSON number"),
        ("a: 1e999", "line 1: 1e999 isn't a valid JSON number"),
        ("a: [", "line 2: did not find expected node content"),
        ("a:\n\tb: 1", "cannot start any token (a tab; YAML indents with spaces)"),
        (
            "a: b\n{{- if .c }}\nd: 1",
            "line 3: could not find expected ':' (a template must be rendered first)",
        ),
        ("a: {{ .Values.b }}", "line 1: a key must be text (a template must be rendered first)"),
        ("? [1]\n: 2", "line 1: a key must be text"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: !!omap [x: 1]", "line 1: the tag !!omap has no equivalent in JSON"),
        ("a: !!pairs [x: 1]", "line 1: the tag !!pairs has no equivalent in JSON"),
        ("\na: !!binary abc", "line 2: !!binary does not contain UTF-8 text"),
        ("a: !!binary /w==", "line 1: !!binary does not contain UTF-8 text"),
        ("a: !!map [x]", "line 1: the tag declares a mapping, but the value isn't one"),
        ("a: !!bool maybe", "line 1: 'maybe' isn't a boolean"),
        ("a: !!int x", "line 1: 'x' isn't a number"),
        ("a: !!float x", "line 1: 'x' isn't a number"),
        ("a:\n  <<: x", "line 2: a merge key (<<) needs a mapping or a list of them"),
        ("a:\n  <<: [x]", "line 2: a merge key (<<) needs a mapping or a list of them"),
        ("a: {<<: {[x]: 1}}", "line 1: a key must be text"),
        ("a: *x", "line 1: found undefined alias"),
        ("a: &x [*x]", "line 1: the value of x contains itself"),
        ("a: !!str [x]", "line 1: the tag !!str declares another kind of value"),
        ("a: !!seq x", "line 1: the tag !!seq declares another kind of value"),
        ("a: {<<: {y: 1}, [x]: 1}", "line 1: a key must be text"),
        ("a: \x00", "control characters are not allowed"),
        ("a: " + "[" * 3000 + "]" * 3000, "line 1: it is nested too deeply"),
        ("[" * 300 + "]" * 300, "line 1: it is nested too deeply"),
        ("\n".join(" " * depth + "a:" for depth in range(300)), "line 201: it is nested too deeply"),
        ("a: &a [1]\n" + BOMB, "line 8: its aliases expand to too many values"),
        (f"a: &a {nested()}\nb: &b {nested('*a')}\nc: {nested('*b')}", "line 2: it is nested too deeply"),
        (f"a: {{b: &a {nested()}}}\nc: &c [{nested('*a')}]", "line 2: it is nested too deeply"),
        # libyaml's own recursion has no bound: these ended the process.
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 100_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
    ],
)
def test_bad_text_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadDocument) as caught:
        list(load_all(text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551616", 2.0**64),
        ("-99999999999999999999", -1e20),
        ("07777777777777777777777", 7777777777777777777777.0),
        ("0xfffffffffffffffff", "0xfffffffffffffffff"),
    ],
)
@pytest.mark.parametrize("dialect", [MANIFESTS, POLICIES])
def test_a_number_beyond_64_bits_is_what_kubectl_sends(written: str, value: object, dialect: Dialect) -> None:
    assert next(load_all(f"a: {written}", dialect))["a"] == value
    assert orjson.dumps(value)


@pytest.mark.parametrize("written", ["1e1", "10.0", "!!float 10", "+1.0e+1"])
def test_a_whole_number_is_an_integer_as_kubectl_sends_it(written: str) -> None:
    (document,) = load_all(f"periodSeconds: {written}")
    assert type(document["periodSeconds"]) is int


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: off", {"a": "off"}),
        ("a: true", {"a": True}),
        ("a: yes", {"a": "yes"}),
        ("", None),
        ("# x\n", None),
    ],
)
def test_a_policy_has_only_true_and_false(text: str, value: Any) -> None:
    assert load_policy(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!binary aGVsbG8=", "hello"),
        ("!!timestamp 2001-01-01", "2001-01-01"),
        ("!!set {x, y}", {"x": None, "y": None}),
        ("!!int '5'", 5),
        ("!!float 5", 5),
        ("!!bool 'yes'", True),
        ("!!null ''", None),
        ("!!str 5", "5"),
    ],
)
def test_a_tag_gives_a_value_that_json_has(text: str, value: Any) -> None:
    [read] = load_all(f"namespace: {text}")
    assert typed(read) == typed({"namespace": value})
    json.dumps(read)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<<: {b: 1, c: 1}\nb: 2", {"b": 2, "c": 1}),
        ("b: 2\n<<: {b: 1, c: 1}", {"b": 2, "c": 1}),
        ("<<: [{b: 1}, {b: 2, c: 2}]", {"b": 1, "c": 2}),
        ("<<: {b: 1}\n<<: {b: 2, c: 2}", {"b": 2, "c": 2}),
        ("<<: {<<: {b: 1, c: 1}, b: 2}", {"b": 2, "c": 1}),
        (
            "x: &x {b: 1}\ny: {<<: *x}\nz: {<<: *x, c: 1}",
            {"x": {"b": 1}, "y": {"b": 1}, "z": {"b": 1, "c": 1}},
        ),
        ("&x\n<<: *x\nb: 1", {"b": 1}),
    ],
)
def test_merge_keys(text: str, value: Any) -> None:
    assert list(load_all(text)) == [value]


@pytest.mark.parametrize(
    "of",
    [
        lambda size: "".join(f"k{n}: 1\n<<: {{a: 1}}\n" for n in range(size)),
        lambda size: (
            "".join(f"k{n}: 1\n" for n in range(size)) + f"<<: {{{', '.join(f'm{n}' for n in range(size))}}}"
        ),
        lambda size: f"<<: [{', '.join(['{a: 1}'] * size)}]",
    ],
    ids=["equal ones", "different ones", "a list"],
)
def test_merging_takes_linear_time(of: Callable[[int], str]) -> None:
    few, many = (calls(partial(list, load_all(of(size)))) for size in (100, 800))
    assert many < 9 * few


def test_a_policy_has_no_merge_keys() -> None:
    with pytest.raises(BadDocument, match=r"line 2: merge keys \(<<\) aren't supported in a policy"):
        load_policy("a: 1\n<<: {b: 1}")


def test_a_policy_has_no_aliases_and_one_document() -> None:
    with pytest.raises(BadDocument, match="line 2: aliases aren't supported"):
        load_policy("a: &b 1\nc: *b")
    with pytest.raises(BadDocument, match="more than one"):
        load_policy("a: 1\n---\nb: 2")


@table(
    "value",
    [
        *("9e400", "12e4567", "1e3", "0o17", "0x1F", "1_0", ".5", "yes", "~", ""),
        *(1, -7, 1.5, 1e20, 1e-7, True, None),
        *("a: b\nc\n", "#x\n  y", " a\nb", "a \nb", "a\n\n", "\n", "a\r\nb", "-\n"),
    ],
)
def test_written_values_are_read_back_with_their_types(value: object) -> None:
    [read] = load_all(dump({"value": value, "list": [value]}))
    assert typed(read) == typed({"value": value, "list": [value]})


def test_lines_are_written_as_lines() -> None:
    assert "|" in dump({"script": "set -e\nexec server\n"})


def typed(value: Any) -> Any:
    """A value that equals another only if types and the order of keys are the same."""
    if isinstance(value, dict):
        return dict, [(key, typed(each)) for key, each in value.items()]
    if isinstance(value, list):
        return list, [typed(each) for each in value]
    return type(value), value


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": 1}\n{"a": 2}\n', 2),
        ('{\n "a": 1\n}\n\n{"a": 2}', 5),
        ('{"a": 1}{"a": 2}', 2),
    ],
)
def test_json_objects_one_after_the_other_are_documents(text: str, lines: int) -> None:
    documents = as_documents(text)
    assert list(load_all(documents)) == [{"a": 1}, {"a": 2}]
    assert len(documents.splitlines()) == lines


@pytest.mark.parametrize("text", ["", "a: 1", '{"a": 1}\n{"a": ', "{" * 100_000, '{"a": 1}\na: 2'])
def test_other_texts_are_not(text: str) -> None:
    assert as_documents(text) == ""
