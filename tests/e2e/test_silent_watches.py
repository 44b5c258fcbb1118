"""Connections to the API server that have become silent, in a cluster with few changes."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.api import Api
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import Chassis

pytestmark = pytest.mark.e2e
SEEN = 60.0
"""Seconds; twice the promised time, for a busy machine. Without the heartbeat it takes 75 s or more."""
STRICT = {"rules.yaml": "profile: strict\n"}
BEATS = 12.0
"""Seconds in which the Lease of a node is renewed at least once."""


class Frozen(socketserver.ThreadingTCPServer):
    """A TCP proxy; connections that are open when it freezes stay open, and bring nothing any more."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.frozen = threading.Event()
        super().__init__((HOST, 0), _Tunnel)

    def freeze(self) -> None:
        """Open connections are silent from now on; later ones work."""
        self.frozen.set()
        self.frozen = threading.Event()


class _Tunnel(socketserver.BaseRequestHandler):
    server: Frozen

    def handle(self) -> None:
        frozen = self.server.frozen
        with socket.create_connection((HOST, self.server.upstream)) as there:
            back = threading.Thread(target=_copy, args=(there, self.request, frozen), daemon=True)
            back.start()
            _copy(self.request, there, threading.Event())
            back.join()


def _copy(source: socket.socket, target: socket.socket, frozen: threading.Event) -> None:
    try:
        while data := source.recv(65536):
            if not frozen.is_set():
                target.sendall(data)
        if not frozen.is_set():
            target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def frozen(control_plane: ControlPlane) -> Iterator[Frozen]:
    with Frozen(control_plane.port) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[ControlPlane]:
    """A new control plane: in the session's, other tests change things."""
    with ControlPlane(tmp_path / "quiet") as running:
        running.add_node("node-0")
        yield running


def add_old_node(api: Api) -> None:
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "old"},
            "status": {"nodeInfo": {"kubeletVersion": "v1.29.15"}},
        }
    )


def test_silent_connections_hide_neither_policy_nor_facts(quiet: ControlPlane) -> None:
    chassis = Chassis(quiet)
    chassis.install()
    with frozen(quiet) as proxy:
        quiet.url = f"https://{HOST}:{proxy.server_address[1]}"  # what kubeconfigs name from here on
        chassis.start()
        try:
            chassis.wait_metric("chassis_facts_synced", 1, resource="nodes")
            digests = policies(chassis)
            time.sleep(BEATS)
            proxy.freeze()
            add_old_node(quiet.api)
            began = time.monotonic()
            chassis.process.wait_until(lambda: chassis.metric("chassis_oldest_kubelet_minor") == 29, SEEN)
            print(f"the fact was seen after {time.monotonic() - began:.1f} s")
            time.sleep(BEATS)
            proxy.freeze()
            quiet.api.patch("configmaps", "mlchassis-policy", {"data": STRICT}, "mlchassis-system")
            began = time.monotonic()
            chassis.process.wait_until(lambda: policies(chassis) != digests, SEEN)
            print(f"the policy was seen after {time.monotonic() - began:.1f} s")
        finally:
            chassis.stop()


def policies(chassis: Chassis) -> list[str]:
    """The lines of the log that name a policy in force."""
    return [line for line in chassis.log_lines() if "policy in force" in line]
