"""What a pod waits for before it is ready."""

from __future__ import annotations

import time

from tests.e2e.api import JSON
from tests.e2e.workloads import UNKNOWN
from tests.manifests import manifest
from tests.realnode.arms import Arm, api, unaliased
from tests.realnode.experiments.model_api import (
    BASE,
    WATCHED,
    Figures,
    command,
    connects,
    http,
    named,
    pod_of,
    python_get,
    readiness,
)

RAY = """\
#!/bin/sh
# Ray as far as a container sees it: what it starts runs in the background, unless --block is given.
case "$*" in *--block*) exec sleep 86400 ;; esac
sleep 86400 &
"""


def waiting(name: str, wait: str) -> JSON:
    """The model API behind an init container that runs a line of shell."""
    item = api(name)
    pod_of(item)["initContainers"] = [{"name": "wait", "image": BASE, "command": ["sh", "-c", wait]}]
    return item


def own_service(arm: Arm) -> Figures:
    """An init container that waits for the Service of its own pod."""

    def until(name: str, address: str, host: str) -> JSON:
        once = python_get(f"http://{host}/health")
        return named(waiting(name, f'until python3 -c "{once}"; do sleep 1; done'), address, host)

    own, other = arm.service("api"), arm.service("other")
    arm.create(api("other"))
    arm.wait_ready("other", 1)
    arm.create(until("control", other, "other"))
    reaction = arm.put("init-waits-on-own-service", until("api", own, "api"), api())
    took = arm.wait_ready("control", 1)
    return readiness(arm, reaction) | {"control ready after": took}


def wait_cycle(arm: Arm) -> Figures:
    """Two workloads whose init containers wait for each other's Services."""
    addresses = {name: arm.service(name) for name in ("gateway", "model")}

    def until(name: str, other: str) -> JSON:
        once = python_get(f"http://{other}/health")
        made = waiting(name, f'until python3 -c "{once}"; do sleep 1; done')
        return named(made, addresses[other], other)

    reaction = ""
    if arm.webhook:
        arm.create(unaliased(until("gateway", "model")))
        reaction = arm.verdict("startup-wait-cycle", until("model", "gateway"))
        arm.kubectl("delete", "deployment/gateway")
    arm.create(until("gateway", "model"), api("model") if arm.webhook else until("model", "gateway"))
    if arm.webhook:
        return {"reaction": reaction, "ready after": arm.wait_ready("gateway", 1)}
    time.sleep(WATCHED)
    return {"reaction": reaction, "ready": arm.ready("gateway") + arm.ready("model")}


def own_pod(arm: Arm) -> Figures:
    """An init container that waits for a server of its own pod."""
    wait = f"until {connects('localhost', 8000)}; do sleep 1; done"
    hazard = waiting("api", wait)
    advised = waiting("api", wait)
    spec = pod_of(advised)
    (server,) = spec["containers"]
    spec["initContainers"].insert(0, server | {"restartPolicy": "Always"})
    spec["containers"] = [{"name": "web", "image": BASE, "command": ["sleep", "86400"]}]
    reaction = arm.put("init-waits-on-own-pod", hazard, advised)
    return readiness(arm, reaction)


def endless_wait(arm: Arm) -> Figures:
    """An init container that waits for a database that is not there; who would notice?"""
    address = arm.service("database")

    def until(before: str) -> JSON:
        loop = f"until {connects('database', 80)}; do sleep 1; done"
        return named(waiting("api", f"{before} sh -c '{loop}'" if before else loop), address, "database")

    rule, hazard = "init-wait-unbounded", until("")
    if arm.webhook:  # until its watch has the Service, it warns about a host without one
        arm.wait("the Service is known", lambda: not arm.reaction(rule, unaliased(hazard)))
    reaction = arm.put(rule, hazard, until("timeout 10"))

    def tries() -> int:
        status = [item["status"].get("initContainerStatuses", ()) for item in arm.pods("api")]
        return sum(it["restartCount"] for found in status for it in found)

    def warned() -> int:
        return sum(it["reason"] == "BackOff" for it in arm.node.api.items("events", arm.namespace))

    if arm.webhook:
        arm.wait("seen", lambda: tries() and warned())
    else:
        time.sleep(WATCHED)
    seen, events = tries(), warned()
    arm.create(api("database"))
    return {"reaction": reaction, "tries": seen, "warnings": events, "ready after": arm.wait_ready("api", 1)}


def ordered_start(arm: Arm) -> Figures:
    """A StatefulSet whose first pod waits for its second."""
    arm.node.api.create(
        manifest(
            "Service", "shard", {"clusterIP": "None", "selector": {"app": "shard"}, "ports": [{"port": 8000}]}
        ),
        arm.namespace,
    )
    # What a name server would answer for each pod's name, by a Service that shows it when it is ready.
    addresses = {
        f"shard-{n}": arm.service(f"shard-{n}", {"statefulset.kubernetes.io/pod-name": f"shard-{n}"})
        for n in range(2)
    }

    def made(wait: str) -> JSON:
        item = waiting("shard", wait)
        for host, address in addresses.items():
            named(item, address, f"{host}.shard")
        item["kind"] = "StatefulSet"
        item["spec"] |= {"serviceName": "shard", "replicas": 2}
        return item

    def until(host: str) -> str:
        return f"until {connects(f'{host}.shard', 80)}; do sleep 1; done"

    lower = 'n=${HOSTNAME##*-}; [ "$n" = 0 ] || ' + until("shard-$((n-1))")
    reaction = arm.put("ordered-start-deadlock", made(until("shard-1")), made(lower))
    return readiness(arm, reaction, "shard", 2) | {"pods": len(arm.pods("shard"))}


def asks_itself(arm: Arm) -> Figures:
    """A readiness probe that asks the Service of its own pod."""
    address = arm.service("api")

    def asking(probe: JSON) -> JSON:
        return named(api(replicas=2, readinessProbe=probe | {"periodSeconds": 5}), address, "api")

    through = command("bash", "-c", "exec 3<>/dev/tcp/api/80", timeoutSeconds=5)
    reaction = arm.put("readiness-waits-on-own-service", asking(through), asking(http()))
    found = readiness(arm, reaction, "api", 2)
    if arm.webhook:
        return found
    shown = {"spec": {"publishNotReadyAddresses": True}}
    arm.node.api.patch("services", "api", shown, arm.namespace)
    return found | {"ready once shown": arm.wait_ready("api", 2)}


def ray_in_background(arm: Arm) -> Figures:
    """A container whose command starts Ray in the background, and ends."""
    arm.create(manifest("ConfigMap", "tools", data={"ray": RAY}))

    def starting(*more: str) -> JSON:
        item = api(
            "ray",
            image=UNKNOWN,
            command=["/tools/ray", "start", "--address=ray-head:6379", *more],
            ports=[],
            volumeMounts=[{"name": "tools", "mountPath": "/tools"}],
        )
        pod_of(item)["volumes"] = [{"name": "tools", "configMap": {"name": "tools", "defaultMode": 0o555}}]
        return item

    reaction = arm.put("ray-start-without-block", starting(), starting("--block"))
    arm.wait("running", lambda: any(it["status"]["phase"] == "Running" for it in arm.pods("ray")))
    time.sleep(WATCHED)
    return {"reaction": reaction, "restarts": arm.restarts("ray")}
