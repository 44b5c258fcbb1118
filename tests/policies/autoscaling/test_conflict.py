"""Two autoscalers of one workload: which of them has the finding, and how certain it is."""

from __future__ import annotations

import pytest

from policies.autoscaling.rules.autoscaler_conflict import RULE
from policies.core.facts import Cluster, Facts
from policies.core.finding import Certainty
from policies.core.target import Target
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from tests.manifests import manifest
from tests.webhook.kube.filled import filled
from webhook.manifests.cluster import ManifestCluster


def autoscaler(name: str, uid: str = "") -> Json:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}
    spec = {"scaleTargetRef": reference, "maxReplicas": 4}
    return manifest("HorizontalPodAutoscaler", name, spec, namespace="default", uid=uid)


def found(obj: Json, cluster: Cluster) -> list[Certainty]:
    return [each.certainty for each in RULE.check(Target(obj, kind_of(obj), ()), Facts("default", cluster))]


@pytest.mark.parametrize("other", ["a", "z"])
def test_an_applied_one_has_the_finding_whatever_its_name(other: str) -> None:
    """An upgrade that renames an autoscaler deletes the other one afterwards: it is not certain."""
    cluster = filled(autoscaler(other, "1"))
    assert found(autoscaler("llm", "2"), cluster) == [Certainty.LIKELY]


@pytest.mark.parametrize("uid", ["", "1"])
def test_of_two_in_files_or_in_a_scan_the_first_one_by_name_has_it(uid: str) -> None:
    first, second = autoscaler("a", uid), autoscaler("b", uid)
    whole = ManifestCluster([second, first])
    assert found(first, whole) == [Certainty.CERTAIN]
    assert found(second, whole) == []


def test_a_file_has_it_rather_than_the_cluster() -> None:
    live, edited = autoscaler("a", "1"), autoscaler("b")
    whole = ManifestCluster([live, edited])
    assert found(edited, whole) == [Certainty.CERTAIN]
    assert found(live, whole) == []
