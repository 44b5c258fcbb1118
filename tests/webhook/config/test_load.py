"""The policy: whole or not at all, errors with paths, and the policy in force for an object."""

import base64
import difflib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from policies.core import registry
from policies.core.facts import Facts
from policies.core.finding import Certainty, Mode, Profile
from policies.core.pydantic_models import validated
from policies.core.settings import MAX_PROBLEMS, Thresholds, default_settings
from policies.core.target import Target
from policies.kube.group_kinds import CONFIG_MAP
from tests.tables import table
from webhook.admission.configuration import Config, Problem
from webhook.config.config_maps import keys
from webhook.config.load import PolicyError, load, models, own_rules, problems_of, rules, schema
from webhook.config.location import read_files
from webhook.config.source import read_directory

RULE = "drain-blocked-by-pdb"
GUARD = "policy-config-invalid"
POLICY = "worker-names"


def problems(files: dict[str, str]) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load(files)
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_policy_means_the_defaults() -> None:
    for files in ({}, {"rules.yaml": ""}, {"rules.yaml": "# nothing\n", "webhook.yaml": "{}"}):
        config = load(files)
        assert config.rules.profile is Profile.STANDARD
        assert config.webhook.on_error == "allow"
        assert config.webhook.namespaces.covers("ml")
        assert not config.webhook.namespaces.covers("kube-system")


@pytest.mark.parametrize("key", sorted(models()))
def test_defaults_are_those_of_an_empty_file(key: str) -> None:
    model = models()[key]
    default = default_settings(model)
    assert default == model() == validated(model, {})
    assert default.given == validated(model, {}).given == frozenset()


def test_rules_find_the_thresholds_in_any_policy() -> None:
    assert Config().effective({}).settings(Thresholds) == Thresholds()
    files = {"rules.yaml": "thresholds: {endlessSidecars: [tunnel]}"}
    assert load(files).effective({}).settings(Thresholds).endless_sidecars == ("tunnel",)


def test_every_policy_has_its_key_and_is_in_the_schema() -> None:
    expected = {f"{name}.yaml" for name in registry.mutators()} | {"rules.yaml", "webhook.yaml"}
    assert set(models()) == expected
    assert set(schema()["properties"]) == expected
    assert all(definition.get("additionalProperties") is False for definition in _models(schema()))


def _models(found: Any) -> list[dict[str, Any]]:
    """Every schema of a model in a JSON Schema."""
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    own = [found] if isinstance(found, dict) and isinstance(found.get("properties"), dict) else []
    return own + [definition for value in inner for definition in _models(value)]


