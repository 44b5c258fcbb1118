"""Rolling updates."""

from __future__ import annotations

import time

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, api, arms, side_by_side
from tests.realnode.experiments.model_api import SOON, Figures, http
from tests.realnode.traffic import Traffic, ask


def rolling_update(node: RealNode) -> Figures:
    """A rolling restart of a served Deployment under traffic; the server ends at SIGTERM at once."""
    readiness = http(periodSeconds=2)

    def run(arm: Arm) -> Figures:
        address = arm.service("api")
        arm.create(api(replicas=2, annotations=SOON, readinessProbe=readiness))
        arm.wait_ready("api", 2)
        arm.wait("answered", lambda: ask(address, 80, "/health"))
        with Traffic(address, rate=40, path="/health") as traffic:
            time.sleep(5)
            for _ in range(2):
                arm.kubectl("rollout", "restart", "deployment/api")
                arm.kubectl("rollout", "status", "deployment/api", f"--timeout={200}s")
            arm.wait("only two pods left", lambda: len(arm.pods("api")) == 2)
            time.sleep(3)
        requests = traffic.requests
        lost = sum(not request.answered for request in requests)
        return {"requests": len(requests), "lost": lost, "before": traffic.share(0, 5)}

    with_, without = side_by_side(run, arms(node, "update"))
    return {"with": with_, "without": without}


def own_volume(node: RealNode) -> Figures:
    """A rolling update of a pod that holds its volume alone."""

    def claim(arm: Arm) -> None:
        name = f"{arm.namespace}-disk"
        mode = {"accessModes": ["ReadWriteOncePod"]}
        directory = {"hostPath": {"path": f"/run/{name}", "type": "DirectoryOrCreate"}}
        size = {"storage": "1Gi"}
        volume = {"capacity": size, **mode, **directory, "storageClassName": name}
        arm.create(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume}
        )
        wanted = {**mode, "storageClassName": name, "resources": {"requests": size}}
        arm.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "disk"},
                "spec": wanted,
            }
        )

    def holding(strategy: JSON) -> JSON:
        item = api(annotations=SOON, volumeMounts=[{"name": "disk", "mountPath": "/disk"}])
        item["spec"]["template"]["spec"]["volumes"] = [
            {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}
        ]
        item["spec"]["strategy"] = strategy
        return item

    def run(arm: Arm) -> Figures:
        claim(arm)
        surge = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        refused = arm.refusal(holding(surge))
        if refused:
            arm.create(holding({"type": "Recreate"}))
        arm.wait_ready("api", 1)
        arm.kubectl("rollout", "restart", "deployment/api")
        if refused:
            took = arm.wait("updated", lambda: _updated(arm, "api"))
            return {"refused": refused, "updated after": took}
        time.sleep(90)
        waiting = [it["status"]["phase"] for it in arm.pods("api")].count("Pending")
        return {"refused": "", "updated after": None, "pending": waiting, "updated": _updated(arm, "api")}

    with_, without = side_by_side(run, arms(node, "volume"))
    return {"with": with_, "without": without}


def _updated(arm: Arm, name: str) -> bool:
    item = arm.node.api.get("deployments.apps", name, arm.namespace)
    status = item["status"]
    current = status.get("observedGeneration") == item["metadata"]["generation"]
    counts = [status.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return bool(current and counts == [1, 1, 1])
