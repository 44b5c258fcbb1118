"""The mutator disruption-guard, which disruption-guard.md documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.containers.commands import command_without_pod
from policies.containers.programs import idles
from policies.core.contracts import Mutator
from policies.core.facts import Facts, WholeObjects
from policies.core.finding import Certainty, Finding
from policies.core.groups import RAY_SERVES
from policies.core.pod_view import PodView
from policies.core.reasons import NO_REASONS, Reasons, in_words
from policies.disruption.disruption_guard_settings import DisruptionGuard
from policies.disruption.drains import drain_of
from policies.jobs.jobs import has_label, is_someone_elses, jobs_in
from policies.jobs.training import (
    LAUNCHERS_DAEMON,
    is_irreplaceable,
    only_state_of,
    runs_training,
    trains_by_kind,
)
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, POD, kind_of
from policies.kube.json import Json, integer, replaced
from policies.kube.metadata import has_room
from policies.kube.objects.pods import DEFAULT_GRACE
from policies.kube.pods import Container, Role, with_container
from policies.probes.serving import recognised, serving_containers

GUARDS: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
DEADLINE: Final = ("spec", "activeDeadlineSeconds")
GRACE: Final = ("spec", "terminationGracePeriodSeconds")
_FIRST_SLEEP: Final = (1, 30)
EXIT: Final = 5
"""Seconds of the grace period that remain after the sleep of a server that finishes requests during it."""


_LEADER_ELECTION: Final = ("--leader-elect", "--enable-leader-election", "--leader-election", "-leader-elect")
"""Flags of controllers."""

_CONTROLLER_PORT: Final = re.compile("metric|health|probe|webhook|prof")
"""A part of the port names of controllers."""


def mutate(pod: Json, settings: DisruptionGuard, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    if kind_of(pod) != POD:
        return pod  # `advise` reports Jobs
    view = facts.view(pod)
    if is_training(view, settings, facts):
        return _guarded(view, settings, reasons)
    if view.is_ray or not settings.pre_stop_sleep:
        return pod
    return _draining(view, settings, facts, reasons)


# --- training --------------------------------------------------------------------------------------


def is_training(view: PodView, settings: DisruptionGuard, facts: Facts) -> bool:
    """Whether a pod runs to completion and loses its work if it is evicted, or has the only state of a
    cluster, as the head of a Ray cluster has."""
    labels = view.typed.metadata.labels
    serves = RAY_SERVES in labels
    if not serves and only_state_of(view):
        return True
    ray = view.is_ray and not serves
    if not ray and not view.completes:
        return False
    if has_label(labels, settings.training_labels) or wants_accelerator(view, facts):
        return True
    return not ray and (trains_by_kind(view) or is_irreplaceable(view) or runs_training(view))


def _guarded(view: PodView, settings: DisruptionGuard, reasons: Reasons) -> Json:
    pod, typed = view.json, view.typed
    deadline, annotations = typed.spec.active_deadline_seconds, typed.metadata.annotations
    state = only_state_of(view)
    if settings.add_deadline and deadline is None and not state:
        pod = replaced(pod, DEADLINE, settings.max_duration)
        reasons.give(
            field_path(DEADLINE),
            f"a hung training pod holds its node for at most {in_words(settings.max_duration)}",
            setting="addDeadline",
        )
    if (deadline or 0) > settings.max_duration or not has_room(annotations, GUARDS):
        return pod
    reason = "runs to completion, and an eviction loses its work since its last checkpoint"
    if view.is_ray:
        reason = "runs tasks and actors of Ray, which an eviction ends"
    elif any(
        each.name == LAUNCHERS_DAEMON
        for container in view.main
        for each in command_without_pod(container).commands
    ):
        reason = "runs processes of a launcher, which an eviction ends"
    elif all(idles(command_without_pod(each)) for each in view.main):
        reason = "isn't started again after an eviction"
        if view.owner is not None:
            reason = "only waits, and an eviction ends what people run in it"
    if state:
        reason = f"{state}, and an eviction loses the state of the cluster and all workers"
    for key, value in GUARDS.items():
        if key not in annotations:
            pod = replaced(pod, ("metadata", "annotations", key), value)
            reasons.give(
                f"metadata.annotations[{key}]",
                reason,
                setting="trainingLabels",
                annotation=f"{key}={value}",
            )
    return pod


# --- serving ---------------------------------------------------------------------------------------


def _draining(view: PodView, settings: DisruptionGuard, facts: Facts, reasons: Reasons) -> Json:
    pod = view.json
    servers = [
        container
        for container in serving_containers(view, facts)
        # Native sidecars are stopped after the main containers, so no client uses them any more.
        if container.role is Role.MAIN
        and container.typed.pre_stop is None
        and (_can_sleep(facts) or _has_sleep(container, facts))
        and not _is_infrastructure(view, container)
    ]
    if not servers:
        return pod
    grace = view.typed.spec.grace
    short, long = settings.pre_stop_sleep, settings.whole_drain
    drains = [drain_of(container, facts) for container in servers]
    set_by_user = [drain.seconds for drain in drains if drain is not None and drain.option]
    if grace != DEFAULT_GRACE and grace < max([long, *(short + seconds for seconds in set_by_user)]):
        return pod  # the user's own grace period is too short for the sleep
    if facts.oldest_kubelet() is None and short + max(set_by_user, default=0) > grace:
        return pod  # without nodes the repair is not certain, and grace-shorter-than-drain warns
    seconds = [settings.drain if drain is None else drain.seconds for drain in drains]
    need = short + max(1, *seconds)
    if grace == DEFAULT_GRACE < need:
        grace = need
        pod = replaced(pod, GRACE, need)
        reasons.give(
            field_path(GRACE),
            f"{short} s of sleep and {need - short} s for the last requests",
            setting="drain",
        )
    for container, drain, takes in zip(servers, drains, seconds, strict=True):
        # A server that aborts its requests at SIGTERM, or soon after it by default, must finish them during
        # the sleep.
        chosen = takes and (drain is None or bool(drain.option))
        sleep = short if chosen or takes >= settings.drain or grace < long + EXIT else long - takes
        native = _can_sleep(facts)
        hook = {"sleep": {"seconds": sleep}} if native else {"exec": {"command": ["sleep", str(sleep)]}}
        pod = with_container(pod, container, replaced(container.spec, ("lifecycle", "preStop"), hook))
        reason = "requests still arrive until Services remove the pod"
        if sleep != short:
            aborts = "may abort" if drain is not None and drain.assumed else "aborts"
            after = f"{takes} s after" if takes else "when"
            reason += f", and this server {aborts} open requests {after} it is stopped"
        reasons.give(
            f"{container.path}.lifecycle.preStop",
            f"sleeps {sleep} s, because {reason}",
            setting="preStopSleep",
        )
    return pod


def _is_infrastructure(view: PodView, container: Container) -> bool:
    """Whether a container is an agent of its node (a CSI driver, a CNI plugin) or a controller. It has no
    requests to finish, and its successor or the next leader waits until it stops."""
    owner = view.owner
    if view.typed.spec.host_network or (owner is not None and owner.kind == "DaemonSet"):
        return True
    if any(word.startswith(_LEADER_ELECTION) for word in container.typed.argv):
        return True
    names = [port.name for port in container.typed.ports]
    return bool(names) and all(map(_CONTROLLER_PORT.search, names))


def _can_sleep(facts: Facts) -> bool:
    """Whether all API servers and kubelets accept `sleep`: an API server below 1.30 drops the field, and
    refuses the pod for its empty hook. No kubelet may be newer than an API server, so the oldest kubelet
    decides (https://kubernetes.io/releases/version-skew-policy/#kubelet). Manifests without nodes are read
    for supported versions of Kubernetes."""
    oldest = facts.oldest_kubelet()
    if oldest is None:
        return isinstance(facts.cluster, WholeObjects) and not facts.nodes()
    return oldest >= _FIRST_SLEEP


def _has_sleep(container: Container, facts: Facts) -> bool:
    """Whether the image certainly contains the program `sleep`, for nodes that are too old or unknown."""
    server = recognised(container, facts)
    return server is not None and server.own_image and "sleep" in server.preset.programs


# --- advice ----------------------------------------------------------------------------------------


def advise(obj: Json, settings: DisruptionGuard, facts: Facts) -> Iterator[Finding]:
    """Reports a training whose deadline is longer than `maxDuration`.

    A Job is reported when it is created: the user does not see warnings about its pods.
    """
    if kind_of(obj) == POD:
        view = facts.view(obj)
        pod, owner = view.typed, view.owner
        deadline = pod.spec.active_deadline_seconds or 0
        if deadline <= settings.max_duration or (owner is not None and owner.kind == "Job"):
            return
        if is_training(view, settings, facts):
            guarded = all(pod.metadata.annotations.get(key) == value for key, value in GUARDS.items())
            yield _long_deadline(deadline, "spec", guarded, settings)
    elif not is_someone_elses(obj):
        for job in jobs_in(obj):
            pods_of_job = facts.view(job.template)
            own = integer(job.spec, "activeDeadlineSeconds", default=0)
            pods = pods_of_job.typed.spec.active_deadline_seconds or 0
            deadline = min(filter(None, (own, pods)), default=0)
            if deadline > settings.max_duration and is_training(pods_of_job, settings, facts):
                guarded = not settings.add_deadline and pods <= settings.max_duration
                yield _long_deadline(deadline, field_path(job.steps), guarded, settings)


def _long_deadline(deadline: int, path: str, guarded: bool, settings: DisruptionGuard) -> Finding:
    most = settings.max_duration
    fate = "is kept from eviction beyond" if guarded else "may be evicted, since it would go beyond"
    return Finding(
        f"{path}.activeDeadlineSeconds",
        f"The training {fate} the {most} s that it may hold a node, because its deadline is {deadline} s.",
        f"Set activeDeadlineSeconds to at most {most}.",
        Certainty.UNDECIDED,
    )


MUTATOR = Mutator(
    "disruption-guard", DisruptionGuard, mutate=mutate, advise=advise, kinds=(POD, JOB, CRON_JOB, JOB_SET)
)
