"""shared-accelerator-memory: servers that take most of the memory of an accelerator which others share."""

from __future__ import annotations

from typing import Final

from policies.accelerators.catalogue import whole_quantity
from policies.accelerators.inventory import AcceleratorNode
from policies.accelerators.placement import Placement, placement
from policies.containers.programs import launch_of
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.kube.group_kinds import CONFIG_MAP
from policies.kube.objects.nodes import Node
from policies.kube.objects.storage import ConfigMap
from policies.kube.pods import Container, Role
from policies.kube.quantities import whole_number
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_RENAMED: Final = ".shared"
"""The end of a resource's name that the device plugin gives to shared accelerators (renameByDefault)."""
_GPU: Final = "nvidia.com/gpu"
_MAX_TEXT: Final = 4096
_MPS: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class Sharing(Model):
    """An entry of `sharing.yaml`."""

    label: str
    values: tuple[str, ...]
    count: str = Field(description="the label with the number of pods for each accelerator")
    source: str


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server, asked = recognised(container, facts), _asked(container)
            if server is None or not asked or _MPS in launch_of(container).variables:
                continue
            if asked == 1 and not _share(server):
                continue
            clients = facts.pod_caches[template.view].once(_clients, template, facts)
            if clients > 1:
                yield from _of(template, container, server, clients, asked, target.replicas or 1)


def _of(
    template: PodTemplate, container: Container, server: Server, clients: int, asked: int, replicas: int
) -> Findings:
    share = _share(server)
    fit = int(1 / share) if share else 0
    if asked > 1:
        yield Finding(
            template.at(container, "resources.limits"),
            f"Container {container.name} requests {asked} shared accelerators, and several of them may be "
            "the same one. It gets no more memory, and a server that spans them fails.",
            "Request 1, or use nodes that don't share their accelerators.",
        )
    elif share and share * clients > 1 and (fit == 1 or replicas > fit):  # else its own pods may be all
        memory = server.preset.memory_share
        option = next(iter((*memory.flags, *memory.env)), "") if memory else ""
        yield Finding(
            template.at(container),
            f"{clients} pods share each accelerator here, but {server.name} takes {share:.0%} of its "
            f"memory. {'The next one' if fit == 1 else f'Pod {fit + 1}'} that starts runs out of memory.",
            f"Set {option} to less than {1 / clients:.2g}, or use nodes that don't share their accelerators.",
        )


def _share(server: Server) -> float:
    """The share of an accelerator's memory that a server takes; 0 if unknown."""
    memory = server.preset.memory_share
    if memory is None or server.conditional or server.has_option(*memory.unless_flags):
        return 0
    value = server.configured(memory.flags, memory.env)
    if value is None:
        return 0 if server.may_have_option(*memory.flags) or server.has_env_from else memory.share
    is_number = value.isascii() and value.replace(".", "", 1).isdigit() and len(value) < 8
    return float(value) if is_number else 0


def _clients(template: PodTemplate, facts: Facts) -> int:
    """The least number of pods that share an accelerator, on any node that can take the pod; 1 if one of them
    shares none, or if that is unknown."""
    found = placement(template.view, facts)
    if found is not None and found.nodes:
        return found.cache.once(_least_clients, found)
    names = [name for each in template.typed.spec.containers for name in each.resources.limits]
    if any(name.endswith(_RENAMED) for name in names):
        return 2
    whole = None if facts.cluster_objects(Node) else facts.whole
    return whole.cache.once_for(_GPU, _configured, whole) if whole is not None and _GPU in names else 1


def _configured(whole: WholeObjects) -> int:
    """The least number of pods for each GPU by the configuration of NVIDIA's device plugin; 1 if there
    is none, or if one of its entries shares none."""
    counts: list[int] = []
    for each in whole.typed(CONFIG_MAP, None, ConfigMap):
        texts = [text for text in each.data.values() if len(text) <= _MAX_TEXT]
        if not any("timeSlicing:" in text for text in texts):
            continue
        counts += map(_replicas, texts)
    return min(counts, default=1)


def _replicas(config: str) -> int:
    """The pods for each GPU in an entry of the configuration; 1 if it shares none."""
    words = config.partition("timeSlicing:")[2].replace('"', " ").replace("'", " ").split()
    for n in range(1, len(words) - 2):
        if words[n - 1 : n + 2] == ["name:", _GPU, "replicas:"]:
            return whole_number(words[n + 2], 4) or 1
    return 1


def _least_clients(found: Placement) -> int:
    return min(map(_of_node, found.nodes))


def _of_node(node: AcceleratorNode) -> int:
    return max((_count(node, sharing) for sharing in _sharings()), default=1)


def _count(node: AcceleratorNode, sharing: Sharing) -> int:
    labels = node.described
    return whole_quantity(labels.get(sharing.count)) if labels.get(sharing.label) in sharing.values else 1


def _asked(container: Container) -> int:
    return sum(
        whole_quantity(value) for name, value in container.typed.resources.limits.items() if "/gpu" in name
    )


_sharings = data.entries(Sharing, "policies.accelerators", "sharing.yaml")


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
