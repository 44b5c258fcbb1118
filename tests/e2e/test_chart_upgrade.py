"""`helm upgrade` on a real API server: values of older charts, the autoscaler, parts that were switched
off."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.binaries import HELM, binary
from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import CHART, RELEASE, Helm
from tests.e2e.install import CONFIGURATIONS, NAMESPACE, REPOSITORY
from tests.e2e.releases import FIRST_CHART, LAST, Release

pytestmark = pytest.mark.e2e
DOCUMENTED = (REPOSITORY / "docs" / "operate.md").read_text()
DEPLOYMENT = ("deployments", "mlchassis", NAMESPACE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without the webhook; each test installs it by itself."""
    with ControlPlane(tmp_path_factory.mktemp("upgraded")) as running:
        running.add_node("node-0")
        yield running


@pytest.fixture(params=HELM)
def helm(request: pytest.FixtureRequest, cluster: ControlPlane, tmp_path: Path) -> Iterator[Helm]:
    helm = Helm(request.param, tmp_path, cluster.kubeconfig)
    yield helm
    helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks")


def upgrade(helm: Helm, chart: Path, *arguments: str) -> None:
    command = ("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE, "--create-namespace")
    helm.run(*command, *arguments)


@pytest.mark.parametrize("before", [FIRST_CHART, LAST], ids=str)
def test_values_of_an_older_chart_can_be_reused(cluster: ControlPlane, helm: Helm, before: Release) -> None:
    upgrade(helm, before.tree / "charts" / "ml-chassis", "--set=replicas=3")
    upgrade(helm, CHART, "--reuse-values", "--set=profile=strict")
    assert cluster.api.get(*DEPLOYMENT)["spec"]["replicas"] == 3
    policy = cluster.api.get("configmaps", "mlchassis-policy", NAMESPACE)
    assert policy["data"]["rules.yaml"] == "profile: strict\n"


def replicas_since(cluster: ControlPlane, version: str) -> list[int]:
    """The numbers of replicas that the Deployment asked for since a resourceVersion, up to now."""
    seen = []
    until = cluster.api.get(*DEPLOYMENT)["metadata"]["resourceVersion"]
    fields = {"fieldSelector": "metadata.name=mlchassis"}
    for event in cluster.api.watch("deployments", NAMESPACE, version, fields, timeout=60):
        seen.append(event["object"]["spec"]["replicas"])
        if event["object"]["metadata"]["resourceVersion"] == until:
            break
    return seen


def version(cluster: ControlPlane) -> str:
    """The Deployment's resourceVersion."""
    return str(cluster.api.get(*DEPLOYMENT)["metadata"]["resourceVersion"])


def test_the_autoscaler_is_switched_on_and_off_without_a_replica_lost(
    cluster: ControlPlane, helm: Helm
) -> None:
    upgrade(helm, CHART, "--set=replicas=3")
    began = version(cluster)
    upgrade(helm, CHART, "--set=replicas=3,hpa.enabled=true")
    autoscaled(cluster, 5)
    upgrade(helm, CHART, "--set=replicas=3,hpa.enabled=true,podLabels.again=yes")
    assert cluster.api.get(*DEPLOYMENT)["spec"]["replicas"] == 5
    upgrade(helm, CHART, "--set=replicas=3")
    assert not cluster.api.exists("horizontalpodautoscalers", "mlchassis", NAMESPACE)
    assert set(replicas_since(cluster, began)) <= {3, 5}
    assert cluster.api.get(*DEPLOYMENT)["spec"]["replicas"] == 5, "without the autoscaler, those that run"


def test_with_kubectl_the_documented_command_keeps_the_replicas(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    typed = DOCUMENTED.split("## Autoscaling\n")[1].split("$ kubectl apply -k")[0].split("$ ")[1]
    kubectl = f'kubectl() {{ {binary("kubectl")} --kubeconfig {cluster.kubeconfig} "$@"; }}'
    overlay: JSON = {"resources": ["base"], "replicas": [{"name": "mlchassis", "count": 3}]}
    (tmp_path / "base").symlink_to(REPOSITORY / "manifests" / "base")
    (tmp_path / "hpa").symlink_to(REPOSITORY / "manifests" / "components" / "hpa")

    def apply() -> None:
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        render = ("kustomize", "--load-restrictor=LoadRestrictionsNone", str(tmp_path))
        cluster.apply(cluster.kubectl(*render).stdout)

    try:
        apply()
        began = version(cluster)
        subprocess.run(["bash", "-euo", "pipefail", "-c", f"{kubectl}; {typed}"], check=True)
        overlay = {"resources": ["base"], "components": ["hpa"]}
        apply()
        assert set(replicas_since(cluster, began)) <= {3}
        assert cluster.api.get(*DEPLOYMENT)["spec"]["replicas"] == 3
    finally:
        render = ("kustomize", "--load-restrictor=LoadRestrictionsNone", str(tmp_path))
        everything = [
            item
            for item in yaml.safe_load_all(cluster.kubectl(*render).stdout)
            if item["kind"] != "Namespace"
        ]
        cluster.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(everything))


def autoscaled(cluster: ControlPlane, replicas: int) -> None:
    """What the autoscaler does: it writes the scale, as the controller manager."""
    scale = cluster.api.resource("deployments").path(NAMESPACE, "mlchassis", "scale")
    current = cluster.api.request("GET", scale).body
    current["spec"]["replicas"] = replicas
    cluster.api.request("PUT", f"{scale}?fieldManager=kube-controller-manager", current)


def test_a_deployment_scaled_to_zero_stays_there(cluster: ControlPlane, helm: Helm) -> None:
    upgrade(helm, CHART)
    cluster.kubectl("-n", NAMESPACE, "scale", "deployment/mlchassis", "--replicas=0")
    upgrade(helm, CHART, "--set=profile=strict")
    assert cluster.api.get(*DEPLOYMENT)["spec"]["replicas"] == 0


EXITS = (REPOSITORY / "docs" / "emergency-exit.md").read_text()


def leave(cluster: ControlPlane, heading: str, count: int) -> None:
    """Type the first commands under a heading of the page."""
    section = EXITS.split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.S)
    typed = [command for block in blocks for command in block.split("$ kubectl ")[1:]]
    for command in typed[:count]:
        cluster.kubectl(*shlex.split(command))


