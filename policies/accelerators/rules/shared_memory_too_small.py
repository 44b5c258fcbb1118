"""shared-memory-too-small: servers that need more than what /dev/shm of their container holds."""

from __future__ import annotations

from typing import Final

from policies.accelerators.parallelism import devices, on_this_node, per_copy
from policies.accelerators.requests import wants_accelerator
from policies.accelerators.shared_memory import (
    DEFAULT_BYTES,
    HINT,
    greatest_size,
    has_default_shm,
    is_at_shm,
    is_in_memory,
    is_small,
)
from policies.containers.programs import launch_of
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.ray_pods import start_parameters
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import RAY_KINDS
from policies.kube.images import image_matches
from policies.kube.objects.ray import RayObject
from policies.kube.pods import Container, Role
from policies.kube.quantities import bytes_or_zero, in_binary, in_decimal, whole_number
from policies.probes.recognition import Server, is_since
from policies.probes.server_facts import SharedMemory, SharedRegion
from policies.probes.serving import recognised
from policies.rollouts.rollouts import pods_per_replica

_DISABLED_BY: Final = "NCCL_SHM_DISABLE"
_STORE: Final = "object-store-memory"
_SLOW: Final = "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"
_REQUIRED_ABOVE: Final = 10**10
"""Ray stores less on disk if /dev/shm is too small (`REQUIRE_SHM_SIZE_THRESHOLD`)."""
_DIGITS: Final = 15
_FILLED: Final = 0.9
"""The least part of an amount that whole blocks of a cache fill."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in RAY_KINDS:
        yield from _object_stores(target)
        return
    for template in target.templates:
        if not template.has_own_volumes or template.is_ray or not has_default_shm(template):
            continue
        forgotten = _forgotten(template, facts)
        if forgotten is not None:
            yield forgotten
            continue
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            if server is None:
                continue
            found = _region(template, container, server)
            if found is not None:
                yield found
                continue
            if _DISABLED_BY in launch_of(container).variables:
                continue
            needs = next(
                (each for each in server.preset.shared_memory if _has(each, server, container)), None
            )
            if needs is not None and is_small(template, container):
                yield Finding(
                    template.at(container),
                    f"Container {container.name} runs {server.name} with the default size of /dev/shm, 64 "
                    f"MiB, but needs more, since {needs.why}.",
                    HINT,
                )
                continue
            ranks = max(on_this_node(server), _by_default(server, container), _in_group(target, server))
            if ranks > 1 and devices(container) > 1 and is_small(template, container):
                yield Finding(
                    template.at(container, "volumeMounts"),
                    f"Container {container.name} runs {server.name} on {ranks} GPUs with the default size "
                    "of /dev/shm, 64 MiB. If NCCL exchanges data through it, the server fails with 'No "
                    "space left on device' when it starts or later.",
                    HINT,
                )


def _forgotten(template: PodTemplate, facts: Facts) -> Finding | None:
    """A volume named after /dev/shm, in memory, that no container mounts, if none has another one there."""
    volumes = enumerate(template.typed.spec.volumes)
    named = [(index, each) for index, each in volumes if "shm" in each.name and is_in_memory(each)]
    if not named:
        return None
    mounts = [mount for each in template.containers() for mount in each.typed.volume_mounts]
    mounted = {mount.name for mount in mounts}
    index, volume = next(((index, each) for index, each in named if each.name not in mounted), (0, None))
    if volume is None or any(map(is_at_shm, mounts)) or not wants_accelerator(template.view, facts):
        return None
    return Finding(
        f"{template.spec_path}.volumes[{index}]",
        f"No container mounts the volume {volume.name}, so /dev/shm has the default size, 64 MiB. Processes "
        "that share more through it, such as the workers of PyTorch's DataLoader, end with a bus error.",
        f"Mount {volume.name} at /dev/shm.",
        Certainty.LIKELY,
    )


def _region(template: PodTemplate, container: Container, server: Server) -> Finding | None:
    """A file of a known size that is larger than /dev/shm."""
    size = greatest_size(template, container, DEFAULT_BYTES)
    if not size or server.conditional or not on_this_node(server):
        return None
    for region in server.preset.shared_regions:
        amount, option = _size_of(region, server, container)
        if amount * _FILLED > size:
            return Finding(
                template.at(container, "volumeMounts"),
                f"Container {container.name} ({server.name}) keeps {region.what} in /dev/shm, "
                f"{in_binary(amount)} by {option}, but it has {in_binary(size)}. The server ends "
                "with an error when it starts.",
                "Give an emptyDir volume with medium Memory at /dev/shm a sizeLimit above that, and the "
                "container as much more memory, or lower the option.",
            )
    return None


def _size_of(region: SharedRegion, server: Server, container: Container) -> tuple[int, str]:
    """The size of a file in bytes, and the option that sets it; 0 if there is none or it is unknown."""
    value = server.options.value(region.flags)
    if value is None or (region.images and not image_matches(container.image, region.images)):
        return 0, ""
    if region.since and not is_since(server, container, region.since):
        return 0, ""
    if server.has_option(*region.unless_flags) or server.has_variable(*region.unless_env):
        return 0, ""
    if any(text not in value for text in region.texts) or any(text in value for text in region.unless_texts):
        return 0, ""
    if region.key:
        return server.options.number_at(region.flags, region.key) * region.unit, region.key[-1]
    return (whole_number(value, _DIGITS) or 0) * region.unit, region.flags[0]


def _object_stores(target: Target) -> Findings:
    """Object stores of Ray that do not fit into the memory that it finds (`determine_plasma_store_config` in
    ray/_private/services.py of Ray 2.40)."""
    cluster = target.read(RayObject).cluster
    for template in target.templates:
        store = whole_number(start_parameters(cluster, template).get(_STORE), _DIGITS)
        # KubeRay starts Ray in the first container.
        container = next(iter(template.containers(Role.MAIN)), None)
        if not store or container is None:
            continue
        resources = container.typed.resources
        limit = resources.memory_limit
        # KubeRay makes /dev/shm as large (`findMemoryReqOrLimit` in controllers/ray/common/pod.go of 1.6).
        default = limit or bytes_or_zero(resources.requests.get("memory"))
        shared = greatest_size(template, container, default)
        slow = container.typed.env_from or any(each.name == _SLOW for each in container.typed.env)
        if limit and store > limit:
            size, what = limit, "the memory limit"
        elif shared and store > max(shared, _REQUIRED_ABOVE) and not slow:
            size, what = shared, "/dev/shm"  # noqa: S108 a path in the container
        else:
            continue
        yield Finding(
            field_path((*template.steps[:-1], "rayStartParams", _STORE)),
            f"Ray's object store ({_STORE}) is {in_decimal(store)}, but {what} of container "
            f"{container.name} is {in_decimal(size)}. Ray exits with an error when it starts.",
            f"Lower {_STORE}, by default 30 % of the memory, or raise the memory limit.",
        )


def _has(needs: SharedMemory, server: Server, container: Container) -> bool:
    """Whether the processes of a server exchange data through /dev/shm for this reason."""
    line = f" {' '.join(server.argv)}".replace("=", " ")  # a value may follow its flag in either way
    return (
        any(f" {flag}".replace("=", " ") in line for flag in needs.flags)
        or any(text in word for text in needs.values for word in server.argv)
        or image_matches(container.image, needs.images)
        or _on_processors(needs, server, container)
    )


def _on_processors(needs: SharedMemory, server: Server, container: Container) -> bool:
    """Whether several processes of the server compute on processors, and need more than the default size."""
    if not needs.each_processor or on_this_node(server) < 2:
        return False
    resources = container.typed.resources
    if resources.has_devices or server.has_env_from:
        return False  # it may compute on devices
    requested = {**resources.limits, **resources.requests}
    return bytes_or_zero(requested.get("cpu")) * needs.each_processor > DEFAULT_BYTES


def _by_default(server: Server, container: Container) -> int:
    """The accelerators of a server that uses all of its container, unless an option says otherwise."""
    known = server.preset.parallelism
    if known is None or not known.takes_all or server.has_option(*known.elsewhere_with):
        return 0
    options = any(server.configured(each.flags, each.variables) is not None for each in known.spread)
    return 0 if options else devices(container)


def _in_group(target: Target, server: Server) -> int:
    """The accelerators on one of the nodes that share a server; 0 if unknown."""
    if not server.spans_pods or server.conditional or server.may_hold_options:
        return 0
    nodes = whole_number(server.options.value(("--nnodes",)), 4) or sum(
        n for _, n in pods_per_replica(target)
    )
    return per_copy(server) // nodes if nodes > 1 else 0


RULE = rule(__name__, check)
