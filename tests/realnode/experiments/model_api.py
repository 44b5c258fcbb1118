"""What the experiments share: the model API of `images/model-server`, and the shape of their figures."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.api import JSON
from tests.e2e.node import images
from tests.realnode.arms import Arm

Figures = dict[str, Any]
BASE = images.base_name()
WATCHED = 45
"""Seconds for which a hazard is watched that does not end by itself."""


def http(path: str = "/health", **timing: int) -> JSON:
    """A probe of the model API."""
    return {"httpGet": {"path": path, "port": 8000}, **timing}


def command(*words: str, **timing: int) -> JSON:
    """A probe that runs a command in the container."""
    return {"exec": {"command": list(words)}, **timing}


def python_get(url: str) -> str:
    """Python code that asks a URL and fails unless it is answered."""
    return f"import urllib.request as u; u.urlopen('{url}', timeout=2)"


def connects(host: str, port: int) -> str:
    """A shell's word for a connection to a port, for images without any client."""
    return f'bash -c "exec 3<>/dev/tcp/{host}/{port}"'


def pod_of(workload: JSON) -> JSON:
    """The pod's spec in a workload, to be changed."""
    spec: JSON = workload["spec"]["template"]["spec"]
    return spec


def named(workload: JSON, address: str, *hosts: str) -> JSON:
    """The workload, its pods knowing names of an address: this cluster has no name server."""
    pod_of(workload).setdefault("hostAliases", []).append({"ip": address, "hostnames": list(hosts)})
    return workload


def readiness(arm: Arm, reaction: str, name: str = "api", count: int = 1) -> Figures:
    """When so many pods of an app are ready; without the webhook, how many are after `WATCHED` seconds."""
    if arm.webhook:
        return {"reaction": reaction, "ready after": arm.wait_ready(name, count)}
    time.sleep(WATCHED)
    return {"reaction": reaction, "ready": arm.ready(name)}
