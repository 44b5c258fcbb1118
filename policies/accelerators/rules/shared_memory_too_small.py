"""shared-memory-too-small: servers on several GPUs with the container runtime's default /dev/shm."""

from __future__ import annotations

import posixpath
from typing import Final

from policies.accelerators.parallelism import on_this_node
from policies.accelerators.rules.parallelism_exceeds_gpus import devices
from policies.containers.programs import launch_of
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.workloads import MADE_AS_WRITTEN
from policies.kube.images import image_matches
from policies.kube.objects.pods import Volume
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_quantity
from policies.probes.recognition import Server
from policies.probes.serving import recognised

DEFAULT_BYTES: Final = 64 * 1024 * 1024
"""The size of /dev/shm in containerd and CRI-O: `size=65536k`."""
_SIZED_BY: Final = "io.kubernetes.cri-o.ShmSize"
"""An annotation for another size in CRI-O."""
_DISABLED_BY: Final = "NCCL_SHM_DISABLE"
_PLACES: Final = ("/dev/shm", "/dev")  # noqa: S108 a path in the container

_HINT: Final = (
    "Mount an emptyDir volume with medium Memory at /dev/shm, with a sizeLimit of several GiB. What is "
    "written to it counts against the container's memory limit."
)


def check(target: Target, facts: Facts) -> Findings:
    if target.kind.group not in MADE_AS_WRITTEN:
        return
    for template in target.templates:
        pod = template.typed
        if template.is_ray or pod.spec.host_ipc or _SIZED_BY in pod.metadata.annotations:
            continue
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            if server is None or _DISABLED_BY in launch_of(container).variables:
                continue
            if _exchanges(server, container) and _is_small(template, container):
                needs = server.preset.shared_memory
                yield Finding(
                    template.at(container),
                    f"Container {container.name} runs {server.name} with the default size of /dev/shm, 64 "
                    f"MiB, and needs more, since {needs.why if needs else ''}.",
                    _HINT,
                )
                continue
            ranks = max(on_this_node(server), _by_default(server, container))
            if ranks > 1 and devices(container) > 1 and _is_small(template, container):
                yield Finding(
                    template.at(container, "volumeMounts"),
                    f"Container {container.name} runs {server.name} on {ranks} GPUs with the default size "
                    "of /dev/shm, 64 MiB: if NCCL exchanges data through it, the server fails with 'No "
                    "space left on device' at or after its start.",
                    _HINT,
                )


def _exchanges(server: Server, container: Container) -> bool:
    """Whether the server's facts show that its processes exchange data through /dev/shm."""
    needs = server.preset.shared_memory
    if needs is None:
        return False
    by_flag = any(word.startswith(flag) for flag in needs.flags for word in server.argv)
    return by_flag or image_matches(container.image, needs.images)


def _by_default(server: Server, container: Container) -> int:
    """The accelerators of a server that uses all of its container, unless an option says otherwise."""
    known = server.preset.parallelism
    if known is None or not known.takes_all or server.has_option(*known.elsewhere_with):
        return 0
    options = any(server.configured(each.flags, each.variables) is not None for each in known.spread)
    return 0 if options else devices(container)


def _is_small(template: PodTemplate, container: Container) -> bool:
    """Whether /dev/shm has no more than the default size."""
    mounted = [
        mount for mount in container.typed.volume_mounts if posixpath.normpath(mount.mount_path) in _PLACES
    ]
    if not mounted:
        return True
    names = {mount.name for mount in mounted}
    volumes = [volume for volume in template.typed.spec.volumes if volume.name in names]
    return bool(volumes) and all(map(_is_limited, volumes))


def _is_limited(volume: Volume) -> bool:
    """Whether a volume is in memory and no larger than the default."""
    place = volume.empty_dir
    if place is None or place.medium != "Memory" or place.size_limit is None:
        return False
    try:
        return 0 < parse_quantity(place.size_limit) <= DEFAULT_BYTES
    except ValueError:
        return False


RULE = rule(__name__, check)
