"""job-runs-again: Jobs that a GitOps tool creates again whenever their time to live has deleted them."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.jobs.jobs import is_hook
from policies.kube.group_kinds import JOB
from policies.kube.objects.jobs import Job

_ARGO: Final = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/sync-wave",
    "argocd.argoproj.io/sync-options",
)
_FLUX: Final = ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name")
_FLUX_OFF: Final = "kustomize.toolkit.fluxcd.io/reconcile"
_DAY: Final = 86400


def check(target: Target, facts: Facts) -> Findings:
    job = target.read(Job)
    seconds, metadata = job.spec.ttl_seconds_after_finished, job.metadata
    if seconds is None or seconds > _DAY or is_hook(target.obj) or not metadata.name:
        return
    keys = (*metadata.annotations, *metadata.labels)
    tool = (
        "Argo CD"
        if any(key in keys for key in _ARGO)
        else "Flux"
        if any(key in keys for key in _FLUX)
        else ""
    )
    if not tool or metadata.annotations.get(_FLUX_OFF) == "disabled":
        return
    yield Finding(
        "spec.ttlSecondsAfterFinished",
        f"{tool} applies this Job, and Kubernetes deletes it {seconds} s after it ends. {tool} then finds "
        "it missing and, with automatic sync, runs it again and again.",
        "Omit ttlSecondsAfterFinished, or make the Job a hook with a deletion policy "
        "(argocd.argoproj.io/hook: Sync, argocd.argoproj.io/hook-delete-policy: BeforeHookCreation)."
        if tool == "Argo CD"
        else "Omit ttlSecondsAfterFinished. With force: true, Flux replaces a Job that has changed.",
    )


RULE = rule(__name__, check, (JOB,), unowned=True)
