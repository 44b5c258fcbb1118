"""An anchor may be defined again: an alias means the last definition before it."""

from __future__ import annotations

import pytest
import yaml

from policies.kube.yaml_text import load_all
from webhook.manifests.files import parse

AGAIN = """\
apiVersion: v1
kind: Service
metadata: {name: api, labels: &l {app: api}}
spec:
  selector: *l
  ports: &p [{port: 80, name: "&l is no anchor"}]
  externalIPs: &l [10.0.0.1]
status: {conditions: *p, loadBalancer: {ingress: *l}}
"""


def test_an_alias_means_the_last_definition_before_it() -> None:
    [document] = parse("api.yaml", AGAIN)
    assert document.obj["spec"]["selector"] == {"app": "api"}
    assert document.obj["spec"]["ports"] == [{"port": 80, "name": "&l is no anchor"}]
    assert document.obj["status"] == {
        "conditions": document.obj["spec"]["ports"],
        "loadBalancer": {"ingress": ["10.0.0.1"]},
    }
    lines = document.lines("status.loadBalancer")
    assert lines is not None
    assert lines.first == 8


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: &x 1\nb: &x 2\nc: &x 3\nd: *x\n", [{"a": 1, "b": 2, "c": 3, "d": 3}]),
        ("a: &a 1\nb: &b 2\nc: &a 3\nd: [*a, *b]\n", [{"a": 1, "b": 2, "c": 3, "d": [3, 2]}]),
        ("a: !!str &long 1\nb: !!str &long 2\nc: *long\n", [{"a": "1", "b": "2", "c": "2"}]),
        ("ä: &ü ß\nö: &ü é\nc: *ü\n", None),
        ("a: &x 1\n---\na: &x 2\nb: *x\n", [{"a": 1}, {"a": 2, "b": 2}]),
        ("a: &x {k: 1}\nb: &x {k: 2}\nc: {<<: *x}\n", [{"a": {"k": 1}, "b": {"k": 2}, "c": {"k": 2}}]),
    ],
)
def test_documents(text: str, values: list[object] | None) -> None:
    if values is None:  # letters of other alphabets are no anchors for libyaml
        with pytest.raises(ValueError, match="line 1"):
            list(load_all(text))
    else:
        assert list(load_all(text)) == values


def test_a_plain_loader_still_refuses_it() -> None:
    """If PyYAML accepts it one day, `positions` can take its nodes."""
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(AGAIN)
