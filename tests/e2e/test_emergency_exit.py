"""The ways out of docs/emergency-exit.md, typed as they stand there, and the ways back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import CONFIGURATIONS, REPOSITORY, Chassis
from tests.e2e.workloads import PROBES, pod, probes

pytestmark = pytest.mark.e2e
PAGE = (REPOSITORY / "docs" / "emergency-exit.md").read_text()


def commands(heading: str) -> list[list[str]]:
    """The arguments of every kubectl command under a heading of the page."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.S)
    return [
        shlex.split(typed.replace("\\\n", "")) for block in blocks for typed in block.split("$ kubectl ")[1:]
    ]


def changed(control_plane: ControlPlane, namespace: str = "default") -> set[str]:
    """The probes that a pod created now gets."""
    return probes(control_plane.api.create(pod("now"), namespace, dry_run=True).body)


@pytest.fixture
def installed(chassis: Chassis) -> Iterator[Chassis]:
    """The webhook as it is; installed anew and trusted afterwards, whatever the test took away."""
    yield chassis
    chassis.install()
    for resource in CONFIGURATIONS:
        chassis.control_plane.api.wait(
            resource,
            "chassis.mlchassis.dev",
            lambda it: all(entry["clientConfig"].get("caBundle") for entry in it["webhooks"]),
        )
    chassis.process.wait_until(lambda: changed(chassis.control_plane) == set(PROBES), 15)


def test_everything_at_once_and_back(control_plane: ControlPlane, installed: Chassis) -> None:
    (delete,) = commands("Everything, at once")
    control_plane.kubectl(*delete)
    installed.process.wait_until(lambda: changed(control_plane) == set(), 5)
    assert not any(control_plane.api.exists(resource, "chassis.mlchassis.dev") for resource in CONFIGURATIONS)


def test_everything_but_go_on_looking(control_plane: ControlPlane, installed: Chassis) -> None:
    (patch,) = commands("Everything, but go on looking")
    control_plane.kubectl(*patch)
    installed.wait_metric("chassis_policy_info", 1, profile="observe")
    before = installed.metric("chassis_admission_requests_total", endpoint="mutate")
    assert changed(control_plane) == set()
    assert installed.metric("chassis_admission_requests_total", endpoint="mutate") == before + 1


def test_one_namespace(control_plane: ControlPlane, chassis: Chassis, namespace: str) -> None:
    (label,) = commands("One namespace")
    assert changed(control_plane, namespace) == set(PROBES)
    control_plane.kubectl(*(namespace if argument == "my-namespace" else argument for argument in label))
    chassis.process.wait_until(lambda: changed(control_plane, namespace) == set(), 5)


def test_only_the_refusals_for_want_of_an_answer(control_plane: ControlPlane, installed: Chassis) -> None:
    for patch in commands("Only the refusals for want of an answer"):
        control_plane.kubectl(*patch)
    for entry in installed.entries():
        assert entry["failurePolicy"] == "Ignore"
        assert entry["clientConfig"]["caBundle"]
