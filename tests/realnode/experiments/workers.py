"""KubeRay's own operator, whose cache is late: how many workers does it create?"""

from __future__ import annotations

import time

from tests.e2e.api import JSON
from tests.e2e.binaries import KUBERAY
from tests.e2e.kuberay import NAMESPACE, SERVICE_ACCOUNT, Observer, Operator, ray_cluster
from tests.e2e.node.cluster import FAKE
from tests.e2e.watch_proxy import WatchProxy
from tests.realnode.arms import Arm
from tests.realnode.experiments.model_api import WATCHED, Figures

RELEASE = KUBERAY[0]
NODE = "ray-node"
DELAY = 3.0
"""Seconds by which the operator learns late of the pods."""
WANTED = 4
CLUSTERS = 3


def _on_fake_nodes(cluster: JSON) -> JSON:
    groups = (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"])
    for group in groups:
        group["template"]["spec"]["tolerations"] = [FAKE]
    return cluster


def doubled_workers(arm: Arm) -> Figures:
    """Three RayClusters of four workers each."""
    node, groups = arm.node, [(f"ray-{n}", "small") for n in range(CLUSTERS)]
    token = node.token(NAMESPACE, SERVICE_ACCOUNT)
    with (
        WatchProxy(node, DELAY) as proxy,
        Observer(node.api.within(arm.namespace)) as observer,
        Operator(node, RELEASE, proxy.kubeconfig(token), arm.namespace),
    ):
        for name, _ in groups:
            arm.create(_on_fake_nodes(ray_cluster(name, WANTED)))
        observer.wait(lambda seen: all(len(seen[it].live) >= WANTED for it in groups))
        time.sleep(WATCHED)
    seen = [observer.groups[group] for group in groups]
    return {
        "wanted": WANTED * CLUSTERS,
        "peak": max(it.peak for it in seen),
        "created": sum(len(it.created) for it in seen),
        "deleted": sum(len(it.deleted) for it in seen),
    }
