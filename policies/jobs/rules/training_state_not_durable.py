"""training-state-not-durable: training whose checkpoints die with its pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.requests import GpuAffinity
from policies.core.annotations import CHECKPOINT
from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import PodTemplate, Target
from policies.jobs.jobs import is_someone_elses
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, KUBEFLOW_JOBS
from policies.kube.json import Json, dig, maps, text
from policies.kube.metadata import annotations_of

_FLEETING: Final = frozenset(
    {"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"}
)

_NO_STORAGE: Final = (
    "secrets-store.csi.k8s.io",
    "csi.cert-manager.io",
    "csi.spiffe.io",
    "driver.shipwright.io",
)
"""Inline CSI drivers that mount credentials, not storage."""


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    catalogue = facts.settings(GpuAffinity).catalogue
    training = [t for t in target.templates if t.completes and catalogue.requests(t.pod)]
    if not training or is_someone_elses(target.obj) or CHECKPOINT in annotations_of(target.obj):
        return
    # One rank writes for all: storage in one template is enough.
    if any(CHECKPOINT in annotations_of(t.pod) or _has_durable_volume(t) for t in target.templates):
        return
    yield Finding(
        f"{training[0].spec_path}.volumes",
        "Whatever the training writes dies with its pod: no container mounts a volume that outlives it.",
        "Mount a PersistentVolumeClaim for checkpoints, or name where they go in the annotation "
        f"{CHECKPOINT}.",
    )


def _has_durable_volume(template: PodTemplate) -> bool:
    durable = {text(volume, "name") for volume in maps(template.spec, "volumes") if _is_durable(volume)}
    return any(
        text(mount, "name") in durable and mount.get("readOnly") is not True
        for container in template.containers()
        for mount in (*maps(container.spec, "volumeMounts"), *maps(container.spec, "volumeDevices"))
    )


def _is_durable(volume: Json) -> bool:
    """Whether what is written there is found again; a hostPath may be a shared file system, so it counts."""
    if (
        dig(volume, "persistentVolumeClaim", "readOnly") is True
        or text(volume, "csi", "driver") in _NO_STORAGE
    ):
        return False
    return bool(set(volume) - _FLEETING - {"name"})


RULE = rule(__name__, check, (JOB, CRON_JOB, JOB_SET, *KUBEFLOW_JOBS))
