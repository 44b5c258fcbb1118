"""On which nodes the scheduler places the webhook's replicas, on clusters with and without zone labels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.status import rolled_out
from tests.manifests import manifest
from webhook.cli import manifests

pytestmark = pytest.mark.e2e
ZONE = "topology.kubernetes.io/zone"
TRIES = 6
"""Installations for each kind of cluster: a placement by chance does not come out right so often."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose nodes each test makes; the namespaces are never cleaned up."""
    with ControlPlane(tmp_path_factory.mktemp("placement")) as running:
        yield running


@pytest.fixture
def nodes(clusters: ControlPlane, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Nodes with the labels that the parameter lists."""
    names: list[str] = []
    for labels in request.param:
        name = f"node-{len(names)}"
        clusters.add_node(name, labels)
        names.append(name)
    yield names
    for name in names:
        clusters.api.delete("nodes", name)


def install(cluster: ControlPlane, namespace: str) -> None:
    """The Deployment of the manifests, in a new namespace, without a kubelet to run it."""
    cluster.create_namespace(namespace)
    for item in manifests.render(namespace=namespace):
        if item["kind"] in ("ServiceAccount", "Deployment"):
            cluster.api.create(item, namespace)


def placed(cluster: ControlPlane, namespace: str, revision: str = "1") -> list[str]:
    """The nodes of the replicas of a revision, once all are ready and no older one is left."""

    def current(it: JSON) -> bool:
        found = it["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision")
        return found == revision and rolled_out(it)

    cluster.api.wait("deployments", "mlchassis", current, namespace=namespace)
    pods = cluster.api.items("pods", namespace)
    return sorted(pod["spec"]["nodeName"] for pod in pods if "deletionTimestamp" not in pod["metadata"])


UNLABELLED: list[JSON] = [{}, {}, {}]
ZONES: list[JSON] = [{ZONE: "a"}, {ZONE: "a"}, {ZONE: "b"}]
MIXED: list[JSON] = [{ZONE: "a"}, {ZONE: "a"}, {}]


@pytest.mark.parametrize("nodes", [UNLABELLED, ZONES, MIXED], ids=["none", "zones", "some"], indirect=True)
def test_two_replicas_run_on_two_nodes(
    clusters: ControlPlane, nodes: list[str], request: pytest.FixtureRequest
) -> None:
    for attempt in range(TRIES):
        namespace = f"placed-{request.node.callspec.id}-{attempt}"
        install(clusters, namespace)
        where = placed(clusters, namespace)
        assert len(set(where)) == 2, f"installation {attempt} of {request.node.callspec.id}: {where}"
        if request.node.callspec.id == "zones":
            assert "node-2" in where, f"both replicas in zone a: {where}"


@pytest.mark.parametrize("nodes", [UNLABELLED[:2]], ids=["two"], indirect=True)
def test_after_rollouts_they_still_do(clusters: ControlPlane, nodes: list[str]) -> None:
    """The old replicas, which are about to go, must not decide where the new ones run."""
    install(clusters, "rollouts")
    assert placed(clusters, "rollouts") == nodes
    for revision in range(2, 2 + TRIES):
        template = {"metadata": {"annotations": {"restarted": str(revision)}}}
        clusters.api.patch("deployments", "mlchassis", {"spec": {"template": template}}, "rollouts")
        assert placed(clusters, "rollouts", str(revision)) == nodes, f"after rollout {revision}"


@pytest.mark.parametrize("nodes", [UNLABELLED[:2]], ids=["two"], indirect=True)
def test_a_busy_node_is_still_better_than_the_same_node(clusters: ControlPlane, nodes: list[str]) -> None:
    asks = {"requests": {"cpu": "60", "memory": "240Gi"}}
    load: JSON = manifest(
        "Pod",
        "busy",
        {
            "nodeName": nodes[0],
            "containers": [{"name": "main", "image": "registry.example/train:1", "resources": asks}],
        },
    )
    clusters.create_namespace("load")
    clusters.api.create(load, "load")
    install(clusters, "busy")
    assert placed(clusters, "busy") == nodes


@pytest.mark.parametrize("nodes", [[{}]], ids=["one"], indirect=True)
def test_on_a_cluster_with_one_node_both_run_there(clusters: ControlPlane, nodes: list[str]) -> None:
    """Two processes still cover a crash and a rollout; a pod that stays Pending covers nothing."""
    install(clusters, "single")
    assert placed(clusters, "single") == nodes * 2
