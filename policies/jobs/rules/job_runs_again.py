"""job-runs-again: workloads that something creates again when their time to live has deleted them, and Jobs
whose pods are replaced although their orchestrator starts them again."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import run_of
from policies.jobs.jobs import is_hook, jobs_in, orchestrated
from policies.kube.group_kinds import JOB
from policies.kube.metadata import ARGO_HOOK
from policies.kube.objects.jobs import Job

_ARGO: Final = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/sync-wave",
    "argocd.argoproj.io/sync-options",
    ARGO_HOOK,
)
_FLUX: Final = ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name")
_FLUX_OFF: Final = "kustomize.toolkit.fluxcd.io/reconcile"
_DAY: Final = 86400
_PATH: Final = "spec.ttlSecondsAfterFinished"


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == JOB:
        yield from _applied(target)
        yield from _replaced(target)
    else:
        yield from _recreated(target)


def _replaced(target: Target) -> Findings:
    """A Job with a pod of an orchestrator that Kubernetes may replace."""
    for job in jobs_in(target.obj):
        program = orchestrated(job)
        if program is None or not program.stuck:
            continue
        ignored = job.on_disruption() == "Ignore"
        if ignored or job.backoff_limit:
            yield Finding(
                job.at("podFailurePolicy" if ignored else "backoffLimit"),
                f"After an eviction, Kubernetes replaces the pod. The new {program.program} "
                f"{program.replacement}.",
                "Set backoffLimit: 0 without a podFailurePolicy: the orchestrator starts a lost run again.",
            )


def _recreated(target: Target) -> Findings:
    """A workload that its own controller creates again."""
    run = run_of(target.obj)
    known = run.life.recreated if run is not None else None
    if run is None or known is None or not isinstance(seconds := run.value(known.ttl), int):
        return
    made = next((each.kind for each in run.life.embeds if known.ttl.startswith(f"{each.at}.")), run.life.kind)
    yield Finding(
        run.at(known.ttl), f"The {made} is deleted {seconds} s after it ends. {known.what}.", known.instead
    )


def _applied(target: Target) -> Findings:
    """A Job that a GitOps tool applies."""
    job = target.read(Job)
    seconds, metadata = job.spec.ttl_seconds_after_finished, job.metadata
    if seconds is None or seconds > _DAY or not metadata.name:
        return
    keys = (*metadata.annotations, *metadata.labels)
    tool = (
        "Argo CD"
        if any(key in keys for key in _ARGO)
        else "Flux"
        if any(key in keys for key in _FLUX)
        else ""
    )
    if is_hook(target.obj):
        if seconds == 0 and tool == "Argo CD" and metadata.annotations.get(ARGO_HOOK) != "Skip":
            yield Finding(
                _PATH,
                "Argo CD waits for the end of this hook, and Kubernetes deletes the Job as soon as it has "
                "ended. If Argo CD doesn't see its end before that, the sync waits forever.",
                "Omit ttlSecondsAfterFinished: hook-delete-policy says when the hook is deleted.",
            )
        return
    if not tool or metadata.annotations.get(_FLUX_OFF) == "disabled":
        return
    # Without self-heal, automatic sync syncs a commit only once.
    again = (
        ", shows its application as OutOfSync and runs it again with the next sync, which self-heal "
        "starts at once"
        if tool == "Argo CD"
        else " and runs it again and again"
    )
    yield Finding(
        _PATH,
        f"{tool} applies this Job, and Kubernetes deletes it {seconds} s after it ends. {tool} then finds "
        f"it missing{again}.",
        "Omit ttlSecondsAfterFinished, or make the Job a hook with a deletion policy "
        f"({ARGO_HOOK}: Sync, argocd.argoproj.io/hook-delete-policy: BeforeHookCreation)."
        if tool == "Argo CD"
        else "Omit ttlSecondsAfterFinished. With force: true, Flux replaces a Job that has changed.",
    )


_KINDS: Final = (
    JOB,
    *(gk for gk, lives in known_lifecycles().items() if any(each.recreated is not None for each in lives)),
)
RULE = rule(__name__, check, _KINDS, unowned=True)
