"""A workload under a budget that was there first: warned about when it is made, and only then."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.finding import Certainty
from policies.core.target import Target
from policies.core.workloads import known_workloads
from policies.disruption.rules.drain_blocked_by_pdb import RULE
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from tests.manifests import manifest
from tests.tables import table
from tests.webhook.kube.filled import filled
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.overlaid import OverlaidCluster

BUDGET = manifest(
    "PodDisruptionBudget",
    "server",
    {"minAvailable": 2, "selector": {"matchLabels": {"app": "server"}}},
    namespace="default",
)


def deployment(replicas: int) -> Json:
    labels = {"app": "server"}
    return manifest(
        "Deployment",
        "server",
        {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "s"}]}},
        },
        namespace="default",
    )


def autoscaler(least: int, most: int = 10, owners: Sequence[Json] = ()) -> Json:
    return manifest(
        "HorizontalPodAutoscaler",
        "server",
        {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "server"},
            "minReplicas": least,
            "maxReplicas": most,
        },
        namespace="default",
        ownerReferences=list(owners),
    )


def scaled_object(least: int, most: int = 10, annotations: Mapping[str, str] = {}) -> Json:
    return manifest(
        "ScaledObject",
        "server",
        {"scaleTargetRef": {"name": "server"}, "minReplicaCount": least, "maxReplicaCount": most},
        namespace="default",
        annotations=dict(annotations),
    )


LIKELY = [Certainty.LIKELY]
WIDER = {**BUDGET, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"tier": "api"}}}}
OWNED = [{"kind": "ScaledObject", "name": "server", "controller": True}]
OTHER = {**deployment(5), "metadata": {"name": "other", "namespace": "default"}}


@table(
    ("edited", "known", "found"),
    [
        (autoscaler(2), [BUDGET, deployment(5)], LIKELY),
        (autoscaler(3), [BUDGET, deployment(5)], []),
        (autoscaler(1), [BUDGET, deployment(5)], LIKELY),
        (autoscaler(0), [BUDGET, deployment(5)], LIKELY),  # while none runs, nothing is blocked; one is
        (autoscaler(1, 2), [BUDGET, deployment(5)], [Certainty.CERTAIN]),
        (autoscaler(2), [BUDGET, deployment(5), autoscaler(4)], LIKELY),  # the minimum is lowered
        (autoscaler(2), [BUDGET, deployment(5), autoscaler(1)], []),  # the budget has its own finding
        (autoscaler(2), [BUDGET, deployment(0)], []),  # 0 replicas switch it off
        (autoscaler(2), [BUDGET], []),  # the workload is not known
        (autoscaler(2), [BUDGET, deployment(5), OTHER], []),  # the budget counts others too
        (autoscaler(2), [WIDER, deployment(5)], []),
        (autoscaler(2, owners=OWNED), [BUDGET, deployment(5)], []),  # judged at the ScaledObject
        (scaled_object(2), [BUDGET, deployment(5)], LIKELY),
        (scaled_object(0), [BUDGET, deployment(5)], LIKELY),  # KEDA's autoscaler keeps 1
        (scaled_object(3), [BUDGET, deployment(5)], []),
        (scaled_object(2, annotations={"autoscaling.keda.sh/paused": "true"}), [BUDGET, deployment(5)], []),
    ],
)
def test_an_autoscaler_is_judged_where_it_is_edited(edited: Json, known: list[Any], found: Any) -> None:
    facts = Facts("default", ManifestCluster(known))
    findings = list(RULE.check(Target(edited, kind_of(edited), ()), facts))
    assert [each.certainty for each in findings] == found
    assert {each.path for each in findings} <= {"spec.minReplicas", "spec.minReplicaCount"}
    for each in findings:
        assert "Deployment server" in each.message, "both ends are named"
        assert "PodDisruptionBudget server" in each.message
        assert "0 replicas" not in each.message


def test_in_a_set_the_budget_has_the_finding_and_in_a_cluster_the_manifest() -> None:
    edited, pair = autoscaler(2), [BUDGET, deployment(5)]
    whole = ManifestCluster([edited, *pair])
    assert list(RULE.check(Target(edited, kind_of(edited), ()), Facts("default", whole))) == []
    assert list(RULE.check(Target(BUDGET, kind_of(BUDGET), ()), Facts("default", whole)))
    into = OverlaidCluster(ManifestCluster([edited]), filled(autoscaler(2), *pair))
    assert list(RULE.check(Target(edited, kind_of(edited), ()), Facts("default", into)))
    scanned = filled(edited, *pair)
    assert list(RULE.check(Target(edited, kind_of(edited), ()), Facts("default", scanned))) == []


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
    assert kind_of(obj) in {workload.group_kind for workload in known_workloads()}
    facts = Facts("default", ManifestCluster(known))
    findings = RULE.check(Target(obj, kind_of(obj), ()), facts)
    assert [(finding.path, finding.certainty) for finding in findings] == found
