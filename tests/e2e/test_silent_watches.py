"""Connections to the API server that have become silent, in a cluster with few changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.api import Api
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.tunnels import Tunnels
from tests.manifests import manifest

pytestmark = pytest.mark.e2e
SEEN = 60.0
"""Seconds; nearly twice the promised 35 s, for a busy machine."""
STRICT = {"rules.yaml": "profile: strict\n"}


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[ControlPlane]:
    """A new control plane: in the session's, other tests change things."""
    with ControlPlane(tmp_path / "quiet") as running:
        running.add_node("node-0")
        yield running


def add_old_node(api: Api) -> None:
    api.create(manifest("Node", "old") | {"status": {"nodeInfo": {"kubeletVersion": "v1.29.15"}}})


def test_silent_connections_hide_neither_policy_nor_facts(quiet: ControlPlane) -> None:
    chassis = Chassis(quiet)
    chassis.install()
    port = quiet.port
    with Tunnels(lambda: port) as proxy:
        quiet.url = f"https://{HOST}:{proxy.port}"  # what kubeconfigs name from here on
        chassis.start()
        try:
            chassis.wait_metric("chassis_facts_synced", 1, resource="nodes")
            digests = policies(chassis)
            proxy.silence()
            add_old_node(quiet.api)
            began = time.monotonic()
            chassis.process.wait_until(lambda: chassis.metric("chassis_oldest_kubelet_minor") == 29, SEEN)
            print(f"the fact was seen after {time.monotonic() - began:.1f} s")
            proxy.silence()
            quiet.api.patch("configmaps", "mlchassis-policy", {"data": STRICT}, "mlchassis-system")
            began = time.monotonic()
            chassis.process.wait_until(lambda: policies(chassis) != digests, SEEN)
            print(f"the policy was seen after {time.monotonic() - began:.1f} s")
        finally:
            chassis.stop()


def policies(chassis: Chassis) -> list[str]:
    """The lines of the log that name a policy in force."""
    return [line for line in chassis.log_lines() if "policy in force" in line]
