"""Pods that may use accelerators without requesting any."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from policies.accelerators.gpu_images import gpu_images
from policies.core.facts import Facts
from policies.core.pod_view import PodView
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
