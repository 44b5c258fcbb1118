from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from policies.core import registry
from policies.core.pydantic_models import fields_of
from release import docs
from webhook.config.load import PolicyError, load, models, rules, schema


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs.pages()


def test_writes_once_and_then_is_fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--root", str(tmp_path), "--check"]) == 1
    assert docs.main(["--root", str(tmp_path)]) == 0
    assert docs.main(["--root", str(tmp_path), "--check"]) == 0
    (tmp_path / "policies.md").write_text("changed by hand")
    capsys.readouterr()
    assert docs.main(["--root", str(tmp_path), "--check"]) == 1
    assert "policies.md is stale" in capsys.readouterr().err
    assert (tmp_path / "policies.md").read_text() == "changed by hand"


def test_every_rule_has_its_page(pages: dict[str, str]) -> None:
    for rule in rules().values():
        page = pages[f"rules/{rule.id}.md"]
        assert f"\n# {rule.id}\n" in page
        assert f"\n\n{rule.document.what}\n\n" in page
        assert rule.document.good.strip() in page
        assert f"]({rule.id}.md)" in pages["rules/README.md"]


def test_every_policy_has_its_anchor_and_its_key(pages: dict[str, str]) -> None:
    for policy in registry.mutators():
        assert f"\n## {policy}\n" in pages["policies.md"]
        assert f"\n## {policy}.yaml\n" in pages["configuration.md"]


def test_types_of_the_configuration_have_different_names(pages: dict[str, str]) -> None:
    headings = re.findall("^### (.+)$", pages["configuration.md"], re.MULTILINE)
    assert len(set(headings)) == len(headings)


def test_links_inside_a_page_lead_somewhere(pages: dict[str, str]) -> None:
    for name, content in pages.items():
        anchors = {
            re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", content, re.MULTILINE)
        }
        assert set(re.findall(r"\]\(#([^)]+)\)", content)) <= anchors, name


def test_units_and_bounds_are_documented(pages: dict[str, str]) -> None:
    page = pages["configuration.md"]
    assert re.search(r"^\| `minLogRetention` \| duration \| `1d` \|", page, re.MULTILINE)
    assert re.search(r"^\| `loadRate` \| size, > 0 \| `64Mi` \|", page, re.MULTILINE)
    assert re.search(r"^\| `weight` \| whole number, ≥ 1 and ≤ 100 \|", page, re.MULTILINE)


def test_every_field_of_the_configuration_is_described() -> None:
    for key, model in models().items():
        for name, field in fields_of(model).items():
            assert field.description, f"{key}: {name} has no description"


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_every_reference_of_the_schema_resolves() -> None:
    whole = schema()
    references = set(_references(whole))
    assert references
    for reference in references:
        node: Any = whole
        for step in reference.removeprefix("#/").split("/"):
            node = node[step.replace("~1", "/").replace("~0", "~")]
        assert isinstance(node, dict)


@pytest.mark.parametrize(
    ("key", "policy", "problem"),
    [
        ("rules.yaml", {"modes": {"liveness-external-dependency": "warn"}}, None),
        ("rules.yaml", {"modes": {"liveness-external-dependancy": "warn"}}, "liveness-external-dependancy"),
        ("rules.yaml", {"modes": {"standard-probes": "warn"}}, "standard-probes"),
        ("webhook.yaml", {"overrides": [{"namespaces": ["a"], "modes": {"standard-probes": "off"}}]}, None),
        ("webhook.yaml", {"overrides": [{"namespaces": ["a"], "modes": {"probes": "off"}}]}, "probes"),
    ],
)
def test_the_schema_refuses_what_the_webhook_refuses_as_an_unknown_id(
    key: str, policy: dict[str, Any], problem: str | None
) -> None:
    """The chart's schema has the same definitions, so Helm refuses it, too."""
    errors = [error.message for error in Draft202012Validator(schema()).iter_errors({key: policy})]
    if problem is None:
        assert errors == []
        assert load({key: json.dumps(policy)})
    else:
        [message] = errors
        assert f"'{problem}' is not one of" in message
        with pytest.raises(PolicyError, match="there is no such"):
            load({key: json.dumps(policy)})
