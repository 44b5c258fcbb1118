"""Probes that are missing, too strict, too dear, or ask the wrong one."""

from __future__ import annotations

import signal
import time
from typing import Any

from tests.e2e.api import JSON
from tests.e2e.node.images import TRITON
from tests.e2e.workloads import UNKNOWN
from tests.manifests import manifest
from tests.realnode.arms import PATIENCE, Arm, api
from tests.realnode.experiments.model_api import (
    BASE,
    WATCHED,
    Figures,
    command,
    http,
    pod_of,
    python_get,
    readiness,
)
from tests.realnode.traffic import Traffic, ask, overload

# Hangs


AGAIN = 30
"""Seconds after the recovery for which its requests are counted."""


def _end(events: dict[str, float]) -> float:
    """When the recovery has been watched; the time that everything may take, while there was none."""
    return events.get("all ready again", 2 * PATIENCE) + AGAIN + 5


def outage(arm: Arm) -> Figures:
    """An API that hangs under overload; three replicas behind a Service, a client at a steady rate."""
    before, watched = 20, 230
    address = arm.service("api")
    # So many workers that only a busy machine does not fill them.
    arm.create(api(replicas=3, env={"WORKERS": 16}))
    arm.wait_ready("api", 3)
    arm.wait("answered", lambda: arm.answering("api") == 3 and ask(address, 80, "/predict"))
    events: dict[str, float] = {}
    with Traffic(address, rate=5) as traffic:
        time.sleep(before)
        # Once is enough; more, until none of the three is left out. On a busy machine a replica may be late
        # with one answer without being hung, so all three must be silent three times.
        silent = 0
        while silent < 3:
            if arm.answering("api"):
                silent = 0
                overload(address, 150, timeout=1)
            else:
                silent += 1
                time.sleep(2)
        events["hung"] = traffic.now
        while traffic.now < watched or (arm.webhook and traffic.now < _end(events)):
            if arm.ready("api") == 0:
                events.setdefault("out of the Service", traffic.now)
            if arm.restarts("api"):
                events.setdefault("first restart", traffic.now)
            if arm.restarts("api") >= 3 and arm.ready("api") == 3:
                events.setdefault("all ready again", traffic.now)
            time.sleep(1)
        end = traffic.now
        ready = arm.ready("api")
    again = events.get("all ready again")
    return {
        "events": events,
        "restarts": arm.restarts("api"),
        "ready": ready,
        "before": traffic.share(0, before),
        "again": None if again is None else traffic.share(again, again + AGAIN),
        "at the end": traffic.share(end - 30, end - 5),
        "line": [(at, traffic.share(at, at + 5)) for at in range(0, int(end) - 5, 5)],
    }


def _hang(arm: Arm, hazard: JSON, advised: JSON, rule: str, *, leaves: bool) -> Figures:
    """A server that hangs; is it taken out of its Service, and is it restarted?

    Args:
        leaves: whether it leaves its Service without the webhook's advice, too.
    """
    reaction = arm.put(rule, hazard, advised)
    arm.wait("answered", lambda: arm.answering("api") == 1)
    arm.wait_ready("api", 1)
    arm.signal(signal.SIGSTOP, "api")
    began = time.monotonic()
    left: float | None = None
    if arm.webhook or leaves:
        left = arm.wait("out of the Service", lambda: arm.ready("api") == 0)
    if arm.webhook:
        arm.wait("restarted", lambda: arm.restarts("api") and arm.answering("api") and arm.ready("api"))
        restarted: float | None = time.monotonic() - began
    else:
        time.sleep(WATCHED)
        restarted = None
    return {
        "reaction": reaction,
        "left after": left,
        "restarted after": restarted,
        "ready": arm.ready("api"),
        "restarts": arm.restarts("api"),
        "answering": arm.answering("api"),
    }


def masked_hang(arm: Arm) -> Figures:
    """Only a readiness probe, of a kind that may not be mirrored."""
    asks = r"exec 3<>/dev/tcp/localhost/8000; printf 'GET /health HTTP/1.0\r\n\r\n' >&3; read -t 2 <&3"
    readiness = command("bash", "-c", asks, timeoutSeconds=5)
    own: JSON = {"image": UNKNOWN, "readinessProbe": readiness | {"periodSeconds": 5}}
    return _hang(
        arm,
        api(**own),
        api(**own, livenessProbe=http(periodSeconds=5, failureThreshold=6)),
        "readiness-without-liveness",
        leaves=True,
    )