def test_after_everything_was_switched_off_an_upgrade_leaves_it_off(
    cluster: ControlPlane, helm: Helm
) -> None:
    upgrade(helm, CHART)
    leave(cluster, "Everything, at once", 2)
    upgrade(helm, CHART, "--set=profile=strict")
    assert not any(cluster.api.exists(resource, "chassis.mlchassis.dev") for resource in CONFIGURATIONS)
    cluster.api.patch("configmaps", "mlchassis-override", {"data": {"webhooks": None}}, NAMESPACE)
    upgrade(helm, CHART, "--set=profile=strict")
    assert all(cluster.api.exists(resource, "chassis.mlchassis.dev") for resource in CONFIGURATIONS)


@pytest.mark.parametrize("heading", ["Switch to observe-only", "One policy or one rule"])
def test_a_policy_edited_by_hand_stays(cluster: ControlPlane, helm: Helm, heading: str) -> None:
    upgrade(helm, CHART)
    leave(cluster, heading, 1)
    chosen = cluster.api.get("configmaps", "mlchassis-override", NAMESPACE)["data"]
    upgrade(helm, CHART, "--set=profile=strict")
    assert cluster.api.get("configmaps", "mlchassis-override", NAMESPACE)["data"] == chosen
    policy = cluster.api.get("configmaps", "mlchassis-policy", NAMESPACE)
    assert policy["data"]["rules.yaml"] == "profile: strict\n"


def test_entries_opened_by_hand_stay_open_until_it_is_taken_back(cluster: ControlPlane, helm: Helm) -> None:
    def closed() -> set[str]:
        return {
            entry["name"]
            for resource in CONFIGURATIONS
            for entry in cluster.api.get(resource, "chassis.mlchassis.dev")["webhooks"]
            if entry["failurePolicy"] != "Ignore"
        }

    values = "--set=failurePolicy.validation=Fail"
    upgrade(helm, CHART, values)
    before = closed()
    assert before
    leave(cluster, "Fail open when the webhook is unreachable", 3)
    assert not closed()
    upgrade(helm, CHART, values, "--set=profile=strict")
    assert not closed(), "an upgrade leaves them open"
    cluster.api.patch("configmaps", "mlchassis-override", {"data": {"failurePolicy": None}}, NAMESPACE)
    upgrade(helm, CHART, values, *(["--force-conflicts"] if helm.name == "helm-4" else []))
    assert closed() == before


UPGRADES = (REPOSITORY / "docs" / "upgrade.md").read_text()


def test_the_documented_commands_change_the_installer_and_back(
    cluster: ControlPlane, helm: Helm, tmp_path: Path
) -> None:
    section = UPGRADES.split("## Change how it is installed\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.S)
    to_helm, to_kustomize = [
        [shlex.split(typed.replace("\\\n", ""), comments=True) for typed in block.split("$ ")[1:]]
        for block in blocks
    ]
    (tmp_path / "my-values.yaml").write_text("profile: observe")
    places = {
        "my-overlay": str(REPOSITORY / "manifests" / "base"),
        "charts/ml-chassis": str(CHART),
        "my-values.yaml": str(tmp_path / "my-values.yaml"),
    }
    [adopt] = [typed[1:] for typed in to_helm if ("--force-conflicts" in typed) is (helm.name == "helm-4")]
    adopt = [places.get(word, word) for word in adopt]

    def profile() -> str:
        policy = cluster.api.get("configmaps", "mlchassis-policy", NAMESPACE)
        return str(policy["data"]["rules.yaml"]).removeprefix("profile: ").strip()

    cluster.kubectl("apply", "-k", places["my-overlay"])
    helm.run(*adopt)
    assert profile() == "observe"
    forced = [word for word in adopt if word == "--force-conflicts"]
    upgrade(helm, CHART, "--set=profile=strict", *forced)
    assert profile() == "strict"
    for typed in to_kustomize:
        cluster.kubectl(*[places.get(word, word) for word in typed[1:]])
    assert profile() == "standard"
    assert json.loads(helm.run("list", "--namespace", NAMESPACE, "--output", "json")) == []
    helm.run(*adopt)
    assert profile() == "observe"
    upgrade(helm, CHART, "--set=failurePolicy.validation=Fail", *forced)