@table(
    ("files", "said"),
    [
        ({"rule.yaml": ""}, "rule.yaml: unknown key; did you mean rules.yaml?"),
        ({"rules.yaml": "profil: strict"}, "rules.yaml: profil: unknown field; did you mean profile?"),
        ({"rules.yaml": "overrides: []"}, "overrides: unknown field; it is a field of webhook.yaml"),
        (
            {"rules.yaml": f"modes: {{{POLICY}: off}}"},
            f"the mode of this policy is the field mode of {POLICY}.yaml",
        ),
        (
            {"webhook.yaml": "changes: {warning: false}"},
            "changes.warning: unknown field; did you mean warnings?",
        ),
        (
            {"webhook.yaml": "overrides: [{namespace: [a]}]"},
            "overrides.0.namespace: unknown field; did you mean namespaces?",
        ),
        (
            {"standard-probes.yaml": "presets: {x: {prot: 1}}"},
            "presets.x.prot: unknown field; did you mean port?",
        ),
        ({"webhook.yaml": "overrides: [{namespaces: a}]"}, "namespaces: a list is expected, such as [a, b]"),
        ({"webhook.yaml": "exemptions: []"}, "webhook.yaml: exemptions: a map of fields is expected"),
        ({"webhook.yaml": "fastPath: yes"}, "webhook.yaml: fastPath: true or false is expected"),
        ({"gpu-affinity.yaml": "pools: [{name: x}]"}, "pools.0.accelerators: this field is required"),
        ({"rules.yaml": "profile: stern"}, "rules.yaml: profile: input should be"),
        ({"rules.yaml": "modes: {drain-blocked-by-pdc: off}"}, f"did you mean {RULE}?"),
        ({"rules.yaml": f"modes: {{{RULE}: no}}"}, f"rules.yaml: modes.{RULE}: input should be"),
        ({"rules.yaml": f"modes: {{{RULE}: off, {RULE}: warn}}"}, "appears twice"),
        ({"rules.yaml": "- a"}, "rules.yaml: "),
        (
            {"rules.yaml": "a:" + "\n- b" * 100_000, "webhook.yaml": ""},
            "rules.yaml: the policy is larger than 256 KiB",
        ),
        ({"rules.yaml": "a: ["}, "rules.yaml: line "),
        ({"webhook.yaml": "onError: maybe"}, "webhook.yaml: onError: input should be 'allow' or 'deny'"),
        ({"webhook.yaml": "namespaces: {include: ml}"}, "webhook.yaml: namespaces.include: "),
        (
            {"webhook.yaml": "exemptions: {forbidden: [drain-blocked-by-pdc]}"},
            f"exemptions.forbidden: drain-blocked-by-pdc isn't a rule or policy; did you mean {RULE}?",
        ),
        ({"webhook.yaml": "exemptions: {onlyIn: {nope-*: [ml]}}"}, "exemptions.onlyIn: nope-* isn't a rule"),
        ({"webhook.yaml": "overrides: [{modes: {nope: off}}]"}, "webhook.yaml: overrides.0.modes.nope: "),
        ({"webhook.yaml": "overrides: [{settings: {nope: {}}}]"}, "overrides.0.settings.nope: there is no"),
        (
            {"webhook.yaml": f"overrides: [{{settings: {{{POLICY}: {{colour: red}}}}}}]"},
            f"overrides.0.settings.{POLICY}.colour: unknown field",
        ),
        ({"webhook.yaml": f"a: 1{'0' * 30}\nb: 0x1{'0' * 30}"}, "webhook.yaml: a: unknown field"),
        ({f"{POLICY}.yaml": "mode: on"}, f"{POLICY}.yaml: mode: input should be"),
    ],
)
def test_an_error_has_its_path(files: dict[str, str], said: str) -> None:
    assert any(said in problem for problem in problems(files)), problems(files)


def test_all_problems_are_reported_at_once() -> None:
    found = problems({"rules.yaml": "profile: stern\nx: 1", "webhook.yaml": "onError: 5", "a.yaml": ""})
    assert len(found) == 4
    assert str(Problem("f", "", "m")) == "f: m"


def effective(files: dict[str, str], **arguments: Any) -> Any:
    return load(files).effective(arguments.pop("obj", {}), **arguments)


def rule_mode(files: dict[str, str], certainty: Certainty = Certainty.CERTAIN, **arguments: Any) -> Mode:
    mode: Mode = effective(files, **arguments).rule_mode(rules()[RULE], certainty)
    return mode


def policy_mode(files: dict[str, str], **arguments: Any) -> Mode:
    mode: Mode = effective(files, **arguments).mutator_mode(registry.mutators()[POLICY])
    return mode


