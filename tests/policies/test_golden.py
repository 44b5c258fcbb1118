"""The golden cases of the mutating policies: tests/policies/<subject>/<policy id>/<case>/.

`input.yaml` is the object as it arrives; `expected.yaml` as it must leave; `settings.yaml` (optional) the
policy's key in the ConfigMap; `facts.yaml` (optional) manifests that represent the cluster; `warnings.txt`
(optional) the policy's findings, one a line; `reasons.txt` (optional) the reasons of the added fields, one
field a line. `make golden` rewrites the expected files; the diff is for a person to review.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from policies.core import registry
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.finding import Mode
from policies.core.reasons import Reasons
from policies.kube.field_paths import scopes
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, mapping, maps, replaced
from policies.kube.pods import Role, containers
from policies.kube.yaml_text import load_all
from policies.probes.liveness_program import program
from webhook.admission.decision import Change
from webhook.admission.json_patch import diff, same
from webhook.admission.messages import places
from webhook.cli.output.yaml import dump
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster

HERE = Path(__file__).parent
CASES = sorted(
    path.parent for policy_id in registry.mutators() for path in HERE.glob(f"*/{policy_id}/*/input.yaml")
)

DEFAULTS = load({})


def case_id(case: Path) -> str:
    return f"{case.parent.name}/{case.name}"


def documents(path: Path) -> list[Any]:
    return [doc for doc in load_all(path.read_text()) if doc is not None] if path.exists() else []


def facts_of(case: Path, policy: Mutator[Any], obj: Json) -> Facts:
    """The facts of a case: its settings loaded as the server loads them, its manifests as the cluster."""
    settings = case / "settings.yaml"
    config = load({f"{policy.id}.yaml": settings.read_text()}) if settings.exists() else DEFAULTS
    namespace = mapping(obj, "metadata").get("namespace", "default")
    effective = config.effective(obj, namespace, None)
    return Facts(namespace, ManifestCluster(documents(case / "facts.yaml")), effective.settings)


def findings(policy: Mutator[Any], obj: Json, facts: Facts) -> list[str]:
    if policy.advise is None:
        return []
    found = policy.advise(obj, facts.settings(policy.settings), facts)
    return [f"{finding.path}: {finding.message} {finding.hint}" for finding in found]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_case(case: Path, request: pytest.FixtureRequest) -> None:
    policy = registry.mutators()[case.parent.name]
    assert policy.mutate is not None
    [obj] = documents(case / "input.yaml")
    assert kind_of(obj) in policy.kinds, "a case must be of a kind that the policy changes"
    facts = facts_of(case, policy, obj)
    settings = facts.settings(policy.settings)
    before = copy.deepcopy(obj)

    reasons = Reasons(policy.id)
    after = policy.mutate(obj, settings, facts, reasons)

    assert same(obj, before), "the policy changed its input in place"
    patch = diff(obj, after)
    patched = jsonpatch.apply_patch(before, patch)
    assert same(patched, after), "the patch does not lead to what the policy returned"
    warnings = findings(policy, after, facts)
    if request.config.getoption("--update-golden", default=False):
        write(case, after, warnings, reasons)
    [expected] = documents(case / "expected.yaml")
    found = without_programs(patched)
    assert same(found, expected), yaml.safe_dump(diff(expected, found), sort_keys=False)
    told = case / "warnings.txt"
    assert warnings == (told.read_text().splitlines() if told.exists() else [])
    given = case / "reasons.txt"
    assert shown(reasons) == (given.read_text().splitlines() if given.exists() else [])
    assert policy.mutate(after, settings, facts) is after, "a second pass changes something"
    stored = with_api_defaults(after)
    assert policy.mutate(stored, settings, facts) is stored, "the API server's defaults set it off again"
    assert_every_field_that_is_added_has_its_reason(policy, obj, after, reasons)
    for each in reasons:
        if each.annotation:
            assert with_annotation(after, each.annotation) == policy.mutate(
                with_annotation(obj, each.annotation), settings, facts
            ), f"the annotation of a reason, as it is given, changes something: {each.annotation}"


def shown(reasons: Reasons) -> list[str]:
    return [
        f"{each.path}: {each.why}"
        + (f" | {each.setting}" if each.setting else "")
        + (f" | {each.annotation}" if each.annotation else "")
        for each in reasons
    ]


_PROGRAM = "\n".join(program().splitlines()[:20])


def without_programs(value: Any) -> Any:
    """A copy in which the text of the liveness program, 300 lines, is its file's name."""
    if isinstance(value, dict):
        return {key: without_programs(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_programs(each) for each in value]
    return "<programs/progress.py>" if str(value).startswith(_PROGRAM) else value


def write(case: Path, after: Json, warnings: list[str], reasons: Reasons) -> None:
    (case / "expected.yaml").write_text(dump(without_programs(after)))
    for name, lines in (("warnings.txt", warnings), ("reasons.txt", shown(reasons))):
        if lines:
            (case / name).write_text("".join(f"{line}\n" for line in lines))
        else:
            (case / name).unlink(missing_ok=True)


def assert_every_field_that_is_added_has_its_reason(
    policy: Mutator[Any], obj: Json, after: Json, reasons: Reasons
) -> None:
    fields = [
        field
        for operation in diff(obj, after)
        for field in places(Change(policy.id, Mode.ENFORCE, [operation], obj))
    ]
    explained = [each.path for each in reasons]
    without = [field for field in fields if not any(overlap(field, reason) for reason in explained)]
    assert without == [], "added without a reason"
    idle = [reason for reason in explained if not any(overlap(field, reason) for field in fields)]
    assert idle == [], "reasons for what is not added"
    for each in reasons:
        assert each.policy == policy.id
        assert not each.setting or each.setting in policy.settings.__struct_encode_fields__


def overlap(one: str, other: str) -> bool:
    """Whether one of two field paths lies in the other, or is the same."""
    return one in scopes(other) or other in scopes(one)


def with_annotation(obj: Json, written: str) -> Json:
    key, _, value = written.partition("=")
    return replaced(obj, ("metadata", "annotations", key), value)


def test_every_mutating_policy_has_cases() -> None:
    without = [
        policy.id
        for policy in registry.mutators().values()
        if policy.mutate is not None and not any(case.parent.name == policy.id for case in CASES)
    ]
    assert without == []


PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def with_api_defaults(obj: Json) -> Json:
    """A copy of a Pod with the fields that the API server fills in: what a reinvocation sees."""
    stored = copy.deepcopy(obj)
    if kind_of(stored).kind != "Pod":
        return stored
    for container in containers(stored):
        spec = container.spec
        defaults = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
        for name, value in {**defaults, "imagePullPolicy": "IfNotPresent", "resources": {}}.items():
            spec.setdefault(name, value)
        for port in maps(spec, "ports"):
            port.setdefault("protocol", "TCP")
        for probe in probes_of(spec):
            probe.update({**PROBE_DEFAULTS, **probe})
            if "httpGet" in probe:
                probe["httpGet"].setdefault("scheme", "HTTP")
            if "grpc" in probe:
                probe["grpc"].setdefault("service", "")
    for volume in maps(stored, "spec", "volumes"):
        for kind in ("configMap", "secret", "projected"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", 0o644)
    for name, value in {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}.items():
        stored["spec"].setdefault(name, value)
    return stored


def probes_of(spec: Json) -> Iterator[Json]:
    return (spec[name] for name in PROBES if isinstance(spec.get(name), dict))


def test_defaults_are_filled_in_a_copy() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": "m", "livenessProbe": {"httpGet": {"port": 1}}}]},
    }
    before = copy.deepcopy(pod)
    [container] = containers(with_api_defaults(pod), Role.MAIN)
    assert container.spec["livenessProbe"]["periodSeconds"] == 10
    assert pod == before
