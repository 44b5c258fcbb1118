"""The text of a manifest is printed, never obeyed: by a terminal, a CI system, or a parser of the output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.kube.json import Json
from policies.kube.yaml_text import load_all
from tests.manifests import manifest as built
from tests.webhook.cli.scanned import Chassis
from webhook.admission.printable import printable_lines
from webhook.cli.output.yaml import dump, dump_flow

_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(
            "\n\r\t #:-'\"|>&*!%@`{}[],?\\~=<\x00\x1b\x7f\x85\x9b\xa0\ufeff\u2028\u2029\u202e\U000e0041"
        ),
    ),
    max_size=40,
)
_WORDS = st.lists(
    st.sampled_from(
        ["::error file=x::y", "##[group]z", "a", "\n", " ", "w" * 50, "#", "---", "yes", "\u202e"]
    )
).map(" ".join)
_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        _TEXT,
        _WORDS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXT, inner, max_size=4)),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(_TEXT, _VALUES, min_size=1, max_size=4)


@given(_OBJECTS)
@example({"a": "x\n::error::y"})
@example({"a": f"{'w ' * 70}::error::y"})
@example({"::a::": {"##[b]": ["::c::"]}})
@example({"k" * 200: "v", "a\nb": "c", "\n": "\n\n"})
@example({"a": 1e16, "b": "1e3", "c": "0x1f", "d": "12e4567", "e": "off", "f": "~", "g": "<<", "h": "="})
def test_yaml_is_read_as_the_object_that_was_written(obj: Json) -> None:
    rendered = dump(obj)
    assert list(load_all(rendered)) == [obj]
    assert printable_lines(rendered) == rendered
    flow = dump_flow(obj)
    assert "\n" not in flow
    assert list(load_all(f"[{flow}]")) == [[obj]]


HOSTILE = "x\n---\nkind: Evil\n# \x1b[2J\u202e\u2028::error file=a::b \x9b1A##[warning]c"


def pod(name: str, **fields: Any) -> Json:
    probe = {"exec": {"command": ["curl", f"http://pay/{name}"]}}
    container: Json = {
        "name": name,
        "image": f"vllm/vllm-openai:{name}",
        "args": [name],
        "livenessProbe": probe,
    }
    container["ports"] = [{"containerPort": 80}]
    metadata: Json = {"namespace": name, "labels": {name: name}, "annotations": {name: name}}
    return built("Pod", name, {"containers": [container]}, **metadata) | fields


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    exempt = pod("exempted")
    exempt["metadata"]["annotations"]["mlchassis.dev/exempt"] = f"liveness-external-dependency={HOSTILE}"
    objects = [
        pod(HOSTILE),
        pod(f"{HOSTILE} 2", kind=HOSTILE),
        pod("good", apiVersion=HOSTILE),
        exempt,
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [{"apiVersion": "v1", "kind": "Pod", HOSTILE: HOSTILE}],
        },
    ]
    path = tmp_path / "\x1b[31m.json"
    path.write_text("\n---\n".join(json.dumps(each) for each in objects))
    return path


def _check(printed: str) -> None:
    for line in printed.split("\n"):
        assert printable_lines(line) == line
        assert not line.startswith(("kind: Evil", "---\\"))


@pytest.mark.parametrize("colour", ["", "1"])
@pytest.mark.parametrize("output", ["text", "diff", "yaml", "json", "sarif", "junit", "html"])
def test_no_output_of_a_review_obeys_a_name(
    manifest: Path,
    chassis: Chassis,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    colour: str,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colour)
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = chassis("review", "-o", output, manifest)
    assert "Evil" in printed.out
    _check(re.sub(r"\x1b\[\d+(;\d+)*m", "", printed.out))
    _check(printed.err)


def test_the_yaml_of_a_review_holds_the_objects_and_no_other(manifest: Path, chassis: Chassis) -> None:
    reviews = chassis("review", "-o", "json", manifest).json
    wanted = [each["object"] for each in reviews if each["allowed"]]
    rendered = chassis("review", "-o", "yaml", manifest).out
    found = [each for each in load_all(rendered) if each is not None]
    assert found == wanted
    assert len(found) >= 2


@pytest.mark.parametrize(
    "argv",
    [
        "why -f",
        "why -o json -f",
        "exemptions",
        "exemptions -o json",
        "policy diff built-in {strict}",
        "policy diff -o json built-in {strict}",
        "fix --diff",
        "fix --dry-run",
    ],
)
def test_no_other_command_obeys_a_name(manifest: Path, tmp_path: Path, chassis: Chassis, argv: str) -> None:
    strict = tmp_path / "strict"
    strict.mkdir()
    (strict / "rules.yaml").write_text("profile: strict\n")
    as_yaml = tmp_path / "\x1b[31m.yaml"
    objects = [dump(each) for each in load_all(manifest.read_text())]
    as_yaml.write_text("---\n".join(objects))
    printed = chassis(*argv.format(strict=strict).split(), as_yaml)
    assert printed.out + printed.err
    _check(printed.out)
    _check(printed.err)


def test_a_name_is_no_link_in_a_message_of_sarif(tmp_path: Path, chassis: Chassis) -> None:
    """Such a message is read for links, `[text](target)`: SARIF 2.1.0, 3.11.6."""
    link = "[the fix](https://evil.example)"
    probe = {"exec": {"command": ["curl", "-f", f"http://{link}/"]}, "timeoutSeconds": 5}
    obj = pod("p")
    obj["spec"]["containers"] += [{"name": link, "image": link, "livenessProbe": probe, "command": [link]}]
    (tmp_path / "pod.json").write_text(json.dumps(obj))
    (run,) = chassis("review", "-o", "sarif", tmp_path).json["runs"]
    messages = [result["message"]["text"] for result in run["results"]]
    assert any("the fix" in text for text in messages)
    assert not any("](" in text.replace("\\](", "") for text in messages)
