"""A server that is ready only with its workers, which find it by a Service.

Kubelet, endpoints and Service are real; the programs `ray` and `vllm` are stand-ins."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.e2e.api import JSON
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.manifests import manifest
from tests.realnode.arms import Arm, api, arms
from tests.realnode.experiments.model_api import BASE, WATCHED, http, pod_of

pytestmark = pytest.mark.realnode

SERVES: Final = """#!/usr/local/bin/python3
import http.server

class Server(http.server.BaseHTTPRequestHandler):
    joined = False

    def do_GET(self):
        Server.joined |= self.path == "/join"
        self.send_response(200 if Server.joined else 503)
        self.end_headers()

http.server.ThreadingHTTPServer(("", 8000), Server).serve_forever()
"""
"""`vllm`: /health answers 503 until a worker has joined."""
JOINS: Final = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(f"http://{sys.argv[1]}/join", timeout=2)
        break
    except OSError:
        time.sleep(1)
time.sleep(3600)
"""
PYTHON: Final = "/usr/local/bin/python3"


def head(probe: JSON | None = None) -> JSON:
    """The Deployment of the server, with the stand-ins first in its path, and its readinessProbe."""
    script = "ray start --head --port=6379 && exec vllm serve toy --pipeline-parallel-size 2"
    path = {"PATH": "/opt/toy:/usr/local/bin:/usr/bin:/bin"}
    workload = api("head", env=path, annotations={}, image=BASE, command=["sh", "-c", script])
    spec = pod_of(workload)
    spec["volumes"] = [{"name": "stand-ins", "configMap": {"name": "stand-ins", "defaultMode": 0o555}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "stand-ins", "mountPath": "/opt/toy"}]
    if probe is not None:
        spec["containers"][0]["readinessProbe"] = probe
    return workload


def start(arm: Arm, server: JSON) -> None:
    """The server, its Service, and a worker that joins it there."""
    programs = {"vllm": SERVES, "ray": "#!/bin/sh\n"}
    arm.create({**manifest("ConfigMap", "stand-ins"), "data": programs})
    address = arm.service("head")
    arm.create(server)
    worker = api("worker", image=BASE, command=[PYTHON, "-c", JOINS, address], ports=[], annotations={})
    arm.create(worker)


def test_a_group_forms_although_its_server_waits_for_it(node: RealNode, webhook: Webhook) -> None:
    """Without a readinessProbe, which the webhook does not add; with the author's the group never forms."""
    with_, without = arms(node, "group")
    try:
        start(without, head(http("/health", periodSeconds=2)))
        start(with_, head())
        took = with_.wait("a worker joined", lambda: with_.answering("head") == 1)
        (pod,) = with_.pods("head")
        container = pod["spec"]["containers"][0]
        assert "livenessProbe" in container, "the webhook knows the server"
        assert "readinessProbe" not in container
        without.wait("started", lambda: without.pods("head"))
        time.sleep(WATCHED)
        assert (without.ready("head"), without.answering("head")) == (0, 0)
        print(f"\njoined after {took:.0f} s, with a readinessProbe not in {WATCHED} s")
    finally:
        for arm in (with_, without):
            node.api.delete("namespaces", arm.namespace)
