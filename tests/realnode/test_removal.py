"""Chart and manifests come and go on a real node while pods are made: nothing is refused, nothing stays."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.api import JSON
from tests.e2e.binaries import HELM
from tests.e2e.helm import CHART, RELEASE, Helm
from tests.e2e.install import NAMESPACE, REPOSITORY
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.realnode.arms import PATIENCE
from tests.realnode.creates import RATE, Creates

pytestmark = pytest.mark.realnode
PAGE = (REPOSITORY / "docs" / "remove.md").read_text()
OURS = "app.kubernetes.io/part-of=mlchassis"
CLUSTERED = (
    "clusterroles",
    "clusterrolebindings",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
)
NAMESPACED = (
    "all",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "leases",
    "poddisruptionbudgets",
    "resourcequotas",
    "endpointslices",
)
WRITTEN_BY_REPLICAS = {
    "secret/mlchassis-tls",
    "configmap/mlchassis-observed",
    "lease.coordination.k8s.io/mlchassis-uptime",
}
"""No installer owns them: they go with the namespace."""
OF_EVERY_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def commands(first: str) -> list[list[str]]:
    """The arguments of each command of the page's block that begins so."""
    (block,) = (it for it in re.findall(r"```console\n(.*?)```", PAGE, re.S) if it.startswith(first))
    return [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]


@pytest.fixture
def removed(node: RealNode) -> Iterator[RealNode]:
    """A node without the webhook; it is installed again afterwards."""
    remove(node)
    yield node
    remove(node)
    Webhook(node).install()


def remove(node: RealNode) -> None:
    """The documented removal of what kubectl applied."""
    for _, *arguments in commands("$ kubectl delete"):
        command = [str(REPOSITORY / it) if it.startswith("manifests/") else it for it in arguments]
        assert node.kubectl(*command, timeout=PATIENCE, check=False).returncode == 0


def left(node: RealNode) -> set[str]:
    """The webhook's remaining objects in the cluster, as TYPE/NAME."""
    cluster = node.kubectl("get", ",".join(CLUSTERED), "-o", "name").stdout.split()
    own = node.kubectl("-n", NAMESPACE, "get", ",".join(NAMESPACED), "-o", "name").stdout.split()
    return {it for it in cluster if "chassis" in it} | (set(own) - OF_EVERY_NAMESPACE)


@pytest.mark.parametrize("name", HELM)
def test_the_chart_comes_changes_and_goes_while_pods_are_created(
    removed: RealNode, tmp_path: Path, name: str
) -> None:
    helm = Helm(name, tmp_path, removed.kubeconfig)
    webhook = Webhook(removed)
    release = (RELEASE, str(CHART), "--namespace", NAMESPACE, "--wait", "--timeout", f"{PATIENCE}s")
    fails_closed: JSON = {"failurePolicy": {"validation": "Fail"}}
    with Creates(removed) as creates:
        helm.run("install", *release, "--create-namespace", values={})
        webhook.wait_until_it_serves()
        # From here on each create must be answered: to be validated it needs the webhook, or it is refused.
        helm.run("upgrade", *release, values=fails_closed)
        webhook.wait_until_it_serves()
        seen, trusted = creates.now, bundles(removed)
        assert len(trusted) == 1
        changed: JSON = {"extraEnv": [{"name": "CHASSIS_LOG_LEVEL", "value": "debug"}], "replicas": 3}
        helm.run("upgrade", *release, values=fails_closed | changed)
        assert bundles(removed) == trusted, "an upgrade leaves the caBundle alone"
        webhook.wait_until_it_serves()
        creates.wait(3 * RATE)
        assert [sent for sent in creates.unmutated if sent > seen] == []
        assert creates.lost == [], "lost while the chart changed, not while it went"
        for command, *arguments in commands("$ helm uninstall"):
            if command == "helm":
                helm.run(*arguments, timeout=PATIENCE)
                # Asked on both sides: a pod that drains may go between two questions, and may start to.
                goes, stays = going(removed), left(removed)
                assert stays <= {*WRITTEN_BY_REPLICAS, *goes, *going(removed)}
            else:
                removed.kubectl(*arguments, timeout=PATIENCE)
        creates.wait(3 * RATE)
    assert creates.lost == []
    assert creates.refused == []
    assert left(removed) == set()


def bundles(node: RealNode) -> set[str]:
    """The CAs that the API server trusts the webhook by."""
    entries = [
        entry
        for resource in CLUSTERED[2:]
        for entry in node.api.get(resource, "chassis.mlchassis.dev")["webhooks"]
    ]
    return {entry["clientConfig"].get("caBundle", "") for entry in entries}


def going(node: RealNode) -> set[str]:
    """Objects that are being deleted, and their dependants: draining pods, and objects for the garbage
    collector."""
    listed = node.kubectl("-n", NAMESPACE, "get", "pods,replicasets,endpointslices", "-o", "json").stdout
    return {
        f"{kind_path(item)}/{item['metadata']['name']}"
        for item in json.loads(listed)["items"]
        if "deletionTimestamp" in item["metadata"] or item["metadata"].get("ownerReferences")
    }


def kind_path(item: JSON) -> str:
    """How kubectl's names call a kind."""
    group = item["apiVersion"].rpartition("/")[0]
    return str(item["kind"]).lower() + (f".{group}" if group else "")


def test_the_manifests_go_while_pods_are_created(removed: RealNode) -> None:
    webhook = Webhook(removed, REPOSITORY / "manifests" / "overlays" / "strict")
    webhook.install()
    with Creates(removed) as creates:
        assert creates.unmutated == []
        remove(removed)
        creates.wait(3 * RATE)
    assert creates.lost == []
    assert creates.refused == []
    assert left(removed) == set()
    remove(removed)  # a missing object is no error
