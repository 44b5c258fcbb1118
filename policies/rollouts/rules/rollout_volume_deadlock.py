"""rollout-volume-deadlock: a rollout whose new pod waits for the volume that the old pod holds."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.data_directories import data_directories, is_below
from policies.core.listing import Objects
from policies.core.volumes import keeps_others_waiting
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import DEPLOYMENT, ROLLOUT
from policies.kube.names import listed
from policies.kube.objects.nodes import pinned_to_one_node
from policies.kube.objects.pods import VolumeMount
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.kube.pods import Role
from policies.rollouts.held_claims import user_elsewhere
from policies.rollouts.rollouts import (
    RollingUpdate,
    RolloutOutcome,
    made_rollouts,
    minimum_replicas,
    outcome,
    pending_replicas,
    running_update,
)
from policies.rollouts.rules.rollout_host_port_deadlock import keeps_new_pod_waiting

_IN_PLACE: Final = "Set strategy.type to Recreate, or maxSurge 0 with maxUnavailable 1"


def check(target: Target, facts: Facts) -> Findings:
    claims = facts.objects(PersistentVolumeClaim)
    if not claims:
        return
    update = running_update(target, facts)
    if update is not None:
        for template in target.templates:
            yield from _of_pods(target, template, update, claims, facts)
    for made in made_rollouts(target):
        for found in _of_pods(target, made.template, made.update, claims, facts):
            set_it = f"Set {made.strategy}.type to Recreate, or use" if made.strategy else "Use"
            # The operator's own configuration may have another strategy.
            yield replace(found, hint=f"{set_it} a ReadWriteMany claim.", certainty=Certainty.UNDECIDED)


def _of_pods(
    target: Target,
    template: PodTemplate,
    update: RollingUpdate,
    claims: Objects[PersistentVolumeClaim],
    facts: Facts,
) -> Findings:
    """Findings about the pods of one rolling update."""
    pod = template.typed.spec
    in_place = update.in_place if target.kind == ROLLOUT else _IN_PLACE
    locks = _locked(template)
    elsewhere: dict[str, str] = {}  # claims that keep a new pod on another node waiting, with their paths
    for index, volume in enumerate(pod.volumes):
        source = volume.persistent_volume_claim
        claim = claims.named(source.claim_name) if source is not None else None
        if claim is None:
            continue
        path = f"{template.spec_path}.volumes[{index}].persistentVolumeClaim"
        if "ReadWriteOncePod" in claim.spec.access_modes:
            yield from _of_one_pod(path, claim.name, update, in_place)
        elif volume.name in locks and "ReadWriteMany" in claim.spec.access_modes and _adds_first(update):
            yield _of_one_process(path, claim.name, locks[volume.name], in_place)
        elif set(claim.spec.access_modes) == {"ReadWriteOnce"} and keeps_others_waiting(claim, facts):
            if user_elsewhere(target, pod, claim, facts) is not None and minimum_replicas(target, facts):
                continue  # volume-out-of-reach is about it: one edit is right for both
            if update.replicas > 1:
                continue  # the same: no strategy lets several pods share it
            elsewhere.setdefault(claim.name, path)
    if not elsewhere or not _adds_first(update) or pinned_to_one_node(pod):
        return
    if not keeps_new_pod_waiting(target, template, update, facts):  # one edit is right for both
        yield _of_one_node(elsewhere, in_place)


def _locked(template: PodTemplate) -> dict[str, str]:
    """The volumes of a pod with a directory that a store locks, each with the name of the store's image."""
    return {
        mount.name: directory.image
        for container in template.containers(Role.MAIN)
        for directory in data_directories(container)
        for mount in container.typed.volume_mounts
        if directory.locked and _covers(mount, directory.path)
    }


def _covers(mount: VolumeMount, path: str) -> bool:
    """Whether the directory is in the volume, at a place that all pods share."""
    return not mount.sub_path_expr and is_below(path, posixpath.normpath(mount.mount_path or "/"))


def _of_one_node(claims: Mapping[str, str], in_place: str) -> Finding:
    """About claims, each with its path."""
    ending, verb = ("s", "are") if len(claims) > 1 else ("", "is")
    return Finding(
        next(iter(claims.values())),
        f"Claim{ending} {listed(list(claims))} {verb} ReadWriteOnce, and the new pod starts before the old "
        f"one stops. On another node, it waits for the volume{ending}, which the old pod keeps until the "
        "new one is ready.",
        f"{in_place}, or use a ReadWriteMany claim.",
        Certainty.LIKELY,
    )


def _of_one_process(path: str, claim: str, store: str, in_place: str) -> Finding:
    return Finding(
        path,
        f"Claim {claim} has the data directory of {store}, which one process at a time may lock. The new pod "
        "starts before the old one stops, finds the lock, and is never ready, so the old one stays.",
        f"{in_place}.",
        Certainty.LIKELY,
    )


def _adds_first(update: RollingUpdate) -> bool:
    """Whether a new pod is created while an old one runs."""
    return update.surge > 0 and update.unavailable < update.replicas


def _of_one_pod(path: str, claim: str, update: RollingUpdate, in_place: str) -> Findings:
    match outcome(update, 1):
        case RolloutOutcome.STUCK:
            yield Finding(
                path,
                f"Claim {claim} is ReadWriteOncePod, and the new pod starts before the old one stops. It "
                "waits for the volume, which the old pod keeps until the new one is ready.",
                f"{in_place}, or use a ReadWriteMany claim.",
            )
        case RolloutOutcome.SHORT:
            replicas = pending_replicas(update.replicas, 1)
            yield Finding(
                path,
                f"Claim {claim} is ReadWriteOncePod, so only one pod can use it: {replicas}.",
                "Run 1 replica, use a ReadWriteMany claim, or use a StatefulSet with a claim for each pod.",
            )


_KINDS: Final = (DEPLOYMENT, ROLLOUT, *(each.group_kind for each in known_workloads() if each.deployments))
RULE = rule(__name__, check, _KINDS, requires=(PodFeature.CLAIM,))
