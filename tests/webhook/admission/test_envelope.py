"""The envelope: refused bodies with their sentences, and the form of an answer."""

import base64
import json
import textwrap
import unicodedata
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.kube.group_kinds import GroupKind
from tests.tables import table
from webhook.admission import envelope as review
from webhook.admission.answer import Response, allowed, denied, patched, render
from webhook.admission.envelope import BadReview, parse
from webhook.admission.wrapping import WIDTH, fitted


def body(**changes: Any) -> bytes:
    request: dict[str, Any] = {
        "uid": "u-1",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "operation": "CREATE",
        "namespace": "ml",
        "object": {"apiVersion": "apps/v1", "kind": "Deployment"},
        "userInfo": {"username": "ann"},
    } | changes
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def test_a_request_is_read() -> None:
    request = parse(body(dryRun=True, name="api"))
    assert request.uid == "u-1"
    assert request.kind == GroupKind("apps", "Deployment")
    assert (request.namespace, request.name, request.resource) == ("ml", "api", "deployments")
    assert request.object == {"apiVersion": "apps/v1", "kind": "Deployment"}
    assert request.old_object is None
    assert request.dry_run is True
    assert request.username == "ann"


def test_a_delete_has_no_object() -> None:
    request = parse(body(operation="DELETE", object=None, oldObject={"kind": "Deployment"}))
    assert request.object is None
    assert request.old_object == {"kind": "Deployment"}


