"""gpu-unschedulable under the default policy: an autoscaler might bring the node, so it only warns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import container, pod

pytestmark = pytest.mark.e2e


@pytest.fixture
def small_node(control_plane: ControlPlane) -> Iterator[str]:
    control_plane.add_node("gpu-small", capacity={"nvidia.com/gpu": "4"})
    yield "gpu-small"
    control_plane.api.delete("nodes", "gpu-small")


def asking(gpus: int) -> JSON:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return pod("train", container("registry.example/train:1", None, resources=limits), restartPolicy="Never")


def test_a_pod_too_large_for_every_node_is_let_in_with_a_warning(
    api: Api, chassis: Chassis, small_node: str
) -> None:
    # Once the webhook has heard of the node, it names it.
    chassis.process.wait_until(lambda: f"({small_node})" in api.warnings(asking(16)))
    warning = api.warnings(asking(16))
    assert "gpu-unschedulable" in warning
    assert "requests 16 nvidia.com/gpu" in warning
    assert "gpu-unschedulable" not in api.warnings(asking(4))
