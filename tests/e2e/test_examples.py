"""The examples through a real API server: sound ones are stored, refused ones are refused there too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import REPOSITORY, Chassis

pytestmark = pytest.mark.e2e

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
REFUSED = {
    "drain-blocked.yaml": ("PodDisruptionBudget", "drain-blocked-by-pdb"),
    "model-config-broken.yaml": ("ConfigMap", "model-config-invalid"),
    "rollout-deadlock.yaml": ("Deployment", "rollout-volume-deadlock"),
    "torchserve.yaml": ("Deployment", "liveness-external-dependency"),
    "vector-database.yaml": ("StatefulSet", "readiness-waits-on-own-service"),
}
CUSTOM = {"ray.io", "serving.kserve.io"}
"""API groups whose CRDs this control plane does not have."""


def documents(path: Path) -> list[JSON]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


NATIVE = [
    path
    for path in EXAMPLES
    if all(item["apiVersion"].partition("/")[0] not in CUSTOM for item in documents(path))
]


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
def test_the_api_server_answers_as_in_the_example(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, path: Path
) -> None:
    kind, rule = REFUSED.get(path.name, ("", ""))
    items = [item | {"metadata": item["metadata"] | {"namespace": namespace}} for item in documents(path)]
    sound = [item for item in items if item["kind"] != kind]
    if sound:
        control_plane.apply(sound)
    for item in items:
        if item["kind"] == kind:
            assert rule in refusal(control_plane, item)


def refusal(control_plane: ControlPlane, item: JSON) -> str:
    """kubectl's output when the object is refused; the webhook hears of the other objects by a watch, so
    the first answers may come before it knows them."""
    deadline = time.monotonic() + 60
    text = yaml.safe_dump(item)
    while True:
        result = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text, check=False)
        if result.returncode or time.monotonic() > deadline:
            return result.stderr
