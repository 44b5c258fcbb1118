"""The size of a container's /dev/shm."""

from __future__ import annotations

import posixpath
from typing import Final

from policies.core.target import PodTemplate
from policies.kube.objects.pods import Volume, VolumeMount
from policies.kube.pods import Container
from policies.kube.quantities import bytes_or_zero, parse_quantity

DEFAULT_BYTES: Final = 64 * 1024 * 1024
"""The size of /dev/shm in containerd and CRI-O: `size=65536k`."""
HINT: Final = (
    "Mount an emptyDir volume with medium Memory at /dev/shm, with a sizeLimit of several GiB. What is "
    "written to it counts against the container's memory limit."
)
_SIZED_BY: Final = "io.kubernetes.cri-o.ShmSize"
"""An annotation for another size in CRI-O."""
_PLACES: Final = ("/dev/shm", "/dev")  # noqa: S108 a path in the container


def has_default_shm(template: PodTemplate) -> bool:
    """Whether containers without a volume at /dev/shm have the default size."""
    pod = template.typed
    return not pod.spec.host_ipc and _SIZED_BY not in pod.metadata.annotations


def is_small(template: PodTemplate, container: Container) -> bool:
    """Whether /dev/shm has no more than the default size."""
    volumes = _volumes(template, container)
    return volumes is None or (bool(volumes) and all(map(_is_limited, volumes)))


def greatest_size(template: PodTemplate, container: Container, default: int) -> int:
    """The bytes of /dev/shm, which has the default size without a volume; 0 if unknown."""
    volumes = _volumes(template, container)
    if volumes is None:
        return default
    places = [each.empty_dir for each in volumes]
    return max(
        (bytes_or_zero(each.size_limit) if each and each.medium == "Memory" else 0 for each in places),
        default=0,
    )


def is_at_shm(mount: VolumeMount) -> bool:
    """Whether a volume is mounted at /dev/shm, or at /dev, which has it."""
    return posixpath.normpath(mount.mount_path) in _PLACES


def is_in_memory(volume: Volume) -> bool:
    """Whether a volume is an emptyDir in memory."""
    return volume.empty_dir is not None and volume.empty_dir.medium == "Memory"


def _volumes(template: PodTemplate, container: Container) -> list[Volume] | None:
    """The known volumes at /dev/shm; None if nothing is mounted there."""
    names = {mount.name for mount in container.typed.volume_mounts if is_at_shm(mount)}
    if not names:
        return None
    return [volume for volume in template.typed.spec.volumes if volume.name in names]


def _is_limited(volume: Volume) -> bool:
    """Whether a volume is in memory and no larger than the default."""
    place = volume.empty_dir
    if place is None or not is_in_memory(volume) or place.size_limit is None:
        return False
    try:
        return 0 < parse_quantity(place.size_limit) <= DEFAULT_BYTES
    except ValueError:
        return False
