"""The ways out of docs/emergency-exit.md, typed exactly as there, and the ways back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.e2e.controlplane import ControlPlane, KubectlError
from tests.e2e.install import CONFIGURATIONS, NAMESPACE, REPOSITORY, Chassis
from tests.e2e.workloads import PROBES, injected

pytestmark = pytest.mark.e2e
PAGE = (REPOSITORY / "docs" / "emergency-exit.md").read_text()


def commands(heading: str) -> list[list[str]]:
    """The arguments of every kubectl command under a heading of the page."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.S)
    return [
        shlex.split(typed.replace("\\\n", "")) for block in blocks for typed in block.split("$ kubectl ")[1:]
    ]


@pytest.fixture
def installed(chassis: Chassis) -> Iterator[Chassis]:
    """The webhook, restored after the test."""
    yield chassis
    chassis.control_plane.api.patch("configmaps", "mlchassis-override", {"data": None}, NAMESPACE)
    upgrade(chassis)
    chassis.process.wait_until(lambda: injected(chassis.control_plane.api) == set(PROBES))


def upgrade(chassis: Chassis) -> None:
    """Apply the manifests again, as an upgrade does, and wait until the webhook is trusted."""
    chassis.install()
    for resource in CONFIGURATIONS:
        chassis.control_plane.api.wait(
            resource,
            "chassis.mlchassis.dev",
            lambda it: all(entry["clientConfig"].get("caBundle") for entry in it["webhooks"]),
        )


def test_everything_at_once_and_back(control_plane: ControlPlane, installed: Chassis) -> None:
    delete, off, back = commands("Everything, at once")
    control_plane.kubectl(*delete)
    installed.process.wait_until(lambda: injected(control_plane.api) == set())
    assert not any(control_plane.api.exists(resource, "chassis.mlchassis.dev") for resource in CONFIGURATIONS)
    control_plane.kubectl(*off)
    installed.wait_metric("chassis_policy_info", 1, profile="observe")
    upgrade(installed)
    assert injected(control_plane.api) == set(), "an upgrade by kubectl does not switch it on"
    control_plane.kubectl(*back)
    installed.process.wait_until(lambda: injected(control_plane.api) == set(PROBES))


def test_everything_but_go_on_looking(control_plane: ControlPlane, installed: Chassis) -> None:
    (patch,) = commands("Switch to observe-only")
    control_plane.apply(installed.policy_with(standard_probes="mode: enforce\n"))
    control_plane.kubectl(*patch)
    installed.wait_metric("chassis_policy_info", 1, profile="observe")
    upgrade(installed)
    before = installed.metric("chassis_admission_requests_total", endpoint="mutate")
    assert injected(control_plane.api) == set()
    assert installed.metric("chassis_admission_requests_total", endpoint="mutate") == before + 1


def test_one_namespace(control_plane: ControlPlane, chassis: Chassis, namespace: str) -> None:
    (label,) = commands("One namespace")
    assert injected(control_plane.api, namespace) == set(PROBES)
    control_plane.kubectl(*(namespace if argument == "my-namespace" else argument for argument in label))
    chassis.process.wait_until(lambda: injected(control_plane.api, namespace) == set())


def test_one_policy_or_one_rule(control_plane: ControlPlane, installed: Chassis) -> None:
    (patch,) = commands("One policy or one rule")
    control_plane.kubectl(*(argument.replace("gpu-affinity", "standard-probes") for argument in patch))
    installed.process.wait_until(lambda: injected(control_plane.api) == set())
    upgrade(installed)
    assert injected(control_plane.api) == set(), "an upgrade leaves the edit"
    bad = ("patch", "configmap", "mlchassis-override", "--type=merge", "-p", '{"data":{"webhooks":"on"}}')
    with pytest.raises(KubectlError, match="must be off or observe"):
        control_plane.kubectl("-n", NAMESPACE, *bad)


def test_only_the_refusals_for_want_of_an_answer(control_plane: ControlPlane, installed: Chassis) -> None:
    def all_open() -> bool:
        entries = list(installed.entries())
        return all(
            entry["failurePolicy"] == "Ignore" and entry["clientConfig"].get("caBundle") for entry in entries
        )

    for patch in commands("Fail open when the webhook is unreachable"):
        control_plane.kubectl(*patch)
    assert all_open()
    upgrade(installed)
    installed.process.wait_until(all_open)
