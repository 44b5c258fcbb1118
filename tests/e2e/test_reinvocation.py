"""Next to other webhooks: later additions are reviewed again, and a second pass makes no change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.other_webhooks import patching
from tests.e2e.workloads import PROBES, container, pod, probes

pytestmark = pytest.mark.e2e
MESH = {"mesh.example/inject": "true"}


def injected(pod: JSON) -> list[JSON]:
    """The patch of a service mesh: it appends a container, once."""
    if "second" in [each["name"] for each in pod["spec"]["containers"]]:
        return []
    return [{"op": "add", "path": "/spec/containers/-", "value": container() | {"name": "second"}}]


@pytest.fixture
def mesh(control_plane: ControlPlane) -> Iterator[None]:
    with patching(control_plane, injected, objectSelector={"matchLabels": MESH}):
        yield


@pytest.mark.usefixtures("mesh")
def test_a_container_that_another_webhook_adds_gets_probes_too(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    def reviewed() -> float:
        return chassis.metric("chassis_admission_requests_total", endpoint="mutate", kind="Pod")

    meshed = pod("meshed")
    meshed["metadata"]["labels"] |= MESH
    # The API server reads a new configuration from its own watch, a moment after the create.
    chassis.process.wait_until(lambda: len(containers(api.create(meshed, dry_run=True).body)) == 2)
    alone = api.create(pod("alone")).body
    before = reviewed()
    made = api.create(meshed).body
    assert reviewed() == before + 2, "once for the pod as sent, once more for what the mesh made of it"
    assert [it["name"] for it in containers(made)] == ["main", "second"]
    assert probes(made, 0) == probes(made, 1) == set(PROBES)
    assert containers(made)[0] == containers(alone)[0], "the second pass leaves the first one's work alone"


def containers(pod: JSON) -> list[JSON]:
    """The containers, less the token mount, whose name is drawn by chance."""
    found: list[JSON] = pod["spec"]["containers"]
    return [{key: value for key, value in each.items() if key != "volumeMounts"} for each in found]