def open_port(arm: Arm) -> Figures:
    """Probes that ask whether the port is open."""
    port = {"tcpSocket": {"port": 8000}, "periodSeconds": 5}
    return _hang(
        arm,
        api(readinessProbe=port, livenessProbe=port | {"failureThreshold": 6}),
        api(readinessProbe=http(periodSeconds=5), livenessProbe=http(periodSeconds=5, failureThreshold=6)),
        "tcp-probe",
        leaves=False,
    )


# Starts


def _slow_start(arm: Arm, own: dict[str, Any], advised: dict[str, Any], rule: str) -> Figures:
    """A server that loads for 45 s, next to one that loads for none, under probes that wait for 20."""
    began = time.monotonic()
    reaction = arm.put(
        rule,
        api("slow", env={"LOAD": 45}, **own),
        api("slow", env={"LOAD": 45}, **advised),
    )
    arm.create(api("quick", env={"LOAD": 0}, **own))
    answered: float | None = None
    control = False
    while answered is None and arm.restarts("slow") < 4 and time.monotonic() - began < 180:
        if arm.answering("slow"):
            answered = time.monotonic() - began
        control = control or bool(arm.answering("quick"))
        time.sleep(1)
    return {
        "reaction": reaction,
        "answered after": answered,
        "restarts": arm.restarts("slow"),
        "control answers": control,
        "control": arm.restarts("quick"),
    }


def slow_start(arm: Arm) -> Figures:
    """A liveness probe that waits for 20 s; the webhook adds a startup probe to it."""
    own = {
        "annotations": {"mlchassis.dev/expected-start": "45s"},
        "livenessProbe": http(initialDelaySeconds=5, periodSeconds=5, failureThreshold=3),
    }
    return _slow_start(arm, own, own, "liveness-kills-slow-start")


def short_startup(arm: Arm) -> Figures:
    """A startup probe that waits for 20 s; what the user wrote stays, so it is warned about."""
    expected = {"annotations": {"mlchassis.dev/expected-start": "45s"}}
    own = expected | {"startupProbe": http(periodSeconds=5, failureThreshold=4)}
    return _slow_start(arm, own, expected, "startup-kills-slow-start")


# Dependencies


def _asks(address: str, **timing: int) -> JSON:
    """A probe that asks the feature store."""
    return command("bash", "-c", f"exec 3<>/dev/tcp/{address}/80", timeoutSeconds=5, **timing)


def _store_down(arm: Arm) -> None:
    arm.kubectl("scale", "deployment/features", "--replicas=0")
    arm.wait("the store gone", lambda: not arm.pods("features"))


def feature_store(arm: Arm) -> Figures:
    """The liveness probe of three replicas asks a feature store, which is down."""
    store = arm.service("features")
    arm.create(api("features"))
    arm.wait_ready("features", 1)
    liveness = _asks(store, periodSeconds=5, failureThreshold=3)
    reaction = arm.put(
        "liveness-external-dependency", api(replicas=3, livenessProbe=liveness), api(replicas=3)
    )
    arm.wait_ready("api", 3)
    before = arm.restarts("api")
    _store_down(arm)
    began = time.monotonic()
    hit: set[str] = set()
    # Without the webhook, until it has hit them all.
    while time.monotonic() - began < (WATCHED if arm.webhook else PATIENCE) and len(hit) < 3:
        for item in arm.pods("api"):
            if any(it["restartCount"] for it in item["status"].get("containerStatuses", ())):
                hit.add(item["metadata"]["name"])
        time.sleep(1)
    return {
        "reaction": reaction,
        "before": before,
        "after": time.monotonic() - began,
        "replicas restarted": len(hit),
        "restarts": arm.restarts("api"),
    }