@table(
    ("bad", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": -Infinity}', "not JSON"),
        (b'{"a": 1e999}', "not JSON"),
        (b"\0", "not JSON"),
        (b"\xef\xbb\xbf" + body(), "not JSON"),
        (rb'{"a": "\ud800"}', "not JSON"),
        (b"[" * 5000 + b"]" * 5000, "not JSON"),
        (b"[" * 900 + b"]" * 900, "nested too deeply"),
        (b"[]", "not an AdmissionReview"),
        (b"null", "not an AdmissionReview"),
        (b'{"kind": "Pod"}', "not an AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', "must be of version"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "has no request"),
        (body(uid=""), "has no uid"),
        (body(uid=7), "has no uid"),
        (body(operation="PATCH"), "operation must be"),
        (body(kind=None), "has no kind"),
        (body(object=None), "object must be an object"),
        (body(object=[1]), "object must be an object"),
        (body(operation="UPDATE"), "oldObject must be an object"),
        (b'{"kind": "AdmissionReview", "kind": "AdmissionReview"}', "key 'kind' twice"),
        (b'{"a": {"b": 1, "b" : 2}}', "key 'b' twice"),
        (rb'{"a": 1, "a": "\u003a"}', "key 'a' twice"),
        (rb'{"a": 1, "\u0061": 2}', "key 'a' twice"),
    ],
)
def test_a_bad_review_gets_one_sentence(bad: bytes, sentence: str) -> None:
    with pytest.raises(BadReview) as caught:
        parse(bad)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_colons_and_huge_numbers_are_no_trouble() -> None:
    annotations = {"a:b": "c:d", "url": "http://x:1", "esc": '":":'}
    request = parse(body(object={"metadata": {"annotations": annotations}}))
    assert request.object == {"metadata": {"annotations": annotations}}
    huge = body().replace(b'"ml"', b'"ml", "x": ' + b"9" * 40)
    assert parse(huge).namespace == "ml"
    pretty = json.dumps(orjson.loads(body()), indent=4).encode()
    assert parse(pretty) == parse(body())


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_nothing_but_bad_review_is_raised(garbage: bytes) -> None:
    with pytest.raises(BadReview):
        parse(garbage)


def answer(response: Response) -> dict[str, Any]:
    rendered = orjson.loads(render("u-1", response))
    assert rendered["apiVersion"] == "admission.k8s.io/v1"
    assert rendered["kind"] == "AdmissionReview"
    assert rendered["response"].pop("uid") == "u-1"
    result: dict[str, Any] = rendered["response"]
    return result


def test_an_allowed_answer_has_no_other_fields() -> None:
    assert answer(allowed()) == {"allowed": True}


def test_patch_and_its_type_come_together() -> None:
    operations = [{"op": "add", "path": "/a", "value": 1}]
    got = answer(patched(operations, ["w"], {"mutations": "[]"}))
    assert orjson.loads(base64.b64decode(got.pop("patch"))) == operations
    assert got == {
        "allowed": True,
        "patchType": "JSONPatch",
        "warnings": ["w"],
        "auditAnnotations": {"mutations": "[]"},
    }


def test_a_denial_carries_no_patch() -> None:
    assert answer(denied("no", code=409, reason="AlreadyExists")) == {
        "allowed": False,
        "status": {"status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "no"},
    }


def test_warnings_are_wrapped_for_a_terminal_with_80_columns() -> None:
    lines = fitted(["word " * 40, "word " * 40, "short\nand\tplain"])
    assert all(len(f"Warning: {line}") <= 80 for line in lines)
    assert lines[-1] == "short and plain"
    assert [line.startswith("  ") for line in lines] == [False, True, True, False]


def test_a_field_path_is_not_broken() -> None:
    path = f"({'spec.workerGroupSpecs[0].template.' * 3}spec)"
    assert fitted([f"rule: a short sentence. {path}"]) == ["rule: a short sentence.", f"  {path}"]


def test_a_warning_with_control_characters_is_not_lost() -> None:
    """The API server drops such a warning without a word."""
    assert fitted(["curl \x1b[31m\x00 and \x7f\x9b"]) == [r"curl \x1b[31m\x00 and \x7f\x9b"]


def test_warnings_that_no_one_will_read_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[int] = []

    def wrap(text: str, *args: Any, **options: Any) -> list[str]:
        wrapped.append(len(text))
        return textwrap_wrap(text, *args, **options)

    textwrap_wrap = textwrap.wrap
    monkeypatch.setattr(textwrap, "wrap", wrap)
    assert fitted([f"{n} " + "x" * 100_000 for n in range(10_000)]) == ["and 10000 more: chassis review"]
    assert sum(wrapped) <= 4097
    assert len(fitted([f"no rule {n}" for n in range(10_000)])) < 500
    assert len(wrapped) < 500


def test_no_line_is_repeated_since_the_api_server_would_drop_it() -> None:
    tail = (
        "starts a process and gives it 1 s: on a busy node that passes before the process runs, and the " * 2
    )
    warnings = [f"exec-probe: The liveness probe of container c{n} {tail}(containers[{n}])" for n in range(5)]
    warnings += [f"{tail}(containers[{n}])" for n in range(3)]
    lines = fitted(warnings)
    assert len(set(lines)) == len(lines)
    assert " ".join(line.strip() for line in lines) == " ".join(" ".join(warnings).split())


def test_too_many_warnings_end_with_a_count() -> None:
    lines = fitted([f"warning {n}: " + "x" * 100 for n in range(60)])
    assert sum(map(len, lines)) <= 4096
    shown = sum(line.startswith("warning ") for line in lines)
    assert lines[-1] == f"and {60 - shown} more: chassis review"


@given(st.lists(st.text(max_size=400), max_size=60))
def test_warnings_always_fit(warnings: list[str]) -> None:
    lines = fitted(warnings)
    assert all(len(line) <= 120 for line in lines)
    assert sum(map(len, lines)) <= 4096
    assert not any(unicodedata.category(char) == "Cc" for line in lines for char in line)


WORDS = st.lists(st.text("ab-—é.�", min_size=1, max_size=65), max_size=40)


@given(WORDS)
def test_lines_are_filled_as_textwrap_fills_them(words: list[str]) -> None:
    indented = {"subsequent_indent": "  ", "break_on_hyphens": False}
    lines = textwrap.wrap(" ".join(words), WIDTH, **indented)  # type: ignore[arg-type]
    assert fitted([" ".join(words)]) == lines


# --- how many values ------------------------------------------------------------------------------------

TEXTS = st.text('a,[{"\\:}]', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


def count(value: Any) -> int:
    """The text after a comma or an opening bracket: all values but the first, and empty ones."""
    if isinstance(value, dict):
        return 1 + max(len(value) - 1, 0) + sum(map(count, value.values()))
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(count, value))
    return 0


@given(VALUES, st.booleans())
@settings(deadline=None)
def test_values_are_counted_as_they_are_made(value: Any, spaced: bool) -> None:
    """Neither does text count, nor can text hide a value."""
    separators = (", ", ": ") if spaced else (",", ":")
    body = json.dumps(value, separators=separators).encode()
    with pytest.MonkeyPatch.context() as patch:
        for most in (count(value) - 1, count(value)):
            patch.setattr(review, "MAX_VALUES", most)
            assert review.too_many_values(body) is (count(value) > most)
