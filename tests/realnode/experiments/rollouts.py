"""Rolling updates that lose requests, take everything down, or never end."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.api import JSON
from tests.e2e.node.init import NODE
from tests.e2e.status import rolled_out
from tests.manifests import manifest
from tests.realnode.arms import Arm, api
from tests.realnode.experiments.model_api import WATCHED, Figures, http, pod_of
from tests.realnode.traffic import Traffic, ask

SURGE: JSON = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
ROOM_FIRST: JSON = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def restart(arm: Arm) -> None:
    """A rolling restart of the Deployment `api`, and its end."""
    arm.kubectl("rollout", "restart", "deployment/api")
    arm.kubectl("rollout", "status", "deployment/api", "--timeout=200s")


def rolling_update(arm: Arm) -> Figures:
    """Rolling restarts of a served Deployment under traffic; the server ends at SIGTERM at once."""
    address = arm.service("api")
    arm.create(api(replicas=2, readinessProbe=http(periodSeconds=2)))
    arm.wait_ready("api", 2)
    arm.wait("answered", lambda: ask(address, 80, "/health"))
    with Traffic(address, rate=30, path="/health") as traffic:
        time.sleep(5)
        for _ in range(3):
            restart(arm)
        arm.wait("only two pods left", lambda: len(arm.pods("api")) == 2)
        time.sleep(3)
    return {"requests": len(traffic.requests), "lost": traffic.lost, "before": traffic.share(0, 5)}


def all_down(arm: Arm) -> Figures:
    """A rolling restart that may take every replica at once; each loads for 10 s."""
    address = arm.service("api")

    def serving(unavailable: int | str) -> JSON:
        strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": unavailable}}
        probe = http(periodSeconds=2, failureThreshold=15)
        return api(replicas=3, env={"LOAD": 10}, strategy=strategy, readinessProbe=probe)

    reaction = arm.put("rollout-takes-all-down", serving("100%"), serving(1))
    arm.wait_ready("api", 3)
    arm.wait("answered", lambda: ask(address, 80, "/health"))
    with Traffic(address, rate=10, path="/health") as traffic:
        time.sleep(5)
        restart(arm)
        time.sleep(3)
    return {
        "reaction": reaction,
        "before": traffic.share(0, 5),
        "requests": len(traffic.requests),
        "lost": traffic.lost,
        "silent": traffic.silent_seconds,
    }


def short_deadline(arm: Arm) -> Figures:
    """A start of 45 s that the startup probe allows, under a progress deadline of 20."""

    def deadline(seconds: int) -> JSON:
        item = api(env={"LOAD": 45}, startupProbe=http(periodSeconds=5, failureThreshold=24))
        item["spec"]["progressDeadlineSeconds"] = seconds
        return item

    reaction = arm.put("progress-deadline-too-short", deadline(20), deadline(300))
    succeeds = arm.succeeds("rollout", "status", "deployment/api", "--timeout=200s")
    return {"reaction": reaction, "succeeds": succeeds, "ready after": arm.wait_ready("api", 1)}


def rollout(arm: Arm, reaction: str, replicas: int = 1) -> Figures:
    """A rolling restart of so many replicas: is it through?"""

    def updated() -> bool:
        return rolled_out(arm.node.api.get("deployments.apps", "api", arm.namespace))

    arm.wait_ready("api", replicas)
    arm.kubectl("rollout", "restart", "deployment/api")
    if arm.webhook:
        return {"reaction": reaction, "updated after": arm.wait("updated", updated)}
    time.sleep(WATCHED)
    return {"reaction": reaction, "pending": arm.pending("api"), "updated": updated()}


def own_volume(arm: Arm) -> Figures:
    """A rolling update of a pod that holds its volume exclusively."""
    name = f"{arm.namespace}-disk"
    mode = {"accessModes": ["ReadWriteOncePod"], "storageClassName": name}
    size = {"storage": "1Gi"}
    directory = {"hostPath": {"path": f"/run/{name}", "type": "DirectoryOrCreate"}}
    arm.create(
        manifest("PersistentVolume", name, {"capacity": size, **mode, **directory}),
        manifest("PersistentVolumeClaim", "disk", {**mode, "resources": {"requests": size}}),
    )

    def holding(strategy: JSON) -> JSON:
        item = api(strategy=strategy, volumeMounts=[{"name": "disk", "mountPath": "/disk"}])
        pod_of(item)["volumes"] = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
        return item

    return rollout(arm, arm.put("rollout-volume-deadlock", holding(SURGE), holding({"type": "Recreate"})))


def host_port(arm: Arm) -> Figures:
    """A rolling update of a pod that takes a port of its node."""
    port = 18098 + arm.webhook

    def taking(**more: Any) -> JSON:
        item = api(ports=[{"containerPort": 8000, "hostPort": port}], **more)
        pod_of(item)["nodeSelector"] = {"kubernetes.io/hostname": NODE}
        return item

    return rollout(arm, arm.put("rollout-host-port-deadlock", taking(), taking(strategy=ROOM_FIRST)))