def store_for_readiness(arm: Arm) -> Figures:
    """The readiness probe of three replicas asks the feature store."""
    store, address = arm.service("features"), arm.service("api")
    arm.create(api("features"))
    arm.wait_ready("features", 1)
    readiness = _asks(store, periodSeconds=5, failureThreshold=3)
    reaction = arm.put(
        "readiness-external-dependency",
        api(replicas=3, readinessProbe=readiness),
        api(replicas=3, readinessProbe=http(periodSeconds=5, timeoutSeconds=5)),
    )
    arm.wait_ready("api", 3)
    arm.wait("answered", lambda: ask(address, 80, "/health"))
    with Traffic(address, rate=4, path="/health") as traffic:
        time.sleep(10)
        _store_down(arm)
        down = traffic.now
        time.sleep(WATCHED)
        end = traffic.now
        ready = arm.ready("api")
    return {
        "reaction": reaction,
        "before": traffic.share(0, 10),
        "at the end": traffic.share(max(down, end - 20), end - 2),
        "ready": ready,
    }


def store_for_startup(arm: Arm) -> Figures:
    """The startup probe of a pod asks the feature store, which is away when the pod starts."""
    store = arm.service("features")
    startup = _asks(store, periodSeconds=5, failureThreshold=4)
    reaction = arm.put("startup-external-dependency", api(startupProbe=startup), api())
    if arm.webhook:
        return {
            "reaction": reaction,
            "ready after": arm.wait_ready("api", 1),
            "restarts": arm.restarts("api"),
        }
    arm.wait("restarted", lambda: arm.restarts("api"))
    ready, restarts = arm.ready("api"), arm.restarts("api")
    arm.create(api("features"))
    arm.wait_ready("features", 1)
    again = arm.wait_ready("api", 1)
    return {
        "reaction": reaction,
        "ready": ready,
        "restarts": restarts,
        "ready once the store is there": again,
    }


# Load


def strict_liveness(arm: Arm) -> Figures:
    """A minute of overload, and a liveness probe that gives up as soon as readiness does."""
    strict = http(periodSeconds=5, failureThreshold=3, timeoutSeconds=1)
    slow = {"POOL": 8, "WORK": 3}
    address = arm.service("api")
    reaction = arm.put(
        "liveness-as-strict-as-readiness",
        api(replicas=2, env=slow, livenessProbe=strict, readinessProbe=strict),
        api(replicas=2, env=slow),
    )
    arm.wait_ready("api", 2)
    overload(address, 40, seconds=60, timeout=60)
    restarts = arm.restarts("api")
    arm.wait_ready("api", 2)
    return {"reaction": reaction, "restarts": restarts, "after": arm.restarts("api")}


def one_failure(arm: Arm) -> Figures:
    """A server that pauses for 8 s, as for garbage collection."""
    probe = http(initialDelaySeconds=10, periodSeconds=5, timeoutSeconds=2)
    reaction = arm.put(
        "liveness-single-failure",
        api(livenessProbe=probe | {"failureThreshold": 1}),
        api(livenessProbe=probe | {"failureThreshold": 3}),
    )
    arm.wait("answered", lambda: arm.answering("api") == 1)
    arm.wait_ready("api", 1)
    time.sleep(15)
    before = arm.restarts("api")
    arm.signal(signal.SIGSTOP, "api")
    time.sleep(8)
    arm.signal(signal.SIGCONT, "api")
    time.sleep(30)
    arm.wait("answered", lambda: arm.answering("api") == 1)
    return {"reaction": reaction, "before": before, "restarts": arm.restarts("api") - before}


def busy_exec(arm: Arm) -> Figures:
    """A container that uses up its CPU limit, under a command as liveness probe with the default timeout."""
    limits = {"limits": {"cpu": "200m"}}
    asks = command("python3", "-c", "import socket; socket.create_connection(('localhost', 8000))")
    reaction = arm.put(
        "exec-probe-default-timeout",
        api(resources=limits, livenessProbe=asks | {"periodSeconds": 5}),
        api(resources=limits),
    )
    arm.wait("answered", lambda: arm.answering("api") == 1)
    arm.wait_ready("api", 1)
    before = arm.restarts("api")
    (item,) = arm.pods("api")
    assert ask(item["status"]["podIP"], 8000, "/burn", timeout=30)
    time.sleep(WATCHED)
    return {"reaction": reaction, "before": before, "restarts": arm.restarts("api") - before}


