"""Every pod that the golden cases expect is one that a real API server takes.

The pods go to a namespace that the webhook leaves alone: what is checked is the shape of what the
policies add, in every case of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.api import ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import REPOSITORY

pytestmark = pytest.mark.e2e

CASES = REPOSITORY / "tests" / "policies"
UNSEEN = "kube-public"


@pytest.mark.parametrize("policy", ["standard-probes", "model-puller"])
def test_the_api_server_takes_what_is_expected(control_plane: ControlPlane, policy: str) -> None:
    control_plane.api.wait("serviceaccounts", "default", namespace=UNSEEN)
    cases = sorted(CASES.glob(f"*/{policy}/*/expected.yaml"))
    assert len(cases) > 40
    refused = {case.parent.name: reason for case in cases if (reason := refusal(control_plane, case))}
    assert refused == {}


def refusal(control_plane: ControlPlane, case: Path) -> str:
    """Why the API server refuses a case's pod; empty when it takes it."""
    pod = yaml.safe_load(case.read_text())
    pod["metadata"]["namespace"] = UNSEEN
    for reference in pod["metadata"].get("ownerReferences", []):
        reference["uid"] = "00000000-0000-0000-0000-000000000000"
    try:
        control_plane.api.create(pod, UNSEEN, dry_run=True)
    except ApiError as error:
        return error.message
    return ""
