"""Every kustomization that ships renders, and a real API server takes what it renders."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import BASE, REPOSITORY, Chassis, at_url
from tests.e2e.processes import free_port
from tests.e2e.workloads import container, pod, workload
from webhook.config.load import load

pytestmark = pytest.mark.e2e
MANIFESTS = REPOSITORY / "manifests"
KUSTOMIZATIONS = sorted(path.parent for path in MANIFESTS.rglob("kustomization.yaml"))


def rendered(control_plane: ControlPlane, directory: Path, scratch: Path) -> str:
    """What kustomize makes of a directory; a component is put on top of the base."""
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    if kustomization["kind"] == "Component":
        overlay = {
            "resources": [os.path.relpath(BASE, scratch)],
            "components": [os.path.relpath(directory, scratch)],
        }
        (scratch / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        directory = scratch
    return control_plane.kubectl("kustomize", str(directory)).stdout


def test_they_are_found() -> None:
    assert BASE in KUSTOMIZATIONS
    assert len(KUSTOMIZATIONS) > 1


@pytest.mark.usefixtures("definitions")
@pytest.mark.parametrize("directory", KUSTOMIZATIONS, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_the_api_server_takes_it_without_a_word(
    control_plane: ControlPlane, chassis: Chassis, tmp_path: Path, directory: Path
) -> None:
    manifest = rendered(control_plane, directory, tmp_path)
    taken = control_plane.apply(manifest, "--dry-run=server", "--validate=strict")
    assert taken.stderr == "", "no deprecation, no unknown field, nothing that Pod Security would refuse"
    assert len(taken.stdout.splitlines()) == sum(1 for item in yaml.safe_load_all(manifest) if item)


def test_fail_closed_validation_spares_the_policy_itself(control_plane: ControlPlane, tmp_path: Path) -> None:
    component = MANIFESTS / "components" / "fail-closed-validation"
    modes = {
        entry["name"]: entry["failurePolicy"]
        for item in yaml.safe_load_all(rendered(control_plane, component, tmp_path))
        if item["kind"] == "ValidatingWebhookConfiguration"
        for entry in item["webhooks"]
    }
    assert modes.pop("policy.mlchassis.dev") == "Ignore"
    assert modes.pop("validate-owned.mlchassis.dev") == "Ignore"
    assert set(modes.values()) == {"Fail"}


@pytest.fixture
def dying(api: Api) -> str:
    """A Deployment that is being deleted, and that a finalizer still holds."""
    item = workload("Deployment", "dying", container())
    item["metadata"]["finalizers"] = ["example.com/held"]
    api.create(item)
    api.delete("deployments", "dying")
    return "dying"


@pytest.fixture
def unanswered(api: Api, control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[None]:
    """Validation that fails closed and gets no answer, for one namespace."""
    component = MANIFESTS / "components" / "fail-closed-validation"
    (item,) = (
        at_url(item, f"https://{HOST}:{free_port()}")
        for item in yaml.safe_load_all(rendered(control_plane, component, tmp_path))
        if item["kind"] == "ValidatingWebhookConfiguration"
    )
    item["metadata"]["name"] = namespace
    for entry in item["webhooks"]:
        entry["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    api.create(item)
    yield
    api.delete("validatingwebhookconfigurations", namespace)


def unasked(control_plane: ControlPlane, namespace: str, item: JSON, account: str = "") -> bool:
    """Whether an object would be refused because the webhook can't be asked."""
    whose = [f"--as={account}", "--as-group=system:serviceaccounts"] if account else []
    arguments = ("create", "-n", namespace, "--dry-run=server", "-f", "-", *whose)
    made = control_plane.kubectl(*arguments, stdin=json.dumps(item), check=False)
    return made.returncode != 0 and "failed calling webhook" in made.stderr


def test_during_an_outage_a_controller_can_still_replace_its_pods(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, unanswered: None
) -> None:
    def refused(item: JSON, account: str = "") -> bool:
        return unasked(control_plane, namespace, item, account)

    controller = "system:serviceaccount:kube-system:daemon-set-controller"

    chassis.process.wait_until(lambda: refused(pod("bare")))
    owner: JSON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "network", "uid": "0"}
    owned = pod("owned")
    owned["metadata"]["ownerReferences"] = [owner]
    assert refused(owned, controller), "an owner that is no controller"
    owner["controller"] = True
    assert refused(owned), "an owner that a person wrote"
    assert not refused(owned, controller)
    assert refused(workload("Deployment", "server", container()))


def test_during_an_outage_a_deleted_object_can_still_go(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, dying: str, unanswered: None
) -> None:
    chassis.process.wait_until(lambda: unasked(control_plane, namespace, pod("bare")))
    api.patch("deployments", dying, {"metadata": {"finalizers": None}})
    assert not api.exists("deployments", dying)


def test_the_overlay_of_the_installation_page_renders(control_plane: ControlPlane, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "install.md").read_text()
    for name, text in re.findall(r"```yaml\n# ([\w-]+\.yaml)\n(.*?)```", page, re.S):
        (tmp_path / name).write_text(text)
    (tmp_path / "ml-chassis").symlink_to(REPOSITORY)
    command = ("kustomize", "--load-restrictor=LoadRestrictionsNone", str(tmp_path))
    objects = list(yaml.safe_load_all(control_plane.kubectl(*command).stdout))
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.com/")
    (policy,) = (item for item in objects if item["metadata"]["name"] == "mlchassis-policy")
    assert load(policy["data"]).rules.modes
