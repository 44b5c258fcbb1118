"""What each hazard does on a real node, with the webhook and without it.

Every experiment is a function of the node that returns its figures. They run at the same time, since most of
them wait; the tests beside this file judge the figures, and `evidence.py` writes them down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Any

from tests.e2e.api import JSON, ApiError
from tests.e2e.node import images
from tests.e2e.node.cluster import RealNode
from tests.realnode.arms import Arm, api, arms, side_by_side
from tests.realnode.traffic import Traffic, ask, overload

Figures = dict[str, object]
SOON = {"mlchassis.dev/expected-start": "20s"}
BASE = images.base_name()


def http(**timing: int) -> JSON:
    """A probe of the model API."""
    return {"httpGet": {"path": "/health", "port": 8000}, **timing}


def answers(item: JSON) -> bool:
    """Whether a pod of the model API answers, asked without any Service."""
    return "podIP" in item["status"] and ask(item["status"]["podIP"], 8000, "/health")


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


def job(name: str, code: str, backoff: int | None = None) -> JSON:
    """A training Job that runs Python code."""
    container = {"name": "train", "image": BASE, "command": ["python3", "-c", code]}
    template = {
        "metadata": {"labels": {"app": name, "mlchassis.dev/training": "true"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {"template": template} | ({} if backoff is None else {"backoffLimit": backoff})
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def jobs(node: RealNode) -> Figures:
    """A Job whose pod is evicted, and one that fails by a mistake in its code."""

    def condition(arm: Arm, name: str) -> str:
        status = arm.node.api.get("jobs.batch", name, arm.namespace).get("status", {})
        ended = {it["type"] for it in status.get("conditions", ()) if it["status"] == "True"}
        return next(iter(ended & {"Complete", "Failed"}), "")

    def run(arm: Arm) -> Figures:
        arm.create(job("evicted", "import time; time.sleep(900)", backoff=0))
        arm.create(job("wrong", "raise SystemExit(3)"))
        arm.wait("running", lambda: any(map(running, arm.pods("evicted"))))
        (first,) = arm.pods("evicted")
        evict(arm, first["metadata"]["name"])

        def decided() -> bool:
            others = [it for it in arm.pods("evicted") if it["metadata"]["uid"] != first["metadata"]["uid"]]
            return condition(arm, "evicted") == "Failed" or any(map(running, others))

        arm.wait("given up or begun anew", decided)
        arm.wait(
            "given up or tried again",
            lambda: condition(arm, "wrong") == "Failed" or len(arm.pods("wrong")) > 2,
        )
        return {
            "evicted": condition(arm, "evicted") or "runs again",
            "wrong": condition(arm, "wrong") or "is tried again",
            "tries": len(arm.pods("wrong")),
        }

    def running(item: JSON) -> bool:
        return item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]

    with_, without = side_by_side(run, arms(node, "jobs"))
    return {"with": with_, "without": without}


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


def own_service(node: RealNode) -> Figures:
    """An init container that waits for the Service of its own pod."""

    def waiting(name: str, address: str, host: str) -> JSON:
        once = f"import urllib.request as u; u.urlopen('http://{host}/health', timeout=2)"
        code = f'until python3 -c "{once}"; do sleep 1; done'
        item = api(name, annotations=SOON)
        spec = item["spec"]["template"]["spec"]
        spec["initContainers"] = [{"name": "wait", "image": BASE, "command": ["sh", "-c", code]}]
        spec["hostAliases"] = [{"ip": address, "hostnames": [host]}]  # in place of a name server
        return item

    def run(arm: Arm) -> Figures:
        own, other = arm.service("api"), arm.service("other")
        arm.create(api("other", annotations=SOON))
        arm.wait_ready("other", 1)
        control = waiting("control", other, "other")
        arm.create(control)
        refused = arm.refusal(waiting("api", own, "api"))
        took = arm.wait_ready("control", 1)
        if not refused:
            time.sleep(90)
        return {"refused": refused, "ready": arm.ready("api"), "control ready after": took}

    with_, without = side_by_side(run, arms(node, "service"))
    return {"with": with_, "without": without}


EXPERIMENTS: dict[str, Callable[[RealNode], Figures]] = {
    "outage": outage,
    "slow_start": slow_start,
    "feature_store": feature_store,
    "strict_liveness": strict_liveness,
    "rolling_update": rolling_update,
    "jobs": jobs,
    "blocked_drain": blocked_drain,
    "own_volume": own_volume,
    "own_service": own_service,
}


class Running:
    """One experiment in a thread of its own."""

    def __init__(self, node: RealNode, run: Callable[[RealNode], Figures]) -> None:
        self._node, self._run = node, run
        self._figures: Figures = {}
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work, name=run.__name__, daemon=True)
        self._thread.start()

    def figures(self) -> Figures:
        """Wait for its end; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._figures

    def _work(self) -> None:
        try:
            self._figures = self._run(self._node)
        except BaseException as error:
            self._error = error
