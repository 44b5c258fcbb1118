from __future__ import annotations

import pytest

from policies.core import registry
from webhook.cli import explain, terminal
from webhook.config.load import rules
from webhook.errors import UserError


def test_a_rule_is_explained_in_full() -> None:
    for rule in rules().values():
        shown, document = explain.explain(rule.id), rule.document
        flat = " ".join(shown.split())
        for text in (document.what, document.why, document.remediation, document.source):
            assert " ".join(text.split()) in flat
        for example in (document.bad, document.good):
            assert all(f"  {line}".rstrip() in shown for line in example.splitlines())
        assert (f'mlchassis.dev/exempt: "{rule.id}=<reason>"' in shown) is document.exemptable
        prose = shown.partition("\nFlagged")[0]
        assert max(map(len, prose.splitlines())) <= terminal.WIDTH


@pytest.mark.parametrize("policy_id", registry.mutators())
def test_a_policy_is_explained_with_its_settings(policy_id: str) -> None:
    shown = explain.explain(policy_id)
    assert " ".join(registry.documentation(policy_id).split()) in " ".join(shown.split())
    assert all(len(line) <= terminal.WIDTH or "https://" in line for line in shown.splitlines())
    assert f"(key {policy_id}.yaml)" in shown
    assert "  mode  (mode)\n      enforce, warn, audit or off" in shown


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("drain-blocked-by-pbd", "did you mean drain-blocked-by-pdb"),
        ("gpu", "did you mean gpu-affinity or "),
        ("kind", "did you mean kinds"),
        ("zzz", "lists them all, and `chassis explain kinds` the kinds"),
    ],
)
def test_an_unknown_name_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        explain.explain(name)


def test_a_unique_part_of_a_name_is_enough() -> None:
    assert explain.explain("probes") == explain.explain("standard-probes")


def test_the_overview_names_everything() -> None:
    shown = explain.overview()
    for name in (*rules(), *registry.mutators()):
        assert f"  {name}" in shown.splitlines() or f"  {name}  (" in shown


def test_modes_in_words() -> None:
    known = rules()
    assert explain.modes(known["init-waits-on-own-service"]) == "enforce / enforce"
    assert explain.modes(known["rollout-volume-deadlock"]) == "enforce or warn / enforce or warn"
    assert explain.modes(known["root-user-refused"]) == "warn / enforce"


def test_a_setting_is_explained_with_its_type_and_its_default() -> None:
    text = explain.explain("gpu-affinity")
    assert "  weight  (whole number, ≥ 1 and ≤ 100; default 100)\n" in text
    assert "  pools  (list of Pool)\n" in text
    assert "](#" not in text
