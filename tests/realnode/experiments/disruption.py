"""Evictions and drains."""

from __future__ import annotations

import time

from tests.e2e.api import JSON, ApiError
from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, api, arms, side_by_side
from tests.realnode.experiments.model_api import SOON, Figures


def evict(arm: Arm, name: str) -> int:
    """Ask for an eviction as `kubectl drain` does; the status of the answer."""
    path = f"/api/v1/namespaces/{arm.namespace}/pods/{name}/eviction"
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": arm.namespace},
    }
    try:
        return arm.node.api.request("POST", path, body).status
    except ApiError as error:
        return error.status


def blocked_drain(node: RealNode) -> Figures:
    """A budget that asks for as many replicas as there are, and a drain of the node."""

    def budget(**spec: object) -> JSON:
        selector = {"matchLabels": {"app": "api"}}
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "api"},
            "spec": {"selector": selector, **spec},
        }

    def run(arm: Arm) -> Figures:
        arm.create(api(replicas=2, annotations=SOON))
        arm.wait_ready("api", 2)
        refused = arm.refusal(budget(minAvailable=2))
        if refused:
            arm.create(budget(maxUnavailable=1))

        def known() -> bool:
            status = arm.node.api.get("poddisruptionbudgets", "api", arm.namespace).get("status", {})
            return bool(status.get("expectedPods") == 2)

        arm.wait("the budget known", known)
        name = arm.pods("api")[0]["metadata"]["name"]
        answers = []
        for _ in range(20):
            answers.append(evict(arm, name))
            if answers[-1] < 300:
                break
            time.sleep(1)
        return {"refused": refused, "tries": len(answers), "evicted": answers[-1] < 300}

    with_, without = side_by_side(run, arms(node, "drain"))
    return {"with": with_, "without": without}
