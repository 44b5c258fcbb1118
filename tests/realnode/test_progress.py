"""Liveness by progress on a real node: the kubelet runs the injected program in containers of every kind.

The servers are stand-ins; `make vllm` tries a real vLLM.
"""

from __future__ import annotations

import time
import zlib
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.manifests import manifest
from tests.realnode.arms import PATIENCE
from tests.realnode.experiments.model_api import BASE
from tests.servers.server import probes_of

pytestmark = pytest.mark.realnode

ENGINE = Path(__file__).with_name("engine.py").read_text()
WATCHED = 130
"""Seconds for which pods are watched: more than the program's patience, after a hang at 40 s."""
STRICT = {"initialDelaySeconds": 20, "periodSeconds": 3, "failureThreshold": 1}
"""One failure restarts the container. The delay stands in for a startup probe."""


def progress_probe() -> JSON:
    """The livenessProbe that the webhook gives a vLLM whose API key is in a Secret."""
    container = {
        "name": "server",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model=toy", "--api-key=$(KEY)"],
        "env": [key()],
        "ports": [{"containerPort": 8000}],
    }
    probe: JSON = probes_of(container)["livenessProbe"]
    assert "exec" in probe
    return probe


def key() -> JSON:
    return {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}


def impatient() -> str:
    """A host name for which the program waits as short as it ever does."""
    return next(name for name in (f"engine-{n}" for n in count()) if zlib.crc32(name.encode()) % 60 == 0)


def pod(name: str, probe: JSON | None, env: dict[str, str] | None = None, **container: Any) -> JSON:
    """A pod with the stand-in; further fields go to its container, those of the pod to `spec`."""
    variables = [key(), *({"name": each, "value": value} for each, value in (env or {}).items())]
    server = {
        "name": "server",
        "image": BASE,
        "command": ["/usr/local/bin/python3", "-c", ENGINE],
        "env": variables,
        **container,
    }
    if probe is not None:
        server["livenessProbe"] = probe
    spec: JSON = {
        "containers": [server],
        "hostname": impatient(),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }
    return manifest("Pod", name, spec)


@pytest.fixture
def keyed(node: RealNode, bare: str) -> str:
    """A namespace with the Secret of the API key."""
    secret = manifest("Secret", "key")
    node.api.create({**secret, "stringData": {"key": "it's $HOME `x`"}}, bare)
    return bare


def running(node: RealNode, namespace: str, name: str) -> JSON:
    """The pod, as soon as its container runs."""

    def runs(item: JSON) -> bool:
        return any("running" in it["state"] for it in item["status"].get("containerStatuses", ()))

    return node.api.wait("pods", name, runs, namespace=namespace, timeout=PATIENCE)


def restarts(node: RealNode, namespace: str, name: str) -> int:
    (status,) = node.api.get("pods", name, namespace)["status"]["containerStatuses"]
    return int(status["restartCount"])


def events(node: RealNode, namespace: str, name: str) -> str:
    """kubelet's events about a pod."""
    found = node.api.items("events", namespace)
    return "\n".join(it["message"] for it in found if it["involvedObject"]["name"] == name)


def logs(node: RealNode, namespace: str, name: str) -> str:
    return node.kubectl("-n", namespace, "logs", name).stdout


def test_the_probe_in_containers_of_every_kind(node: RealNode, keyed: str) -> None:
    """A server that works is never restarted, in any container; one that hangs is."""
    probe = progress_probe() | STRICT
    locked = {
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    idle = pod("idle", probe, securityContext=locked)
    hung = pod("hung", probe, {"HANG": "40"}, securityContext=locked)
    only = {"name": "only", "mountPath": "/only"}
    no_python = pod("no-python", probe, {"HANG": "0", "PATH": "/only"}, volumeMounts=[only])
    no_python["spec"]["volumes"] = [{"name": "only", "emptyDir": {}}]
    copy = {"name": "copy", "image": BASE, "command": ["cp", "/bin/sh", "/only/"], "volumeMounts": [only]}
    no_python["spec"]["initContainers"] = [copy]
    no_shell = pod("no-shell", probe, {"HANG": "0", "PATH": "/nowhere"})
    tight = pod(
        "tight", probe | {"failureThreshold": 3}, {"BURN": "4"}, resources={"limits": {"cpu": "100m"}}
    )
    patient = progress_probe() | {"periodSeconds": 3, "timeoutSeconds": 3, "failureThreshold": 1000}
    slow = pod("slow", patient, {"SILENT": "0"})
    pods = {it["metadata"]["name"]: it for it in (idle, hung, no_python, no_shell, tight, slow)}
    for item in pods.values():
        node.api.create(item, keyed)
    started = {name: running(node, keyed, name) for name in pods}
    began, most = time.monotonic(), 0
    while time.monotonic() < began + PATIENCE and not (
        restarts(node, keyed, "hung") and time.monotonic() > began + WATCHED
    ):
        most = max(most, len(node.pids(started["slow"], "python3 -I")))
        time.sleep(1)

    messages = {name: events(node, keyed, name) for name in pods}
    seen = {name: restarts(node, keyed, name) for name in pods}
    assert seen["hung"] >= 1
    assert "a request gets no answer" in messages["hung"]
    described = node.kubectl("-n", keyed, "describe", "pod", "hung").stdout
    assert "mlchassis liveness, at " in described, "the reason outlives the container, without any right"
    assert "it showed: done " in described
    assert {name: times for name, times in seen.items() if name != "hung"} == dict.fromkeys(
        pods.keys() - {"hung"}, 0
    )
    asked = logs(node, keyed, "idle").splitlines()
    assert "POST /v1/completions known" in asked
    assert not any("unknown" in line for line in asked)
    assert "Liveness" not in messages["no-python"], "the shell passes"
    assert "Liveness probe errored" in messages["no-shell"], "kubelet drops what the runtime cannot start"
    # The kubelet gives up on a slow probe before the program does: the remaining processes end by themselves.
    assert "timed out" in messages["slow"]
    assert most <= 2 * (25 // 3 + 2), "none outlives its own deadline"
