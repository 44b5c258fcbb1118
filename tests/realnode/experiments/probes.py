"""Probes that are missing, too strict, or ask somebody else."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, api, arms, side_by_side
from tests.realnode.experiments.model_api import SOON, Figures, answers, http
from tests.realnode.traffic import Traffic, ask, overload


def outage(node: RealNode) -> Figures:
    """An API that hangs under overload; three replicas behind a Service, a client at a steady rate."""
    before, watched = 20, 230

    def run(arm: Arm) -> Figures:
        address = arm.service("api")
        arm.create(api(replicas=3, annotations=SOON))
        arm.wait_ready("api", 3)
        arm.wait("answered", lambda: ask(address, 80, "/predict"))
        events: dict[str, float] = {}
        with Traffic(address, rate=8) as traffic:
            time.sleep(before)
            # Once is enough; more, until none of the three is left out.
            while any(map(answers, arm.pods("api"))):
                overload(address, 60, timeout=1)
            events["hung"] = traffic.now
            while traffic.now < watched:
                if arm.ready("api") == 0:
                    events.setdefault("out of the Service", traffic.now)
                if arm.restarts("api"):
                    events.setdefault("first restart", traffic.now)
                if arm.restarts("api") >= 3 and arm.ready("api") == 3:
                    events.setdefault("all ready again", traffic.now)
                time.sleep(0.5)
            end = traffic.now
        return {
            "events": events,
            "restarts": arm.restarts("api"),
            "ready": arm.ready("api"),
            "before": traffic.share(0, before),
            "at the end": traffic.share(end - 30, end - 3),
            "line": [(at, traffic.share(at, at + 5)) for at in range(0, int(end) - 5, 5)],
        }

    with_, without = side_by_side(run, arms(node, "outage"))
    return {"with": with_, "without": without}


def slow_start(node: RealNode) -> Figures:
    """A server that loads for 45 s, and a liveness probe that waits for 20."""
    liveness = http(initialDelaySeconds=5, periodSeconds=5, failureThreshold=3)

    def run(arm: Arm) -> Figures:
        began = time.monotonic()
        arm.create(
            api("slow", env={"LOAD": 45}, livenessProbe=liveness),
            api("quick", env={"LOAD": 0}, livenessProbe=liveness),
        )
        answered: float | None = None
        while answered is None and arm.restarts("slow") < 4 and time.monotonic() - began < 180:
            if any(answers(item) for item in arm.pods("slow")):
                answered = time.monotonic() - began
            time.sleep(0.5)
        return {
            "answered after": answered,
            "restarts": arm.restarts("slow"),
            "control answers": any(answers(item) for item in arm.pods("quick")),
            "control": arm.restarts("quick"),
        }

    with_, without = side_by_side(run, arms(node, "start"))
    return {"with": with_, "without": without}


def feature_store(node: RealNode) -> Figures:
    """The liveness probe of three replicas asks a feature store, which is down for a minute."""

    def asks(address: str) -> JSON:
        code = f"import urllib.request; urllib.request.urlopen('http://{address}/health', timeout=2)"
        command = {"command": ["python3", "-c", code]}
        return {"exec": command, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5}

    def run(arm: Arm) -> Figures:
        store = arm.service("features")
        arm.create(api("features", annotations=SOON))
        arm.wait_ready("features", 1)
        cascading = api("api", replicas=3, annotations=SOON, livenessProbe=asks(store))
        refused = arm.refusal(cascading)
        if refused:  # what it is advised to write
            arm.create(api("api", replicas=3, annotations=SOON))
        arm.wait_ready("api", 3)
        arm.kubectl("scale", "deployment/features", "--replicas=0")
        arm.wait("the store gone", lambda: not arm.pods("features"))
        began = time.monotonic()
        hit: set[str] = set()
        while time.monotonic() - began < 60:
            for item in arm.pods("api"):
                if any(it["restartCount"] for it in item["status"].get("containerStatuses", ())):
                    hit.add(item["metadata"]["name"])
            time.sleep(1)
        arm.kubectl("scale", "deployment/features", "--replicas=1")
        return {"refused": refused, "replicas restarted": len(hit), "restarts": arm.restarts("api")}

    with_, without = side_by_side(run, arms(node, "store"))
    return {"with": with_, "without": without}


def strict_liveness(node: RealNode) -> Figures:
    """A minute of overload, and a liveness probe that gives up as soon as readiness does."""
    strict = http(periodSeconds=5, failureThreshold=3, timeoutSeconds=1)
    slow = {"POOL": 8, "WORK": 3}

    def run(arm: Arm) -> Figures:
        address = arm.service("api")
        own: dict[str, Any] = {} if arm.webhook else {"livenessProbe": strict, "readinessProbe": strict}
        arm.create(api(replicas=2, env=slow, annotations=SOON, **own))
        arm.wait_ready("api", 2)
        overload(address, 40, seconds=60, timeout=60)
        restarts = arm.restarts("api")
        arm.wait_ready("api", 2)
        return {"restarts": restarts, "after": arm.restarts("api")}

    with_, without = side_by_side(run, arms(node, "load"))
    return {"with": with_, "without": without}
