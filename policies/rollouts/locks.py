"""Stores that lock their data directory, so that a second process on the same volume ends with an error."""

from __future__ import annotations

import posixpath

from policies.core import data
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.kube.images import repository
from policies.kube.objects.pods import VolumeMount
from policies.kube.pods import Role


class Lock(Model):
    """An entry of `locks.yaml`."""

    image: str = Field(description="the last part of the image's repository")
    path: str = Field(description="the directory that it locks")
    source: str = Field(description="the documentation or thread that shows it")


@data.table
def _locks() -> tuple[Lock, ...]:
    return data.load_list(Lock, __package__, "locks.yaml")


def locked(template: PodTemplate) -> dict[str, str]:
    """The volumes of a pod with a locked directory at their root, each with the name of the store's image."""
    found: dict[str, str] = {}
    for container in template.containers(Role.MAIN):
        name = repository(container.image).rpartition("/")[2]
        paths = [each.path for each in _locks() if each.image == name]
        for mount in container.typed.volume_mounts:
            if any(_covers(mount, path) for path in paths):
                found[mount.name] = name
    return found


def _covers(mount: VolumeMount, path: str) -> bool:
    """Whether the directory is in the volume, at a place that all pods share."""
    at = posixpath.normpath(mount.mount_path or "/").rstrip("/")
    return not mount.sub_path_expr and f"{path}/".startswith(f"{at}/")
