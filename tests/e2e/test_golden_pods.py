"""Every pod that the golden cases expect is one that a real API server takes.

The pods go to a namespace outside of the webhook's scope: the test checks the shape of the added fields in
every case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import yaml

from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import REPOSITORY

pytestmark = pytest.mark.e2e

CASES = REPOSITORY / "tests" / "policies"
UNSEEN = "kube-public"


@pytest.mark.parametrize("policy", ["standard-probes", "model-puller"])
def test_the_api_server_accepts_the_golden_pods(control_plane: ControlPlane, policy: str) -> None:
    control_plane.api.wait("serviceaccounts", "default", namespace=UNSEEN)
    cases = sorted(CASES.glob(f"*/{policy}/*/expected.yaml"))
    assert len(cases) > 40
    pods = {case.parent.name: yaml.safe_load(case.read_text()) for case in cases}
    with runtime_classes(
        control_plane, {pod["spec"].get("runtimeClassName") for pod in pods.values()} - {None}
    ):
        refused = {name: reason for name, pod in pods.items() if (reason := refusal(control_plane, pod))}
    assert refused == {}


@contextmanager
def runtime_classes(control_plane: ControlPlane, names: Iterable[str]) -> Iterator[None]:
    """RuntimeClasses of these names: the API server refuses pods that name one which does not exist."""
    with ExitStack() as stack:
        for name in names:
            control_plane.apply(
                {
                    "apiVersion": "node.k8s.io/v1",
                    "kind": "RuntimeClass",
                    "metadata": {"name": name},
                    "handler": name,
                }
            )
            stack.callback(control_plane.kubectl, "delete", "runtimeclass", name)
        yield


def refusal(control_plane: ControlPlane, pod: JSON) -> str:
    """Why the API server refuses a pod; empty if it takes it."""
    pod["metadata"]["namespace"] = UNSEEN
    for reference in pod["metadata"].get("ownerReferences", []):
        reference["uid"] = "00000000-0000-0000-0000-000000000000"
    try:
        control_plane.api.create(pod, UNSEEN, dry_run=True)
    except ApiError as error:
        return error.message
    return ""
