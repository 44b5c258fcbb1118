import pytest

from policies.core.pod_view import PodView
from policies.kube.objects.pods import ResourceRequirements, is_device, is_extended
from policies.kube.pods import Role, containers, with_container


def test_containers_and_their_roles() -> None:
    pod = {
        "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, None],
            "containers": [None, {"name": "m"}],
        }
    }
    assert [(c.name, c.role, c.list, c.index) for c in containers(pod)] == [
        ("m", Role.MAIN, "containers", 1),
        ("i", Role.INIT, "initContainers", 0),
        ("s", Role.SIDECAR, "initContainers", 1),
    ]
    assert [c.name for c in containers(pod, Role.SIDECAR)] == ["s"]


def test_a_container_is_edited_in_its_pod() -> None:
    pod = {"spec": {"initContainers": [{"name": "a"}]}}
    (container,) = containers(pod)
    assert with_container(pod, container, container.spec) is pod
    assert with_container(pod, container, {"name": "z"}) == {"spec": {"initContainers": [{"name": "z"}]}}


def test_who_completes_and_who_is_ray() -> None:
    assert PodView({"spec": {"restartPolicy": "Never"}}).completes
    assert not PodView({"spec": {"restartPolicy": "Always"}}).completes
    owner = {"kind": "RayCluster", "controller": True}
    assert PodView({"metadata": {"ownerReferences": [owner]}}).is_ray
    assert PodView({"metadata": {"labels": {"ray.io/is-ray-node": "yes"}}}).is_ray
    cleanup = {"metadata": {"ownerReferences": [owner], "labels": {"ray.io/node-type": "redis-cleanup"}}}
    assert not PodView(cleanup).is_ray
    assert not PodView({"metadata": {"ownerReferences": [owner | {"controller": False}]}}).is_ray


@pytest.mark.parametrize(
    ("resource", "extended", "device"),
    [
        ("nvidia.com/gpu", True, True),
        ("gpus.example.k8s.io/small", True, True),
        ("deviceclass.resource.kubernetes.io/small", False, True),
        ("kubernetes.io/batch-cpu", False, False),
        ("requests.nvidia.com/gpu", False, False),
        ("memory", False, False),
    ],
)
def test_extended_resources_are_those_of_the_api_server(resource: str, extended: bool, device: bool) -> None:
    assert (is_extended(resource), is_device(resource)) == (extended, device)
    assert ResourceRequirements(limits={resource: "1"}).has_devices is device
