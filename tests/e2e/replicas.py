"""The webhook's own pods as real processes: the test plays their kubelets and kube-proxy.

On a control plane whose nodes are fake, the real controllers roll the Deployment out. For each of its pods
this module starts `chassis serve` from the tree that the image's tag names, as the pod's ServiceAccount,
reports its readiness, and ends it as the kubelet does: preStop, SIGTERM, then the pod is gone. The API server
calls the shipped Service: it dials through an egress proxy, which leads to an endpoint that is ready.
"""

from __future__ import annotations

import json
import os
import random
import socket
import socketserver
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.error import URLError

from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import FAKE_NODE, HOST, ControlPlane
from tests.e2e.install import NAMESPACE, UNVERIFIED, environment_of, expanded
from tests.e2e.processes import Process, free_port
from tests.e2e.status import rolled_out
from tests.e2e.tunnels import tunnel

SELECTOR = "app.kubernetes.io/name=mlchassis"
PACE = 0.2
"""Seconds between two looks at the pods and their readiness."""
RUNS_OTHERS = {"key": "mlchassis.dev/others", "operator": "Exists"}
"""The taint, as a toleration, of the nodes on which the webhook does not run."""
ON_OTHERS: JSON = {"tolerations": [RUNS_OTHERS], "nodeSelector": FAKE_NODE}
"""What a pod's spec needs to run there."""


class Dialled(ControlPlane):
    """A control plane whose API server dials webhooks through a proxy of the test."""

    def _api_server_flags(self) -> list[str]:
        self.proxy = self.state / "egress.sock"
        connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(self.proxy)}}}
        selection: JSON = {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }
        written = self._write("egress.json", json.dumps(selection).encode())
        return [*super()._api_server_flags(), f"--egress-selector-config-file={written}"]


