"""model-exceeds-storage: models and caches that do not fit where the server puts them."""

from __future__ import annotations

from policies.accelerators.fit import MIN_SHARE, load_of
from policies.accelerators.parallelism import on_this_node
from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.objects.nodes import Node, NodePool
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.kube.quantities import bytes_or_zero, in_binary, in_decimal
from policies.probes.recognition import Server, is_since, release
from policies.probes.server_facts import Reserved
from policies.probes.serving import recognised
from policies.servers.caches import Download, download_of

_MAX_NODES = 500
"""The number of nodes whose memory is compared."""
_DEFAULT = ", the default"
"""The end of an option that is not given."""
_MARGIN = 0.8
"""A model is at least this part of the size that follows from its name."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.has_own_volumes:
            continue
        for container in template.containers(Role.MAIN):
            found = download_of(template, container, facts)
            if found is not None and found.size:
                yield from _of_model(target, template, container, found, facts)
            yield from _of_memory(template, container, facts)
            yield from _of_weights(template, container, facts)


def _of_model(
    target: Target, template: PodTemplate, container: Container, found: Download, facts: Facts
) -> Findings:
    model = f"Model {found.model} has about {in_decimal(found.size)}"
    room, where = _room(target, found, facts)
    if room and found.size * _MARGIN > room:
        yield Finding(
            template.at(container),
            f"{model}, but {where} holds {in_decimal(room)}. The download fails or the pod is "
            "evicted, and the next one starts over.",
            "Give the volume room for the model.",
        )
    limit = bytes_or_zero(container.typed.resources.limits.get("ephemeral-storage"))
    local = found.mount is None or (found.volume is not None and found.volume.empty_dir is not None)
    place = None if found.volume is None else found.volume.empty_dir
    in_memory = found.mount.name if found.mount is not None and place is not None and place.medium else ""
    if limit and local and not in_memory and found.size * _MARGIN > limit:
        yield Finding(
            template.at(container, "resources.limits"),
            f"{model}, but the limit of ephemeral-storage is {in_decimal(limit)}. The kubelet evicts "
            "the pod during the download.",
            f"Raise the limit above the model's size, or mount a claim at {found.directory}.",
        )
    memory = container.typed.resources.memory_limit
    if in_memory and memory and found.size * _MARGIN > memory:
        yield Finding(
            template.at(container, "resources.limits"),
            f"{model}, the emptyDir {in_memory} is in memory, and the memory limit is "
            f"{in_decimal(memory)}. Files in it count as memory, so the kernel kills the server "
            "during the download.",
            "Raise the memory limit above the model's size and the server's own need, or use a claim.",
        )


def _room(target: Target, found: Download, facts: Facts) -> tuple[int, str]:
    """The bytes that the volume of the models holds, and its name in a sentence; 0 if unknown."""
    if found.volume is None:
        name = "" if found.mount is None else found.mount.name
        own = target.read(StatefulSet).spec.volume_claim_templates if target.kind == STATEFUL_SET else ()
        claims = [each for each in own if each.name == name]
        return (_requested(claims[0]), f"the claim {name}") if claims else (0, "")
    if found.volume.empty_dir is not None:
        return bytes_or_zero(found.volume.empty_dir.size_limit), f"the emptyDir {found.volume.name}"
    if found.volume.persistent_volume_claim is not None:
        listed = facts.objects(PersistentVolumeClaim)
        name = found.volume.persistent_volume_claim.claim_name
        claim = None if listed is None else listed.named(name)
        return (0, "") if claim is None else (_requested(claim), f"the claim {name}")
    return 0, ""


def _requested(claim: PersistentVolumeClaim) -> int:
    return bytes_or_zero(claim.spec.resources.requests.get("storage"))


def _of_memory(template: PodTemplate, container: Container, facts: Facts) -> Findings:
    """Options that reserve more memory than the limit."""
    server = recognised(container, facts)
    if server is None or server.conditional:
        return
    limit = container.typed.resources.memory_limit
    largest = 0 if limit else _largest_node(facts)
    for reserved in server.preset.reserves:
        if reserved.before is not None and not () < server.version < release(reserved.before):
            continue
        amount, option = _reserved(server, container, reserved)
        if not amount:
            continue
        if reserved.directory_env is not None:
            yield from _of_directory(template, container, server, reserved.directory_env, amount)
        elif limit and amount >= limit:
            by = f" for {reserved.what}" if reserved.what else ""
            yield Finding(
                template.at(container, "resources.limits"),
                f"Container {container.name} ({server.name}) may take {in_binary(amount)} of memory{by} "
                f"({option}), but the limit is {in_binary(limit)}. The kernel kills it.",
                f"Raise the memory limit, or lower {option.split()[0]}.",
            )
        elif largest and amount >= largest and not option.endswith(_DEFAULT):
            yield Finding(
                template.at(container),
                f"Container {container.name} ({server.name}) may take {in_binary(amount)} of memory "
                f"({option}), but the largest node has {in_binary(largest)}. The kernel kills it.",
                f"Lower {option.split()[0]}, and set a memory limit.",
                Certainty.LIKELY,
            )


def _largest_node(facts: Facts) -> int:
    """The bytes of the largest node; 0 if a node is unknown, or can be added."""
    nodes = facts.cluster_objects(Node)
    if not nodes or len(nodes) > _MAX_NODES or facts.cluster_objects(NodePool) or facts.is_unread(NodePool):
        return 0
    amounts = [bytes_or_zero(node.status.allocatable.get("memory")) for node in nodes]
    return max(amounts) if all(amounts) else 0


def _reserved(server: Server, container: Container, reserved: Reserved) -> tuple[int, str]:
    """The bytes that a server may take, and the option with its value; 0 if unknown."""
    names = (*reserved.flags, *reserved.env)
    if reserved.key:
        return server.options.number_at(reserved.flags, reserved.key) * reserved.unit, reserved.key[-1]
    value = server.configured(reserved.flags, reserved.env)
    if value is None:
        if not reserved.default or server.has_env_from or server.has_option(*reserved.unless_flags):
            return 0, ""
        changed = server.may_have_option(*reserved.flags, *reserved.unless_flags)
        if changed or not is_since(server, container, reserved.since):
            return 0, ""
        return reserved.default * reserved.unit, f"{names[0]} {reserved.default}{_DEFAULT}"
    if not value.isascii() or not value.replace(".", "", 1).isdigit() or len(value) > 9:
        return 0, ""
    processes = max(1, on_this_node(server)) if reserved.each else 1
    option = next(name for name in names if server.has_option(name) or name in server.variables)
    of = f" in each of {processes} processes" if processes > 1 else ""
    return int(float(value) * reserved.unit) * processes, f"{option} {value}{of}"


def _of_directory(
    template: PodTemplate, container: Container, server: Server, variable: str, amount: int
) -> Findings:
    """A cache of files that is larger than its emptyDir or the limit of ephemeral-storage."""
    directory = (server.variables.get(variable) or "").removeprefix("file://").rstrip("/")
    volumes = {each.name: each.empty_dir for each in template.typed.spec.volumes}
    mount = next((m for m in container.typed.volume_mounts if m.mount_path.rstrip("/") == directory), None)
    place = None if mount is None else volumes.get(mount.name)
    if not directory or (mount is not None and place is None):
        return  # another kind of volume, whose size is unknown
    limits = [bytes_or_zero(container.typed.resources.limits.get("ephemeral-storage"))]
    limits += [bytes_or_zero(place.size_limit)] if place is not None else []
    room = min(filter(None, limits), default=0)
    if room and amount > room:
        yield Finding(
            template.at(container),
            f"The processes of container {container.name} ({server.name}) may store {in_binary(amount)} "
            f"in {directory} together, but it holds only {in_binary(room)}. The kubelet evicts "
            "the pod.",
            "Lower the size of each process's cache, or give the volume room for all of them.",
        )


def _of_weights(template: PodTemplate, container: Container, facts: Facts) -> Findings:
    """Weights in the memory of a server that computes on the CPU."""
    if template.is_ray or wants_accelerator(template.view, facts):
        return
    load = load_of(template.view, container, facts)
    limit = 0 if load is None else container.typed.resources.memory_limit
    if load is not None and 0 < limit < load.weights * MIN_SHARE:
        yield Finding(
            template.at(container, "resources.limits"),
            f"Model {load.model} has about {in_decimal(load.weights)}, but the server, which computes "
            f"on the CPU, may use only {in_decimal(limit)} of memory. The kernel kills it while it "
            "loads.",
            "Raise the memory limit above the model's size, or request accelerators.",
        )


RULE = rule(__name__, check)
