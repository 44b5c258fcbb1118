"""Pods that may use accelerators without requesting any, and images whose programs use GPUs."""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath
from typing import Final

from policies.core.data import entries
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.settings import Field, Model
from policies.kube.images import image_matches
from policies.kube.json import maps, text
from policies.kube.pods import Container
from policies.probes.serving import recognised

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = frozenset({"", "none", "void"})
_DEVICES: Final = PurePosixPath("/dev")


def may_use_accelerators(view: PodView, facts: Facts) -> bool:
    """Whether a pod may use the accelerators of its node without a request: its runtime or a variable makes
    them visible, it mounts devices of the node, or its image is for GPUs."""
    paths = (text(volume, "hostPath", "path") for volume in maps(view.json, "spec", "volumes"))
    return (
        bool(view.typed.spec.runtime_class_name)  # it may give them to each container
        or any(_DEVICES in (path, *path.parents) for path in map(PurePosixPath, paths))
        or any(_may_use(each, facts) for each in view.containers)
    )


def _may_use(container: Container, facts: Facts) -> bool:
    if container.typed.security_context.privileged:
        return True
    if any(
        each.name == VISIBLE and (each.value_from is not None or each.value.lower() not in NO_DEVICES)
        for each in container.typed.env
    ):
        return True
    if image_matches(container.image, (*gpu_images(agents=False), *gpu_images(agents=True))):
        return True
    server = recognised(container, facts)
    if server is None:
        return False
    needs = server.preset.needs
    if needs is None:  # one image is for both
        return server.preset.loads_model or server.preset.pulls is not None
    return image_matches(container.image, needs.images, needs.excluded_images)


class GpuImage(Model):
    """An entry of the table gpu_images.yaml."""

    image: str = Field(description="a glob of the image's path, with or without its tag")
    agent: bool = Field(False, description="whether its program uses all GPUs of a node without a request")
    source: str = Field(description="the page that shows it")


@cache
def gpu_images(*, agents: bool) -> tuple[str, ...]:
    """The globs of the agents of nodes, or of the others."""
    return tuple(each.image for each in _images() if each.agent == agents)


_images = entries(GpuImage, "policies.accelerators", "gpu_images.yaml")
