"""Settings and rules that were removed: a policy that names them still loads, with one sentence on each."""

from __future__ import annotations

import pytest
from msgspec import to_builtins

from policies.core import registry
from policies.core.annotations import POLICY_LABEL
from policies.core.facts import Facts
from policies.core.finding import Certainty, Mode
from policies.core.target import Target
from policies.kube.group_kinds import CONFIG_MAP
from webhook.config.load import PolicyError, load, rules, schema

PULLER = registry.mutators()["model-puller"]


@pytest.mark.parametrize("strategy", ["auto", "index", "sequence", "slot", "nonsense"])
def test_a_strategy_has_no_effect_and_is_named(strategy: str) -> None:
    config = load({"worker-names.yaml": f"strategy: {strategy}\nreservation: 62s\n"})
    [note] = config.notes
    assert str(note).startswith("worker-names.yaml: strategy: the setting strategy was removed")
    settings = config.effective({}).settings(registry.mutators()["worker-names"].settings)
    assert to_builtins(settings)["reservation"] == 62


@pytest.mark.parametrize(("program", "mode"), [("kserve-agent", Mode.OFF), ("chassis-puller", Mode.ENFORCE)])
def test_a_program_that_the_flags_would_crash_switches_the_policy_off(program: str, mode: Mode) -> None:
    config = load({"model-puller.yaml": f"program: {program}\nimage: r.example/agent:1\n"})
    assert [note.path for note in config.notes] == ["program"]
    assert config.effective({}).mutator_mode(PULLER) is mode


def test_overrides_are_read_as_well() -> None:
    config = load(
        {
            "webhook.yaml": """
overrides:
- namespaces: [kserve]
  settings: {model-puller: {program: kserve-agent}, worker-names: {strategy: slot}}
"""
        }
    )
    assert [note.path for note in config.notes] == [
        "overrides.0.settings.model-puller.program",
        "overrides.0.settings.worker-names.strategy",
    ]
    assert config.effective({}, "kserve", {}).mutator_mode(PULLER) is Mode.OFF
    assert config.effective({}, "other", {}).mutator_mode(PULLER) is Mode.ENFORCE


def test_a_policy_may_name_a_removed_rule() -> None:
    config = load(
        {
            "rules.yaml": "modes: {device-claim-shared: enforce, drain-blocked-by-pdb: warn}\n",
            "webhook.yaml": """
exemptions:
  forbidden: [device-claim-shared]
overrides:
- namespaces: [ml]
  modes: {device-claim-shared: "off"}
""",
        }
    )
    assert [(note.file, note.path) for note in config.notes] == [
        ("rules.yaml", "modes.device-claim-shared"),
        ("webhook.yaml", "overrides.0.modes.device-claim-shared"),
    ]
    assert {note.message for note in config.notes} == {registry.retired_rules()["device-claim-shared"].note}
    assert dict(config.rules.modes) == {"drain-blocked-by-pdb": Mode.WARN}


def test_no_rule_is_removed_that_exists() -> None:
    assert registry.retired_rules().keys().isdisjoint({*rules(), *registry.mutators()})


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("worker-names.yaml", "[]"),
        ("worker-names.yaml", "strategies: index"),
        ("webhook.yaml", "overrides: 7"),
        ("webhook.yaml", "overrides: [7]"),
        ("webhook.yaml", "overrides: [{settings: 7}]"),
        ("webhook.yaml", "overrides: [{settings: {worker-names: 7}}]"),
        ("webhook.yaml", "overrides: [{settings: {nobody: {strategy: slot}}}]"),
    ],
)
def test_other_errors_stay_errors(file: str, text: str) -> None:
    with pytest.raises(PolicyError):
        load({file: text})


def test_an_edit_is_warned_about_and_not_refused() -> None:
    labels = {POLICY_LABEL: "true"}
    data = {"worker-names.yaml": "strategy: index\n"}
    target = Target({"metadata": {"labels": labels}, "data": data}, CONFIG_MAP, ())
    [finding] = rules()["policy-config-invalid"].check(target, Facts("default"))
    assert finding.certainty is Certainty.UNDECIDED
    assert finding.path == "data[worker-names.yaml]"
    assert "names have numbers that only go up" in finding.message


def test_the_schema_accepts_them_as_deprecated() -> None:
    definitions = schema()["$defs"]
    assert definitions["WorkerNames"]["properties"]["strategy"]["deprecated"] is True
    assert "device-claim-shared" in definitions["RulesConfig"]["properties"]["modes"]["propertyNames"]["enum"]
    assert "type" not in definitions["ModelPuller"]["properties"]["program"]
