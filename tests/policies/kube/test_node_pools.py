"""Which NodePools of Karpenter can make a node for a pod, and where the webhook only knows the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from policies.accelerators.node_affinity import REQUIRED
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.pod_templates import pod_templates
from policies.core.target import Target
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, replaced
from policies.kube.node_pools import why_no_node
from policies.kube.objects.nodes import NodePool
from policies.kube.objects.pods import Pod
from policies.kube.objects.reading import read
from policies.relations.rules import node_selector_unmatched
from tests.manifests import manifest
from tests.tables import table
from tests.webhook.kube.filled import filled


def reason(pod: Json, of_pool: Json) -> str | None:
    return why_no_node(read(pod, Pod).spec, read(of_pool, NodePool))


def pool(labels: Json | None = None, *requirements: Json, taints: tuple[Json, ...] = ()) -> Json:
    spec = {"requirements": list(requirements), "taints": list(taints)}
    return {
        "metadata": {"name": "p"},
        "spec": {"template": {"metadata": {"labels": labels or {}}, "spec": spec}},
    }


def asked(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def wanting(*expressions: Json, **spec: Any) -> Json:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return replaced({"spec": spec}, REQUIRED, terms)


ZONE, TYPE = "topology.kubernetes.io/zone", "karpenter.k8s.aws/instance-family"


@table(
    ("demand", "of_pool", "possible"),
    [
        (asked("disk", "In", "nvme"), pool({"disk": "nvme"}), True),
        (asked("disk", "In", "nvme"), pool({"disk": "hdd"}), False),
        (asked("disk", "In", "nvme"), pool(), False),
        (asked("disk", "Exists"), pool(), False),
        (asked("disk", "Gt", "1"), pool(), False),
        (asked("disk", "NotIn", "nvme"), pool(), True),
        (asked("disk", "DoesNotExist"), pool(), True),
        (asked("disk", "DoesNotExist"), pool({"disk": "hdd"}), False),
        (asked("disk", "In", "a", "b"), pool(None, asked("disk", "In", "b", "c")), True),
        (asked("disk", "In", "a"), pool(None, asked("disk", "In", "b", "c")), False),
        (asked("disk", "In", "a"), pool(None, asked("disk", "Exists")), True),
        (asked("disk", "In", "a"), pool(None, asked("disk", "NotIn", "a")), False),
        (asked("disk", "In", "9"), pool(None, asked("disk", "Gt", "5"), asked("disk", "Lt", "8")), False),
        (asked("disk", "Gt", "5"), pool(None, asked("disk", "In", "4", "6")), True),
        (asked("disk", "Exists"), pool(None, asked("disk", "DoesNotExist")), False),
        (asked("disk", "NotIn", "x"), pool(None, asked("disk", "DoesNotExist")), True),
        (asked("disk", "Exists"), pool(None, asked("disk", "NotIn", "x")), True),
        (asked(ZONE, "In", "eu-1"), pool(), True),
        (asked(ZONE, "In", "eu-1"), pool(None, asked(ZONE, "In", "eu-2")), False),
        (asked(TYPE, "In", "p5"), pool(), True),
        (asked("karpenter.sh/nodepool", "In", "p"), pool(), True),
        (asked("karpenter.sh/nodepool", "In", "other"), pool(), False),
    ],
)
def test_labels(demand: Json, of_pool: Json, possible: bool) -> None:
    assert (reason(wanting(demand), of_pool) is None) is possible


DEDICATED = {"key": "dedicated", "effect": "NoSchedule"}
NVME = {"spec": {"nodeSelector": {"disk": "nvme"}}}


@pytest.mark.parametrize(
    ("pod", "of_pool", "named"),
    [
        ({}, pool(taints=(DEDICATED,)), "p has the taint dedicated, which the pods don't tolerate"),
        ({}, pool(taints=({**DEDICATED, "effect": "PreferNoSchedule"},)), None),
        (wanting(tolerations=[{"operator": "Exists"}]), pool(taints=(DEDICATED,)), None),
        (NVME, pool(), "p sets no label disk"),
        (NVME, pool({"disk": "hdd"}), "p excludes these values of disk"),
    ],
)
def test_each_obstacle_is_named(pod: Json, of_pool: Json, named: str | None) -> None:
    assert reason(pod, of_pool) == named


def deployment(node_selector: Json, resources: Json | None = None) -> Json:
    spec = {"nodeSelector": node_selector, "containers": [{"name": "a", "resources": resources or {}}]}
    return manifest("Deployment", "d", {"template": {"spec": spec}}, namespace="ml")


GPUS = {"limits": {"nvidia.com/gpu": "1"}}
NODE_GROUP = "eks.amazonaws.com/nodegroup"


@pytest.mark.parametrize("obj", [deployment({"disk": "nvme"}, GPUS), deployment({NODE_GROUP: "gpus"})])
def test_a_pool_that_is_often_empty_is_no_reason_to_warn(obj: Json) -> None:
    assert found(obj) == []
    assert len(found(obj, pool(None, asked(NODE_GROUP, "DoesNotExist")))) == 1


def found(obj: Json, *pools: Json) -> list[Finding]:
    workloads = workloads_by_kind()
    target = Target(obj, kind_of(obj), pod_templates(obj, workloads))
    node = {"kind": "Node", "metadata": {"name": "a", "labels": {"disk": "ssd"}}}
    cluster = filled(node, *({"kind": "NodePool", **each} for each in pools))
    return list(node_selector_unmatched.check(target, Facts("ml", cluster)))


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([], "an autoscaler adds one"),
        ([pool()], "no Karpenter NodePool creates a node that does (p sets no label disk)"),
        ([pool({"disk": "nvme"})], None),
    ],
)
def test_a_cluster_that_may_grow_is_warned_about(pools: list[Json], message: str | None) -> None:
    warned = found(deployment({"disk": "nvme"}), *pools)
    assert [each.certainty for each in warned] == ([Certainty.LIKELY] if message else [])
    assert all(message is not None and message in each.message for each in warned)
