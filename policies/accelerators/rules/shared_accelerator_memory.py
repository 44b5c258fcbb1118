"""shared-accelerator-memory: servers that take most of the memory of an accelerator which others share."""

from __future__ import annotations

from typing import Final

from policies.accelerators.catalogue import whole_quantity
from policies.accelerators.inventory import AcceleratorNode
from policies.accelerators.placement import Placement, placement
from policies.containers.programs import launch_of
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.settings import Field, Model
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_RENAMED: Final = ".shared"
"""The end of a resource's name that the device plugin gives to shared accelerators (renameByDefault)."""
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
                yield from _of(template, container, server, clients, asked)


def _of(template: PodTemplate, container: Container, server: Server, clients: int, asked: int) -> Findings:
    share = _share(server)
    if asked > 1:
        yield Finding(
            template.at(container, "resources.limits"),
            f"Container {container.name} requests {asked} shared accelerators, and several of them may be "
            "the same one. It gets no more memory, and a server that spans them fails.",
            "Request 1, or use nodes that don't share their accelerators.",
        )
    elif share and share * clients > 1:
        memory = server.preset.memory_share
        option = next(iter((*memory.flags, *memory.env)), "") if memory else ""
        yield Finding(
            template.at(container),
            f"{clients} pods share each accelerator here, but {server.name} takes {share:.0%} of its "
            "memory. The next one that starts runs out of memory.",
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
    names = (name for each in template.typed.spec.containers for name in each.resources.limits)
    return 2 if any(name.endswith(_RENAMED) for name in names) else 1


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


@data.table
def _sharings() -> tuple[Sharing, ...]:
    return data.load_list(Sharing, "policies.accelerators", "sharing.yaml")


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