class Replicas:
    """Runs the pods of the webhook's Deployment; use it as a context manager.

    Args:
        control_plane: a running one.
        trees: the directory with the code for each tag of the image.
    """

    def __init__(self, control_plane: Dialled, trees: Mapping[str, Path]) -> None:
        self.control_plane, self._trees = control_plane, trees
        self._pods: dict[str, _Replica] = {}
        self._stopped = threading.Event()
        self._failures: list[BaseException] = []
        self._endpoints: list[int] = []
        self._kubelet = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._proxy = _Proxy(str(control_plane.proxy), self._endpoint)

    def __enter__(self) -> Self:
        for name in ("webhook-0", "webhook-1"):
            self.control_plane.add_node(name, runs_pods=False)
        taint = {"key": RUNS_OTHERS["key"], "effect": "NoSchedule"}
        self.control_plane.add_node("others", taints=[taint], capacity={"pods": "5000", "cpu": "9000"})
        self._kubelet.start()
        threading.Thread(target=self._proxy.serve_forever, name="egress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._kubelet.join()
        self._proxy.shutdown()
        self._proxy.server_close()
        for replica in self._pods.values():
            replica.process.kill()

    def wait(self, tag: str, timeout: float = 240) -> None:
        """Wait until the Deployment runs only this image, with every replica ready."""

        def runs(deployment: JSON) -> bool:
            (container,) = deployment["spec"]["template"]["spec"]["containers"]
            return rolled_out(deployment) and str(container["image"]).endswith(f":{tag}")

        api = self.control_plane.api
        api.wait("deployments", "mlchassis", runs, namespace=NAMESPACE, timeout=timeout)
        api.wait_for(
            "pods", lambda pods: len(pods) == 2, namespace=NAMESPACE, labels=SELECTOR, timeout=timeout
        )
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._failures:
            raise AssertionError("the kubelet of the test failed") from self._failures[0]

    # What a kubelet does

    def _run(self) -> None:
        # A process dies with the thread that started it, so this one starts all of them.
        while not self._stopped.wait(PACE):
            try:
                self._look()
            except (ApiError, OSError) as error:
                if not self._stopped.is_set():
                    print(f"kubelet: {error}", file=sys.stderr)
            except BaseException as error:
                self._failures.append(error)
                raise

    def _look(self) -> None:
        api = self.control_plane.api
        pods = {pod["metadata"]["uid"]: pod for pod in api.items("pods", NAMESPACE, SELECTOR)}
        for uid in set(self._pods) - set(pods):
            self._pods.pop(uid).process.kill()
        for uid, pod in pods.items():
            if uid not in self._pods:
                if "nodeName" not in pod["spec"] or "deletionTimestamp" in pod["metadata"]:
                    continue
                self._pods[uid] = _Replica(self.control_plane, pod, self._trees)
            if self._pods[uid].step(pod):
                api.delete("pods", pod["metadata"]["name"], NAMESPACE, grace=0)
        self._endpoints = self._ready_ports()

    def _ready_ports(self) -> list[int]:
        slices = self.control_plane.api.items(
            "endpointslices.discovery.k8s.io", NAMESPACE, "kubernetes.io/service-name=mlchassis"
        )
        by_address = {replica.address: replica.port for replica in self._pods.values()}
        return [
            by_address[endpoint["addresses"][0]]
            for item in slices
            for endpoint in item.get("endpoints") or ()
            if endpoint["conditions"].get("ready") and endpoint["addresses"][0] in by_address
        ]

    def _endpoint(self) -> int | None:
        endpoints = self._endpoints
        return random.choice(endpoints) if endpoints else None


class _Replica:
    """One pod of the webhook and its process."""

    _count = 0

    def __init__(self, control_plane: ControlPlane, pod: JSON, trees: Mapping[str, Path]) -> None:
        _Replica._count += 1
        self._control_plane = control_plane
        self.port, self.address = free_port(), f"10.244.0.{_Replica._count}"
        self._ready: bool | None = None
        self._deadline: float | None = None
        self._ending = False
        (container,) = pod["spec"]["containers"]
        tree = trees[container["image"].rpartition(":")[2]]
        account = pod["spec"]["serviceAccountName"]
        fields = {"spec.nodeName": pod["spec"]["nodeName"]}
        environment = environment_of(container, fields)
        arguments = expanded(container["args"], environment)
        inherited = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        self.process = Process(
            pod["metadata"]["name"],
            [
                sys.executable, "-P", "-m", "webhook.cli", *arguments,
                f"--kubeconfig={control_plane.service_account(NAMESPACE, account)}",
                f"--host={HOST}",
                f"--port={self.port}",
            ],
            control_plane.logs / f"{pod['metadata']['name']}.log",
            inherited | environment | {"PYTHONPATH": str(tree)},
        )  # fmt: skip

    def step(self, pod: JSON) -> bool:
        """Go on with the pod's life; whether it is over."""
        if "deletionTimestamp" in pod["metadata"]:
            return self._end(pod)
        ready = self._is_ready()
        if ready != self._ready:
            self._ready = ready
            self._report(pod, ready)
        return False

    def _end(self, pod: JSON) -> bool:
        if self._deadline is None:
            command = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            assert command[0] == "sleep", command
            self._deadline = time.monotonic() + float(command[1])
        if not self._ending and time.monotonic() >= self._deadline:
            self._ending = True
            self.process.signal_end()
        return not self.process.running

    def _is_ready(self) -> bool:
        url = f"https://{HOST}:{self.port}/readyz"
        with (
            suppress(URLError, OSError),
            urllib.request.urlopen(url, context=UNVERIFIED, timeout=2) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def _report(self, pod: JSON, ready: bool) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        conditions = [
            {"type": kind, "status": str(value), "lastTransitionTime": now}
            for kind, value in (
                ("PodScheduled", True), ("Initialized", True), ("ContainersReady", ready), ("Ready", ready),
            )
        ]  # fmt: skip
        (container,) = pod["spec"]["containers"]
        status = {
            "phase": "Running",
            "startTime": now,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": "10.1.0.1",
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": container["name"], "image": container["image"], "imageID": "", "ready": ready,
                    "started": True, "restartCount": 0, "state": {"running": {"startedAt": now}},
                }
            ],
        }  # fmt: skip
        self._control_plane.api.patch(
            "pods", pod["metadata"]["name"], {"status": status}, NAMESPACE, "status"
        )


# --- kube-proxy ----------------------------------------------------------------------------------------


class _Proxy(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An HTTP CONNECT proxy: every address but this machine's own leads to the webhook's Service."""

    daemon_threads = True

    def __init__(self, path: str, endpoint: Callable[[], int | None]) -> None:
        self.endpoint = endpoint
        super().__init__(path, _Tunnel)


class _Tunnel(socketserver.BaseRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            received = self.request.recv(4096)
            if not received:
                return
            head += received
        host, _, port = head.split()[1].decode().rpartition(":")
        to = int(port) if host == HOST else self.server.endpoint()
        try:
            there = socket.create_connection((HOST, to or 0), 5)  # port 0 has no listener
        except OSError:
            self.request.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            return
        there.settimeout(None)
        self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with there:
            tunnel(self.request, there)
