"""The names that name-refused reports are those whose pods KubeRay and Kubernetes do not create."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from policies.core.contracts import Facts, Target
from policies.kube.group_kinds import kind_of
from policies.kube.metadata import controller, labels_of
from policies.startup.rules.name_refused import RULE
from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kuberay import NAMESPACE, SERVICE_ACCOUNT, Operator, prepare, ray_cluster
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

VERSION = "ray.io/v1"
NAMES = ("x" * 47, "y" * 48, "x" * 53, "y" * 54, "dotted.name", "1st", "x1")
SPECS: dict[str, Callable[[JSON], JSON]] = {
    "RayCluster": lambda config: config,
    "RayJob": lambda config: {"entrypoint": "python train.py", "rayClusterSpec": config},
    "RayService": lambda config: {"serveConfigV2": "applications: []", "rayClusterConfig": config},
}


@pytest.mark.parametrize("release", ["kuberay-1.5", "kuberay-1.6"])
def test_kuberay_refuses_the_reported_names(control_plane: ControlPlane, bare: str, release: str) -> None:
    prepare(control_plane, release)
    api = control_plane.api.within(bare)
    config = ray_cluster("any", 0)["spec"]
    made = [
        manifest(kind, name, spec(config), version=VERSION) for kind, spec in SPECS.items() for name in NAMES
    ]
    reported = {key_of(each) for each in made if is_reported(each)}
    accepted = {key_of(each) for each in made} - reported
    for each in made:
        api.create(each)
    account = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    with Operator(control_plane, release, account, bare):
        events = api.wait_for("events", lambda found: reported <= refused(found))
        heads = api.wait_for(
            "pods", lambda found: len(found) == len(accepted), labels="ray.io/node-type=head"
        )
    clusters = {labels_of(pod)["ray.io/cluster"] for pod in heads}
    found = [api.get("rayclusters.ray.io", name) for name in clusters]
    started = {key_of(controller(cluster) or cluster) for cluster in found}
    assert refused(events) == reported
    assert started == accepted


def test_stateful_sets_with_long_names_get_no_pods(control_plane: ControlPlane, bare: str) -> None:
    """The hash of a revision has up to 10 digits, and hardly ever less than 7."""
    api = control_plane.api.within(bare)
    short, long = ("x" * length for length in (52, 56))
    for name in (short, long):
        labels = {"app": str(len(name))}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "r/s:1"}]}}
        spec = {"serviceName": "any", "selector": {"matchLabels": labels}, "template": pod}
        made = manifest("StatefulSet", name, spec)
        assert is_reported(made) == (name == long)
        api.create(made)
    events = api.wait_for("events", lambda found: any(map(is_failure, found)))
    pods = api.wait_for("pods", lambda found: found)
    assert {event["involvedObject"]["name"] for event in events if is_failure(event)} == {long}
    assert [pod["metadata"]["name"] for pod in pods] == [f"{short}-0"]


def is_reported(item: JSON) -> bool:
    return bool([*RULE.check(Target(item, kind_of(item)), Facts())])


def is_failure(event: JSON) -> bool:
    return event["reason"] == "FailedCreate" and "must be no more than 63" in event["message"]


def refused(events: list[JSON]) -> set[tuple[str, str]]:
    about = [event["involvedObject"] for event in events if event["reason"].endswith("Metadata")]
    return {(item["kind"], item["name"]) for item in about}


def key_of(item: JSON) -> tuple[str, str]:
    """The kind and name of an object or of a reference to its controller."""
    return item["kind"], item.get("name") or item["metadata"]["name"]
