"""The puller in a pod that has one already: its models, and the port of its status."""

from __future__ import annotations

from typing import Final

from policies.containers.programs import option
from policies.kube.json import Json, maps, text
from policies.kube.pods import Container, containers, port_number
from policies.models.volumes import mount_at
from policies.probes.recognition import is_puller

_STATUS_PORT: Final = 9081


def status_port(pod: Json) -> int | None:
    """The port of the puller's status; None if the pod has no puller."""
    for container in containers(pod):
        if is_puller(container):
            return port_number(container.typed, option(container.typed.argv, "--port")) or _STATUS_PORT
    return None


def running_puller(pod: Json, config: str) -> Container | None:
    """The container that mounts this ConfigMap at its `--config-dir`."""
    volumes = {
        text(volume, "name")
        for volume in maps(pod, "spec", "volumes")
        if text(volume, "configMap", "name") == config
    }
    for container in containers(pod):
        directory = option(container.typed.argv, "--config-dir")
        mount = None if directory is None else mount_at(container.spec, directory.rstrip("/"))
        if mount is not None and text(mount, "name") in volumes:
            return container
    return None


def models_mount(puller: Container) -> Json | None:
    """The volume mount of a puller's `--model-dir`."""
    directory = option(puller.typed.argv, "--model-dir") or "/mnt/models"
    return mount_at(puller.spec, directory.rstrip("/"))
