"""The accelerators that pods request, by resource, claim or annotation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from policies.accelerators.catalogue import whole_quantity
from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.inventory import Inventory
from policies.accelerators.vendors import GIB
from policies.core.facts import Facts
from policies.core.listing import TypedIndex
from policies.core.pod_view import PodView
from policies.kube.objects.devices import DeviceClass
from policies.kube.objects.pods import DEVICE_CLASS, Pod, PodSpec, is_device
from policies.kube.quantities import bytes_or_zero


def inventory_of(settings: GpuAffinity, facts: Facts) -> Inventory:
    """The cluster's accelerators; those of the declared pools if the nodes are unknown."""
    nodes, catalogue = facts.nodes(), settings.catalogue
    return catalogue.declared if nodes is None else nodes.derive(catalogue.inventory)


def served_by_claims(requests: Iterable[str], facts: Facts) -> bool:
    """Whether DRA serves one of these extended resources, since a DeviceClass names it (KEP-5004). Nodes with
    such devices do not advertise the resource, and can take the pod, too."""
    classes = facts.cluster_objects(DeviceClass)
    if not classes:
        return False
    return any(classes.one(_BY_EXTENDED_RESOURCE, resource) is not None for resource in requests)


def _extended_resource(device_class: DeviceClass) -> Iterator[str]:
    yield device_class.spec.extended_resource_name


_BY_EXTENDED_RESOURCE: Final = TypedIndex(DeviceClass, _extended_resource)


SHARES: Final = (
    "gpu-fraction",
    "gpu-fraction-num-devices",
    "gpu-memory",
    "tensor-fusion.ai/enabled",
    "tensor-fusion.ai/inject-container",
    "tensor-fusion.ai/gpu-count",
    "tensor-fusion.ai/tflops-request",
    "tensor-fusion.ai/compute-percent-request",
    "tensor-fusion.ai/vram-request",
    "tensor-fusion.ai/workload-profile",
)
"""Annotations and labels that request a share of a GPU: Run:ai and KAI (github.com/NVIDIA/KAI-Scheduler,
pkg/common/constants), TensorFusion (github.com/NexusGPU/tensor-fusion, docs)."""
_NONE: Final = (None, "", "0", "false")
_SHARED_RESOURCES: Final = ("volcano.sh/vgpu-*", "*.com/gpumem*", "*.com/gpucores", f"{DEVICE_CLASS}*")
"""Extended resources that are a share of an accelerator: Volcano's vGPU, HAMi (github.com/Project-HAMi/HAMi,
charts/hami/values.yaml); and those of DeviceClasses."""


def shares_accelerator(pod: Pod) -> bool:
    """Whether the pod requests a share of an accelerator in a documented form."""
    marks = {**pod.metadata.labels, **pod.metadata.annotations}
    if any(marks.get(key) not in _NONE for key in SHARES):
        return True
    names = {name for name in _asked_names(pod.spec) if "/" in name}
    return any(fnmatchcase(name, glob) for name in names for glob in _SHARED_RESOURCES)


def asks_for_devices(pod: Pod) -> bool:
    """Whether the pod may need a node with devices that no vendor's table contains: by a claim, an annotation
    for a share of a GPU, or any extended resource. HAMi, Volcano vGPU and others define further resources,
    and a DRA DeviceClass may have any name."""
    if pod.spec.resource_claims or shares_accelerator(pod):
        return True
    return any(map(is_device, _asked_names(pod.spec)))


def _asked_names(pod: PodSpec) -> Iterator[str]:
    for container in (*pod.containers, *pod.init_containers):
        for given in (container.resources.limits, container.resources.requests):
            yield from (name for name, value in given.items() if whole_quantity(value) > 0)


_MANY_CPUS: Final = 4
_MUCH_MEMORY: Final = 16 * GIB
"""Requests for which a cluster often has to start a node: many nodes have 4 to 8 CPUs and 16 to 32 GiB."""


def is_large(pod: PodView, facts: Facts) -> bool:
    """Whether a pod requests an accelerator, or as much as a whole small node: it may have to wait for a node
    that starts, and its work is expensive."""
    if wants_accelerator(pod, facts):
        return True
    cpus, memory = 0, 0
    for container in pod.typed.spec.containers:
        asked = {**container.resources.limits, **container.resources.requests}
        cpus += whole_quantity(asked.get("cpu", 0))
        memory += bytes_or_zero(asked.get("memory"))
    return cpus >= _MANY_CPUS or memory >= _MUCH_MEMORY


def wants_accelerator(pod: PodView, facts: Facts) -> bool:
    """Whether a pod requests an accelerator, or a share of one, by resource, claim or annotation."""
    return facts.pod_caches[pod].once(_wants_accelerator, pod, facts)


def _wants_accelerator(pod: PodView, facts: Facts) -> bool:
    typed = pod.typed
    if typed.spec.resource_claims or facts.settings(GpuAffinity).catalogue.requests(typed.spec):
        return True
    return shares_accelerator(typed)
