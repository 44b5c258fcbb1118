"""runtime-class-missing: pods with GPUs that do not name the RuntimeClass which gives them the driver, and
pods that misspell the name of one."""

from __future__ import annotations

import re
from typing import Final

from policies.accelerators.unrequested import gpu_images
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.kube.group_kinds import DAEMON_SET, GroupKind
from policies.kube.images import image_matches
from policies.kube.json import text
from policies.kube.names import misspelt
from policies.kube.objects.nodes import Node
from policies.kube.objects.pods import PodSpec

_KIND: Final = GroupKind("node.k8s.io", "RuntimeClass")
_NAME: Final = "nvidia"
_NAMES: Final = 64
"""RuntimeClasses with which a missing name is compared."""
_BY_NAME_ONLY: Final = re.compile(r"\+(?:k3s|rke2)")
"""Kubelets of distributions whose default runtime gives no GPU.
Source: https://docs.k3s.io/advanced#nvidia-container-runtime"""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        spec = template.typed.spec
        if spec.node_name and not template.path:
            continue  # a copy of a pod that ran
        if spec.runtime_class_name:
            yield from _misspelt(spec.runtime_class_name, template, facts)
            continue
        agent = target.kind == DAEMON_SET and _is_agent(spec)
        if not (agent or _asks(spec)):
            continue
        cluster, nodes = facts.cluster, facts.cluster_objects(Node)
        if isinstance(cluster, WholeObjects) and cluster.named(_KIND, "", _NAME) is not None:
            where = f"RuntimeClass {_NAME} exists, but the pod doesn't name it. If it isn't the default"
        elif nodes and all(_BY_NAME_ONLY.search(each.status.node_info.kubelet_version) for each in nodes):
            where = "The nodes run k3s or RKE2, whose default runtime is usually not NVIDIA's. If so"
        else:
            continue
        effect = "sees no GPU" if agent else "the server doesn't start or runs on the CPU"
        yield Finding(
            f"{template.spec_path}.runtimeClassName",
            f"{where}, the container finds no driver, and {effect}.",
            f"Set runtimeClassName: {_NAME}.",
        )


def _misspelt(name: str, template: PodTemplate, facts: Facts) -> Findings:
    """The name of no RuntimeClass, while one of almost that name is there."""
    whole = facts.whole
    if whole is None or whole.named(_KIND, "", name) is not None or "$" in name:
        return
    known = [text(each, "metadata", "name") for each in whole.every(_KIND, "")]
    like = misspelt(name, known) if len(known) <= _NAMES else ""
    if like:
        yield Finding(
            f"{template.spec_path}.runtimeClassName",
            f"There is no RuntimeClass {name}, only {like}. The API server refuses the pods.",
            f"Name {like}.",
            Certainty.LIKELY,
        )


def _is_agent(pod: PodSpec) -> bool:
    """Whether a container uses the GPUs of its node without a request."""
    return any(image_matches(each.image, gpu_images(agents=True)) for each in pod.containers)


def _asks(pod: PodSpec) -> bool:
    """Whether a container requests NVIDIA's GPUs."""
    return any(
        name.startswith("nvidia.com/gpu")
        for each in pod.containers
        for name in (*each.resources.limits, *each.resources.requests)
    )


RULE = rule(__name__, check)
