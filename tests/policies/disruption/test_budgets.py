"""A workload under a budget that was there first: warned about when it is made, and only then."""

from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.finding import Certainty
from policies.core.target import Target
from policies.core.workloads import known_workloads
from policies.disruption.rules.drain_blocked_by_pdb import RULE
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from webhook.kube.offline import ManifestCluster

BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "server", "namespace": "default"},
    "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "server"}}},
}


def deployment(replicas: int) -> Json:
    labels = {"app": "server"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "s"}]}},
        },
    }


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ([BUDGET], [("spec.replicas", Certainty.UNDECIDED)]),
        ([BUDGET, deployment(3)], [("spec.replicas", Certainty.UNDECIDED)]),  # it is scaled down
        ([BUDGET, deployment(2)], []),
        ([], []),
    ],
)
def test_a_workload_is_warned_about_when_it_comes_under_the_budget(known: list[Any], found: Any) -> None:
    obj = deployment(2)
    assert kind_of(obj) in {workload.gk for workload in known_workloads()}
    facts = Facts("default", ManifestCluster(known))
    findings = RULE.check(Target(obj, kind_of(obj), ()), facts)
    assert [(finding.path, finding.certainty) for finding in findings] == found
