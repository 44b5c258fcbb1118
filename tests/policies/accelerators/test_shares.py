"""Pods that take a share of a GPU, or devices in other forms, are never kept off the nodes that have them."""

from __future__ import annotations

from typing import Any

import pytest

from policies.accelerators.gpu_affinity import mutate
from policies.accelerators.gpu_affinity_settings import GpuAffinity, Strength
from policies.accelerators.requests import wants_accelerator
from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.kube.json import Json
from tests.manifests import manifest
from tests.policies.accelerators.nodes import Nodes, facts, node

GPU_NODE = node("gpu", {"nvidia.com/gpu.present": "true"}, 8)
CPU_NODE = node("cpu")


def pod(metadata: Json | None = None, resources: Json | None = None, **spec: Any) -> Json:
    return manifest(
        "Pod",
        "x",
        {"containers": [{"name": "a", "image": "b", "resources": resources or {}}], **spec},
        **(metadata or {}),
    )


@pytest.mark.parametrize("strength", [Strength.REQUIRED, Strength.PREFERRED])
@pytest.mark.parametrize(
    "asking",
    [
        pod({"annotations": {"gpu-fraction": "0.5"}}),
        pod({"annotations": {"gpu-memory": "2000"}}),
        pod({"labels": {"gpu-fraction": "0.25"}}),
        pod({"labels": {"tensor-fusion.ai/inject-container": "a"}}),
        pod({"annotations": {"tensor-fusion.ai/vram-request": "4Gi"}}),
        pod({"labels": {"tensor-fusion.ai/enabled": "true"}}),
        pod(resources={"limits": {"nvidia.com/gpumem": "3000"}}),
        pod(resources={"requests": {"deviceclass.resource.kubernetes.io/gpu.example.com": "1"}}),
        pod(resources={"limits": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}}),
        pod(resources={"requests": {"aliyun.com/gpu-mem": "4"}}),
        pod(resources={"limits": {"example.com/gpu-by-dra": "1"}}),
        pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]),
    ],
    ids=str,
)
def test_a_share_of_a_gpu_is_left_where_it_may_land(asking: Json, strength: Strength) -> None:
    settings = GpuAffinity(cpu_pods=strength)
    assert mutate(asking, settings, facts(GPU_NODE, CPU_NODE)) is asking


@pytest.mark.parametrize(
    "plain",
    [
        pod(),
        pod({"annotations": {"gpu-fraction": "0"}}),
        pod({"labels": {"tensor-fusion.ai/enabled": "false"}}),
        pod(resources={"limits": {"nvidia.com/gpu": "0"}}),
        pod(
            resources={
                "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"}
            }
        ),
        pod(resources={"limits": {"batch.kubernetes.io/anything": "1"}}),
    ],
    ids=str,
)
def test_a_pod_without_devices_is_kept_off(plain: Json) -> None:
    settings = GpuAffinity(cpu_pods=Strength.REQUIRED)
    after = mutate(plain, settings, facts(GPU_NODE, CPU_NODE))
    assert "requiredDuringSchedulingIgnoredDuringExecution" in after["spec"]["affinity"]["nodeAffinity"]


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        (pod({"annotations": {"gpu-fraction": "0.5"}}), True),
        (pod(resources={"limits": {"volcano.sh/vgpu-number": "1"}}), True),
        (pod(resources={"limits": {"nvidia.com/gpumem-percentage": "50"}}), True),
        (pod(resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}}), True),
        (pod(resources={"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}), True),
        (pod(resources={"limits": {"rdma/hca": "1"}}), False),
        (pod(resources={"limits": {"smarter-devices/fuse": "1"}}), False),
        (pod(), False),
    ],
    ids=str,
)
def test_a_share_counts_as_an_accelerator_and_any_other_device_does_not(asking: Json, expected: bool) -> None:
    assert wants_accelerator(PodView(asking), facts(GPU_NODE)) is expected


class _Devices(Nodes):
    """Nodes, and the extended resources that DeviceClasses name."""

    def __init__(self, classes: tuple[str, ...], *nodes: Json) -> None:
        super().__init__(*nodes)
        self._classes = Listing(
            {"metadata": {"name": f"class-{index}"}, "spec": {"extendedResourceName": name}}
            for index, name in enumerate(classes)
        )

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self._classes if resource is Resource.DEVICE_CLASSES else super().listing(resource, namespace)


@pytest.mark.parametrize(
    ("classes", "free"), [((), False), (("example.com/nic",), False), (("nvidia.com/gpu",), True)]
)
def test_a_resource_that_dra_serves_demands_no_node_that_advertises_it(
    classes: tuple[str, ...], free: bool
) -> None:
    """Other nodes may have such devices, without a label and without the resource."""
    asking = pod(resources={"limits": {"nvidia.com/gpu": "1"}})
    after = mutate(asking, GpuAffinity(), Facts("ml", _Devices(classes, GPU_NODE, CPU_NODE)))
    assert ("affinity" not in after["spec"]) is free
    assert [each["key"] for each in after["spec"]["tolerations"]] == ["nvidia.com/gpu"]


def test_a_pod_without_devices_is_kept_off_whatever_dra_serves() -> None:
    settings = GpuAffinity(cpu_pods=Strength.REQUIRED)
    after = mutate(pod(), settings, Facts("ml", _Devices(("nvidia.com/gpu",), GPU_NODE, CPU_NODE)))
    assert "requiredDuringSchedulingIgnoredDuringExecution" in after["spec"]["affinity"]["nodeAffinity"]
