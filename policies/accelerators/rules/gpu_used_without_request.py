"""gpu-used-without-request: pods that use GPUs, or fill their nodes, without requesting one."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.parallelism import OF_CUDA
from policies.accelerators.requests import asks_for_devices, wants_accelerator
from policies.accelerators.unrequested import NO_DEVICES, VISIBLE, gpu_images
from policies.containers.commands import container_command
from policies.containers.programs import idles
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.group_kinds import DAEMON_SET
from policies.kube.images import image_matches
from policies.kube.objects.pods import PodSpec
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_quantity
from policies.probes.serving import recognised

_NONE: Final = frozenset({"", "-1"})
"""https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables"""
_GPU: Final = "nvidia.com/"
_GOOGLE: Final = "cloud.google.com/"
_REGISTRIES: Final = (".gcr.io", "-docker.pkg.dev")
_MANY_CPUS: Final = 4
"""CPUs of one pod that other pods of a node with accelerators will miss."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == DAEMON_SET:
        return  # agents see the GPUs of their node
    for template in target.templates:
        found = list(_visible(template, facts))
        if found and _is_on_gke(template):
            found = []
        yield from found
        if found or wants_accelerator(template.view, facts) or template.is_ray:
            continue
        yield from _on_gpu_nodes(target, template, facts)


def _visible(template: PodTemplate, facts: Facts) -> Findings:
    """Containers that make GPUs visible to themselves."""
    for container in template.containers(Role.MAIN):
        for index, variable in enumerate(container.typed.env):
            if variable.name != VISIBLE or variable.value_from or variable.value.lower() in NO_DEVICES:
                continue
            at = template.at(container, f"env[{index}]")
            if any(name.startswith(_GPU) for name in container.typed.resources.limits):
                yield Finding(
                    at,
                    f"{VISIBLE}: {variable.value} of container {container.name} overrides the GPUs that "
                    "the device plugin assigns. The container uses GPUs of other pods, and both run out of "
                    "memory.",
                    f"Remove {VISIBLE}. The device plugin sets it.",
                )
            elif not wants_accelerator(template.view, facts) and not _is_agent(container):
                yield Finding(
                    at,
                    f"{VISIBLE}: {variable.value} gives container {container.name} GPUs that it doesn't "
                    "request. The scheduler also assigns them to other pods, and they run out of memory.",
                    f"Request nvidia.com/gpu in resources.limits and remove {VISIBLE}.",
                )


def _is_on_gke(template: PodTemplate) -> bool:
    """Whether a label of its nodes or the registry of an image is Google's. GKE has its own device plugin,
    which passes the devices themselves, and no NVIDIA runtime reads the variable.
    https://github.com/NVIDIA/k8s-device-plugin/issues/61 (2021-06-29)
    github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812: pkg/gpu/nvidia/manager.go
    """
    if any(key.startswith(_GOOGLE) for key in template.typed.spec.node_selector):
        return True
    hosts = (each.image.partition("/")[0] for each in template.containers(Role.MAIN))
    return any(host == "gcr.io" or host.endswith(_REGISTRIES) for host in hosts)


def _requires(spec: PodSpec, labels: Set[str]) -> bool:
    """Whether a node affinity admits only nodes with one of those labels."""
    required = spec.affinity.node_affinity.required
    return required is not None and all(
        any(each.key in labels and each.operator in ("In", "Exists") for each in term.match_expressions)
        for term in required.node_selector_terms
    )


def _is_agent(container: Container) -> bool:
    return bool(container.typed.security_context.privileged)


def _on_gpu_nodes(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """Pods without an accelerator that tolerate or select accelerator nodes."""
    if asks_for_devices(template.view.typed):
        return  # a device plugin may give a GPU any name
    spec, vendors = template.typed.spec, facts.settings(GpuAffinity).catalogue.vendors
    keys = {taint.key for vendor in vendors.values() for taint in vendor.taints}
    index = next((index for index, each in enumerate(spec.tolerations) if each.key in keys), None)
    labels = {label.key for vendor in vendors.values() for label in vendor.labels}
    selects = not labels.isdisjoint(spec.node_selector) or _requires(spec, labels)
    images = [
        each
        for each in template.containers(Role.MAIN)
        if image_matches(each.image, gpu_images(agents=False)) and not _hides_gpus(each)
    ]
    if images and (index is not None or selects) and recognised(images[0], facts) is None:
        yield Finding(
            template.at(images[0], "resources"),
            f"Container {images[0].name} runs a CUDA image on nodes with GPUs but requests no GPU. With "
            "the NVIDIA runtime, it sees all GPUs of its node and uses those of other pods. With other "
            "runtimes, it sees none.",
            "Request nvidia.com/gpu in resources.limits, or set NVIDIA_VISIBLE_DEVICES: none.",
        )
    elif index is not None and not selects and target.replicas > 0 and _works(template):
        yield Finding(
            f"{template.spec_path}.tolerations[{index}]",
            f"The pod tolerates {spec.tolerations[index].key} but requests no accelerator. It can fill the "
            "CPUs and memory of accelerator nodes, which then have no room for the pods that need them.",
            "Remove the toleration.",
            Certainty.CERTAIN if _cpus(template) >= _MANY_CPUS else Certainty.LIKELY,
        )


def _hides_gpus(container: Container) -> bool:
    """Whether a variable hides the GPUs of the node from the programs of a container."""
    none = {VISIBLE: NO_DEVICES, OF_CUDA: _NONE}
    return any(
        each.value.lower() in none.get(each.name, ()) and each.value_from is None
        for each in container.typed.env
    )


def _cpus(template: PodTemplate) -> float:
    """The CPUs that the main containers request."""
    given = (each.typed.resources.requests.get("cpu", 0) for each in template.containers(Role.MAIN))
    try:
        return float(sum(map(parse_quantity, given)))
    except ValueError:
        return 0


def _works(template: PodTemplate) -> bool:
    """Whether the pod runs work of its own. Spark adds images to its pod templates, and the accelerators.
    Pods that only pause hold a place on a node for others, which preempt them."""
    containers = list(template.containers(Role.MAIN))
    idle = all(idles(container_command(template, each)) for each in containers)
    return all(each.image for each in containers) and not idle


RULE = rule(__name__, check)
