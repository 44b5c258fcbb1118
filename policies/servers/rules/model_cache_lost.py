"""model-cache-lost: servers that download a large model again at each start."""

from __future__ import annotations

import re
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.kube.quantities import in_decimal
from policies.servers.caches import Download, download_of, user_of

_LARGE: Final = 10 * 10**9
"""Bytes. A smaller model is downloaded within a minute or two."""
_FOR_MODELS: Final = re.compile(r"model|cache|hugging|weights|ollama|(?:^|\W)hf", re.IGNORECASE)
"""Names of volumes and directories that are meant for models."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.has_own_volumes or template.completes:
            continue
        for container in template.containers(Role.MAIN):
            found = download_of(template, container, facts)
            if found is None or (found.cache.in_home and not found.moved and user_of(template, container)):
                continue  # another user has another home directory, which only the image knows
            yield from _lost(target, template, container, found)


def _lost(target: Target, template: PodTemplate, container: Container, found: Download) -> Findings:
    name = f"Container {container.name} ({found.server.name})"
    amount = f" ({in_decimal(found.size)})" if found.size else ""
    hint = f"Mount a volume that outlives the pod at {found.directory}."
    if found.mount is None:
        elsewhere = _meant_for_models(target, template, container, found)
        if elsewhere:
            yield Finding(
                template.at(container),
                f"{name} stores {found.named}{amount} in {found.directory}, but the volume for models is "
                f"mounted at {elsewhere}. Each restart repeats the download.",
                hint,
            )
        elif found.size >= _LARGE:
            yield Finding(
                template.at(container),
                f"{name} downloads {found.named}{amount} to {found.directory}, which isn't on a volume. "
                "Each restart of the container repeats the download.",
                hint,
            )
    elif found.volume is not None and found.volume.empty_dir is not None:
        replicas = target.replicas or 1
        if found.size >= _LARGE and replicas > 1:
            yield Finding(
                template.at(container),
                f"{name} downloads {found.named}{amount} in each of {replicas} replicas, and again in each "
                "new pod, because an emptyDir is deleted with its pod.",
                f"Mount one volume that all replicas read at {found.directory}, and fill it once with a Job.",
            )


def _meant_for_models(target: Target, template: PodTemplate, container: Container, found: Download) -> str:
    """Where a volume for models is mounted; empty if there is none."""
    kept = {
        volume.name
        for volume in template.typed.spec.volumes
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None
    }
    if target.kind == STATEFUL_SET:
        kept.update(claim.name for claim in target.read(StatefulSet).spec.volume_claim_templates)
    for mount in container.typed.volume_mounts:
        if mount.name not in kept:
            continue
        at_default = found.moved and mount.mount_path.rstrip("/") == found.cache.directory
        if at_default or _FOR_MODELS.search(f"{mount.name} {mount.mount_path}"):
            return mount.mount_path
    return ""


RULE = rule(__name__, check)
