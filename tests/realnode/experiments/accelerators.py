"""Pods with accelerators: the scheduler is real, the nodes are KWOK's, one with eight GPUs for each arm."""

from __future__ import annotations

import time

from tests.e2e.api import JSON
from tests.e2e.node.cluster import FAKE
from tests.e2e.workloads import UNKNOWN
from tests.realnode.arms import Arm, api
from tests.realnode.experiments.model_api import WATCHED, Figures, pod_of
from tests.realnode.experiments.rollouts import ROOM_FIRST, SURGE, rollout

GPU = "nvidia.com/gpu"
NODES = {True: "gpu-with", False: "gpu-without"}
FIXED = "fixedSize: true\n"
"""The key gpu-affinity.yaml of a cluster without an autoscaler."""


def _on_gpus(item: JSON, arm: Arm, count: int) -> JSON:
    spec = pod_of(item)
    spec["containers"][0]["resources"] = {"limits": {GPU: str(count)}}
    spec["nodeSelector"] = {"kubernetes.io/hostname": NODES[arm.webhook]}
    spec["tolerations"] = [FAKE]
    return item


def _in_force(arm: Arm, rule: str, item: JSON) -> None:
    """Wait until the webhook knows the nodes and that there will be no others."""
    if arm.webhook:
        arm.wait("refused", lambda: arm.verdict(rule, item) == "refuses")


def too_many(arm: Arm) -> Figures:
    """A pod that asks for more GPUs than any node has."""
    rule = "gpu-unschedulable"

    def asking(count: int) -> JSON:
        return _on_gpus(api(image=UNKNOWN), arm, count)

    _in_force(arm, rule, asking(16))
    reaction = arm.put(rule, asking(16), asking(2))
    if arm.webhook:
        return {"reaction": reaction, "ready after": arm.wait_ready("api", 1)}
    time.sleep(WATCHED)
    return {"reaction": reaction, "pending": arm.pending("api")}


def no_room(arm: Arm) -> Figures:
    """A rolling update of replicas that hold every GPU."""
    rule = "rollout-gpu-deadlock"

    def holding(strategy: JSON) -> JSON:
        return _on_gpus(api("api", replicas=2, strategy=strategy, image=UNKNOWN), arm, 3)

    _in_force(arm, rule, holding(SURGE))
    reaction = arm.put(rule, holding(SURGE), holding(ROOM_FIRST))
    return rollout(arm, reaction, 2)
