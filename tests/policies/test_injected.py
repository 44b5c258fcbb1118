"""What the probe and puller policies add must pass the rules: a mutation that trips its own webhook's
validation would turn a sound pod into a refused one."""

from __future__ import annotations

import pytest

from policies.core import registry
from policies.core.facts import Facts
from policies.core.target import Target, pod_templates
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from tests.policies.test_golden import CASES, documents, facts_of
from webhook.config.load import rules

ADDING = ("standard-probes", "model-puller")
ONE = {"readiness-without-liveness": "liveness-missing"}
"""Two rules for one gap: with a readinessProbe and without one."""
COUNTS = "liveness-blind"
"""Only audited: it counts the probes that could not be better."""


def findings(pod: Json, facts: Facts) -> dict[tuple[str, str], str]:
    target = Target(pod, POD, pod_templates(pod, {}))
    return {
        (ONE.get(rule.id, rule.id), finding.path): finding.message
        for rule in rules().values()
        if rule.id != COUNTS
        if rule.kinds is None or POD in rule.kinds
        for finding in rule.check(target, facts)
    }


@pytest.mark.parametrize("policy", ADDING)
def test_no_rule_objects_to_added_fields(policy: str) -> None:
    objections: dict[tuple[str, ...], str] = {}
    for case in CASES:
        if case.parent.name == policy:
            [before], [after] = documents(case / "input.yaml"), documents(case / "expected.yaml")
            facts = facts_of(case, registry.mutators()[policy], before)
            known, found = findings(before, facts), findings(after, facts)
            objections |= {(case.name, *key): found[key] for key in found.keys() - known.keys()}
    assert objections == {}
