"""Evictions, drains, and what a pod does when it has to go."""

from __future__ import annotations

import time
from pathlib import Path

from tests.e2e.api import JSON, ApiError
from tests.e2e.workloads import VLLM
from tests.manifests import manifest
from tests.realnode.arms import Arm, api
from tests.realnode.experiments.model_api import BASE, Figures, http
from tests.realnode.traffic import Traffic, ask

FINISHES = """\
import signal, time
def finish(*_):
    time.sleep(4)
    open("/state/saved", "w").close()
    raise SystemExit
signal.signal(signal.SIGTERM, finish)
while True: time.sleep(1)
"""


def evict(arm: Arm, name: str) -> int:
    """Ask for an eviction as `kubectl drain` does; the status of the answer."""
    path = f"/api/v1/namespaces/{arm.namespace}/pods/{name}/eviction"
    body = manifest("Eviction", name, namespace=arm.namespace)
    try:
        return arm.node.api.request("POST", path, body).status
    except ApiError as error:
        return error.status


def budget(**spec: object) -> JSON:
    """A PodDisruptionBudget of the model API."""
    selector = {"matchLabels": {"app": "api"}}
    return manifest("PodDisruptionBudget", "api", {"selector": selector, **spec})


def blocked_drain(arm: Arm) -> Figures:
    """A budget that asks for as many replicas as there are, and a drain of the node."""
    arm.create(api(replicas=2))
    arm.wait_ready("api", 2)
    reaction = arm.put("drain-blocked-by-pdb", budget(minAvailable=2), budget(maxUnavailable=1))

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
    return {"reaction": reaction, "tries": len(answers), "evicted": answers[-1] < 300}


def single_replica(arm: Arm) -> Figures:
    """An eviction of one pod of a Service, whose server loads for 10 s; is anything else there?"""
    address = arm.service("api")

    def serving(replicas: int) -> JSON:
        return api(replicas=replicas, env={"LOAD": 10}, image=VLLM, readinessProbe=http(periodSeconds=2))

    reaction = arm.put("single-replica-eviction", serving(1), serving(2))
    if arm.webhook:
        arm.create(budget(maxUnavailable=1))
    arm.wait_ready("api", 2 if arm.webhook else 1)
    arm.wait("answered", lambda: ask(address, 80, "/health"))
    first = arm.pods("api")[0]["metadata"]
    with Traffic(address, rate=10, path="/health") as traffic:
        time.sleep(5)
        assert evict(arm, first["name"]) < 300
        arm.wait(
            "the pod gone", lambda: first["uid"] not in {it["metadata"]["uid"] for it in arm.pods("api")}
        )
        arm.wait_ready("api", 2 if arm.webhook else 1)
        time.sleep(3)
    return {
        "reaction": reaction,
        "before": traffic.share(0, 5),
        "requests": len(traffic.requests),
        "lost": traffic.lost,
        "silent": traffic.silent_seconds,
    }


def short_grace(arm: Arm) -> Figures:
    """A server that needs 4 s after SIGTERM to save its state, behind a preStop hook of 12 s."""
    state = f"/run/{arm.namespace}-state"

    def saving(grace: int) -> JSON:
        main = {
            "name": "main",
            "image": BASE,
            "command": ["python3", "-c", FINISHES],
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "12"]}}},
            "volumeMounts": [{"name": "state", "mountPath": "/state"}],
        }
        spec = {
            "terminationGracePeriodSeconds": grace,
            "containers": [main],
            "volumes": [{"name": "state", "hostPath": {"path": state, "type": "DirectoryOrCreate"}}],
        }
        template = {"metadata": {"labels": {"app": "saving"}}, "spec": spec}
        return manifest(
            "Deployment", "saving", {"selector": {"matchLabels": {"app": "saving"}}, "template": template}
        )

    reaction = arm.put("grace-shorter-than-prestop", saving(10), saving(30))
    arm.wait_ready("saving", 1)
    time.sleep(2)  # the handler is set
    arm.kubectl("delete", "deployment", "saving")
    arm.wait("the pod gone", lambda: not arm.pods("saving"))
    return {"reaction": reaction, "saved": Path(state, "saved").exists()}