def test_a_thousand_unknown_names_are_not_all_compared_with_every_name_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    real = difflib.get_close_matches

    def count(name: str, known: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(name)
        return real(name, known, n=n, cutoff=cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", count)
    modes = "".join(f"  no-such-rule-{n}: warn\n" for n in range(1000))
    settings = "".join(f"    no-such-policy-{n}: {{}}\n" for n in range(1000))
    files = {
        "rules.yaml": f"modes:\n{modes}",
        "webhook.yaml": f"overrides:\n- namespaces: [a]\n  settings:\n{settings}",
        **{f"no-such-key-{n}.yaml": "" for n in range(1000)},
    }
    for chosen in (list(files), ["rules.yaml", "webhook.yaml"], ["rules.yaml"], ["webhook.yaml"]):
        some = {key: files[key] for key in chosen}
        compared.clear()
        problems, _ = problems_of(some)
        assert len(problems) == MAX_PROBLEMS
        assert len(compared) <= 2 * MAX_PROBLEMS


def test_the_rule_that_guards_the_policy_refuses_under_every_profile() -> None:
    guard = rules()[GUARD]
    for profile in Profile:
        assert load({"rules.yaml": f"profile: {profile}\n"}).effective({}).rule_mode(guard) is Mode.ENFORCE
    off = load({"rules.yaml": f"modes: {{{GUARD}: off}}\n"}).effective({})
    assert off.rule_mode(guard) is Mode.OFF, "whoever says so has said so"


def test_a_profile_sets_every_mode_and_explicit_modes_win() -> None:
    observe = {"rules.yaml": "profile: observe"}
    assert rule_mode(observe) is Mode.AUDIT
    assert policy_mode(observe) is Mode.AUDIT
    explicit = {"rules.yaml": f"profile: observe\nmodes: {{{RULE}: warn}}", f"{POLICY}.yaml": "mode: off"}
    assert rule_mode(explicit) is Mode.WARN
    assert policy_mode(explicit) is Mode.OFF
    assert policy_mode({}) is Mode.ENFORCE


def test_what_cannot_be_decided_never_denies() -> None:
    strict = {"rules.yaml": f"profile: strict\nmodes: {{{RULE}: enforce}}"}
    assert rule_mode(strict, Certainty.UNDECIDED) is Mode.WARN


OVERRIDES = f"""
overrides:
- namespaces: [dev-*]
  profile: observe
- namespaces: [dev-core]
  modes: {{{RULE}: warn, {POLICY}: warn}}
- objectSelector: {{matchLabels: {{tier: gold}}}}
  modes: {{{RULE}: enforce}}
- namespaceSelector: {{matchExpressions: [{{key: team, operator: In, values: [vision]}}]}}
  modes: {{{RULE}: off}}
"""


@pytest.mark.parametrize(
    ("namespace", "labels", "namespace_labels", "mode"),
    [
        ("prod", {}, {}, Mode.ENFORCE),
        ("dev-x", {}, {}, Mode.AUDIT),
        ("dev-core", {}, {}, Mode.WARN),
        ("dev-core", {"tier": "gold"}, {}, Mode.ENFORCE),
        ("dev-core", {"tier": "gold"}, {"team": "vision"}, Mode.OFF),
        ("prod", {}, {"team": "text"}, Mode.ENFORCE),
        ("prod", {}, None, Mode.WARN),
    ],
)
def test_the_last_override_that_matches_wins(
    namespace: str, labels: dict[str, str], namespace_labels: dict[str, str] | None, mode: Mode
) -> None:
    files = {"webhook.yaml": OVERRIDES, "rules.yaml": f"modes: {{{RULE}: enforce}}"}
    obj = {"metadata": {"labels": labels}}
    assert rule_mode(files, obj=obj, namespace=namespace, namespace_labels=namespace_labels) is mode


@pytest.mark.parametrize(
    ("override", "mode"),
    [
        (f"modes: {{{POLICY}: off}}", Mode.WARN),
        (f"settings: {{{POLICY}: {{mode: audit}}}}", Mode.WARN),
        ("profile: observe", Mode.WARN),
        ("profile: strict", Mode.ENFORCE),
        (f"modes: {{{RULE}: off}}", Mode.ENFORCE),
    ],
)
def test_a_policy_that_an_undecided_override_might_switch_off_changes_nothing(
    override: str, mode: Mode
) -> None:
    overrides = f"overrides: [{{namespaceSelector: {{matchLabels: {{team: vision}}}}, {override}}}]"
    assert policy_mode({"webhook.yaml": overrides}, namespace_labels=None) is mode
    assert policy_mode({"webhook.yaml": overrides}, namespace_labels={}) is Mode.ENFORCE
    off = {"webhook.yaml": overrides, f"{POLICY}.yaml": "mode: off"}
    assert policy_mode(off, namespace_labels=None) is Mode.OFF


@pytest.mark.parametrize("second", [f"modes: {{{POLICY}: enforce}}", "profile: strict"])
def test_an_undecided_override_does_not_hide_that_another_might_switch_a_policy_off(second: str) -> None:
    overrides = f"""
overrides:
- {{namespaceSelector: {{matchLabels: {{env: dev}}}}, modes: {{{POLICY}: off}}}}
- {{namespaceSelector: {{matchLabels: {{env: prod}}}}, {second}}}
"""
    assert policy_mode({"webhook.yaml": overrides}, namespace_labels={"env": "dev"}) is Mode.OFF
    assert policy_mode({"webhook.yaml": overrides}, namespace_labels=None) is Mode.WARN


def test_an_override_profile_wins_over_the_base_modes() -> None:
    files = {
        "webhook.yaml": OVERRIDES,
        "rules.yaml": f"modes: {{{RULE}: enforce}}",
        f"{POLICY}.yaml": "mode: enforce",
    }
    assert rule_mode(files, namespace="dev-x", namespace_labels={}) is Mode.AUDIT
    assert policy_mode(files, namespace="dev-x", namespace_labels={}) is Mode.AUDIT


def test_the_memory_is_bounded_for_any_combination_of_labels() -> None:
    overrides = "".join(f"\n- objectSelector: {{matchLabels: {{l{n}: x}}}}" for n in range(11))
    config = load({"webhook.yaml": f"overrides:{overrides}"})
    for chosen in product((False, True), repeat=11):
        labels = {f"l{n}": "x" for n, each in enumerate(chosen) if each}
        config.effective({"metadata": {"labels": labels}})
    assert len(config._by_match) <= 1024


def test_an_override_replaces_single_settings() -> None:
    files = {
        "standard-probes.yaml": "readinessFailures: 4",
        "webhook.yaml": """
overrides:
- namespaces: [dev-*]
  settings: {standard-probes: {unknown: tcp, mode: warn}}
- namespaces: [dev-core]
  settings: {standard-probes: {unknown: http}}
""",
    }
    policy = registry.mutators()["standard-probes"]

    def of(namespace: str) -> tuple[str, int, Mode]:
        found = effective(files, namespace=namespace, namespace_labels={})
        settings = found.settings(policy.settings)
        return settings.unknown, settings.readiness_failures, found.mutator_mode(policy)

    assert of("prod") == ("warn", 4, Mode.ENFORCE)
    assert of("dev-x") == ("tcp", 4, Mode.WARN)
    assert of("dev-core") == ("http", 4, Mode.WARN)


def test_exemptions_may_be_forbidden_or_limited() -> None:
    exemptions = load(
        {"webhook.yaml": "exemptions: {forbidden: [liveness-ext*], onlyIn: {liveness-missing: [dev-*]}}"}
    ).webhook.exemptions
    assert not exemptions.allows("liveness-external-dependency", "dev-a")
    assert exemptions.allows("liveness-missing", "dev-a")
    assert not exemptions.allows("liveness-missing", "prod")
    assert exemptions.allows("tcp-probe", "prod")


def test_further_kinds_join_the_table() -> None:
    config = load({"webhook.yaml": "workloads: [{apiGroup: x.io, kind: Y, templates: [spec.pod]}]"})
    assert {kind.kind for kind in config.workloads} >= {"Deployment", "Y"}


def test_the_digest_follows_the_text() -> None:
    assert load({"rules.yaml": ""}).digest != load({"rules.yaml": "# x"}).digest
    assert load({"rules.yaml": ""}).digest == load({"rules.yaml": ""}).digest


def test_another_profile_for_the_command_line() -> None:
    assert Config().with_profile("strict").rules.profile is Profile.STRICT


@pytest.mark.parametrize(
    "text", ["# caf\xe9\n", "profile: strict # caf\xe9\n", "profile: caf\xe9\n", "\xff\xfe"]
)
@pytest.mark.parametrize("ends", ["\n", "\nmodes: {}\n"])
def test_bytes_that_are_not_utf_8_are_refused_everywhere(tmp_path: Path, text: str, ends: str) -> None:
    content = f"\n{text}{ends}".encode("latin-1")
    said = ["rules.yaml: line 2: it isn't UTF-8 text"]
    (tmp_path / "rules.yaml").write_bytes(content)
    assert problems(read_directory(tmp_path)) == said
    assert problems(dict(read_files(str(tmp_path / "rules.yaml")))) == said
    assert problems(dict(keys({"binaryData": {"rules.yaml": base64.b64encode(content).decode()}}))) == said


def test_a_key_of_binary_data_counts_like_any_other_and_other_files_do_not() -> None:
    strict = base64.b64encode("# café\nprofile: strict\n".encode()).decode()
    found = keys({"data": {"webhook.yaml": "{}"}, "binaryData": {"rules.yaml": strict, "logo.png": "/w=="}})
    assert set(found) == {"webhook.yaml", "rules.yaml"}
    assert load(found).rules.profile is Profile.STRICT
    assert problems(dict(keys({"binaryData": {"rules.yaml": "?"}})))


@pytest.mark.parametrize(
    ("own", "namespace", "judged"), [("chassis", "chassis", True), ("chassis", "ml", False), ("", "ml", True)]
)
def test_a_policy_is_judged_in_the_webhooks_namespace_only(own: str, namespace: str, judged: bool) -> None:
    """Tenants can set the label, too. Without a known namespace, as on the command line, all are judged."""
    metadata = {"name": "p", "namespace": namespace, "labels": {"mlchassis.dev/policy": "true"}}
    target = Target({"metadata": metadata, "data": {"rules.yaml": "profile: strickt"}}, CONFIG_MAP)
    assert bool(list(own_rules(own)[GUARD].check(target, Facts(namespace)))) is judged