def heavy_probe(arm: Arm) -> Figures:
    """A liveness probe that checksums the weights; next to it the same one with small weights."""

    def weighing(name: str, size: str, probe: JSON) -> JSON:
        mount = {"name": "weights", "mountPath": "/weights"}
        item = api(
            name,
            livenessProbe=probe | {"periodSeconds": 10, "timeoutSeconds": 5},
            resources={"limits": {"cpu": "500m"}},
            volumeMounts=[mount],
        )
        spec = pod_of(item)
        spec["volumes"] = [{"name": "weights", "emptyDir": {}}]
        fill = ["truncate", f"--size={size}", "/weights/model"]  # sparse: it reads like any other
        spec["initContainers"] = [{"name": "fill", "image": BASE, "command": fill, "volumeMounts": [mount]}]
        return item

    checksum = command("sha256sum", "/weights/model")
    advised = command("test", "-s", "/weights/model")
    reaction = arm.put("probe-heavy-command", weighing("api", "2G", checksum), weighing("api", "2G", advised))
    if not arm.webhook:
        arm.create(weighing("small", "1M", checksum))
    arm.wait_ready("api", 1)
    time.sleep(WATCHED + 30)
    return {"reaction": reaction, "restarts": arm.restarts("api"), "control": arm.restarts("small")}


def inner_timeout(arm: Arm) -> Figures:
    """A probe that waits for two answers, up to 4 s for each; each takes 3."""
    once = f'timeout 4 python3 -c "{python_get("http://localhost:8000/predict").replace("=2", "=9")}"'
    probe = command("sh", "-c", f"{once} && {once}", periodSeconds=10, failureThreshold=3)
    slow = {"WORK": 1.5, "POOL": 8}
    reaction = arm.put(
        "probe-inner-timeout",
        api(env=slow, livenessProbe=probe | {"timeoutSeconds": 5}),
        api(env=slow, livenessProbe=probe | {"timeoutSeconds": 20, "periodSeconds": 20}),
    )
    arm.wait("answered", lambda: arm.answering("api") == 1)
    time.sleep(WATCHED)
    return {"reaction": reaction, "restarts": arm.restarts("api")}


def wrong_port(arm: Arm) -> Figures:
    """A readiness probe on Triton's port for metrics."""

    def triton(port: str) -> JSON:
        return api(
            image=TRITON,
            args=["tritonserver", "--model-repository=/models"],
            ports=[{"name": "http", "containerPort": 8000}, {"name": "metrics", "containerPort": 8002}],
            readinessProbe={"httpGet": {"path": "/v2/health/ready", "port": port}, "periodSeconds": 5},
        )

    return _readiness(arm, arm.put("probe-wrong-port", triton("metrics"), triton("http")))


def unknown_port(arm: Arm) -> Figures:
    """A readiness probe on a port by a name that the container does not have."""

    def asking(port: str) -> JSON:
        return api(
            ports=[{"name": "http", "containerPort": 8000}],
            readinessProbe={"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1},
        )

    return _readiness(arm, arm.put("probe-port-unknown", asking("web"), asking("http")))


def _readiness(arm: Arm, reaction: str) -> Figures:
    """Whether a pod whose server answers gets ready."""
    arm.wait("answered", lambda: arm.answering("api") == 1)
    return readiness(arm, reaction)


def target_port(arm: Arm) -> Figures:
    """A Service that sends to a port by a name that the container does not have."""
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    spec = {"selector": {"app": "api"}, "ports": ports}
    arm.create(manifest("Service", "api", spec))

    def named(port: str) -> JSON:
        return api(ports=[{"name": port, "containerPort": 8000}])

    reaction = arm.put("service-port-unknown", named("http"), named("web"))
    arm.wait_ready("api", 1)
    address = str(arm.node.api.get("services", "api", arm.namespace)["spec"]["clusterIP"])
    if arm.webhook:
        return {
            "reaction": reaction,
            "answered after": arm.wait("answered", lambda: ask(address, 80, "/health")),
        }
    time.sleep(WATCHED)
    return {"reaction": reaction, "answered": int(ask(address, 80, "/health"))}
