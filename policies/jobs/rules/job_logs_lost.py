"""job-logs-lost: Jobs that are deleted with their logs soon after their end."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from policies.accelerators.requests import is_large, wants_accelerator
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import Run, runs_in
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import is_hook, is_labelled_training, is_someone_elses, jobs_in
from policies.jobs.schedules import period_of
from policies.jobs.training import runs_training
from policies.kube.field_paths import field_path
from policies.kube.metadata import HELM_HOOK
from policies.kube.objects.metadata import Object
from policies.kube.scheduling import required_keys

LONG_ENOUGH: Final = 3600
"""Seconds: enough for somebody who waits for the Job."""

_DELETED_FAILED: Final = {
    "helm.sh/hook-delete-policy": "hook-failed",
    "argocd.argoproj.io/hook-delete-policy": "HookFailed",
}
"""The annotations of Helm and Argo CD, and their word for deleting what has failed.
https://helm.sh/docs/topics/charts_hooks/, https://argo-cd.readthedocs.io/en/stable/user-guide/sync-waves/"""
_BEFORE: Final = {
    "helm.sh/hook-delete-policy": "before-hook-creation",
    "argocd.argoproj.io/hook-delete-policy": "BeforeHookCreation",
}
_SHOWN: Final = "helm.sh/hook-output-log-policy"
"""With it, Helm 4 prints the log before it deletes the hook."""


_log_stores = data.names("policies.jobs", "log_stores.yaml")


def check(target: Target, facts: Facts) -> Findings:
    if is_hook(target.obj):
        yield from _of_failed_hook(target)
        return
    if is_someone_elses(target.obj):
        return
    if any(map(_is_logged_elsewhere, target.templates)):
        return
    runs = list(runs_in(target.obj))
    if any(run.life.logs or run.life.recreated for run in runs) or not _matters(target, runs, facts):
        return
    soon = list(_of_short_lives(target, runs, facts))
    for run in runs:
        yield from _of_ended_pods(run)
        for found in _of_failed_runs(run, runs):
            yield replace(found, hint=" ".join((found.hint, *(each.hint for each in soon))))
            soon.clear()  # one finding about the log of what has failed
    yield from soon


def _is_logged_elsewhere(template: PodTemplate) -> bool:
    """Whether a pod can only run on nodes whose logs are kept without it."""
    keys = required_keys(template.typed.spec)
    return any(key.startswith(_log_stores()) for key in keys)


def _of_short_lives(target: Target, runs: list[Run], facts: Facts) -> Findings:
    """Findings about workloads that are deleted soon after their end."""
    settings = facts.settings(JobRetries)
    least = settings.min_log_retention
    # More than an hour is the author's decision, unless the policy sets a minimum.
    decided = "min_log_retention" in settings.given
    shortest = least if decided else min(least, LONG_ENOUGH)
    for run in runs:
        seconds = run.value(run.life.ttl) if run.life.ttl else None
        if (
            isinstance(seconds, int)
            and not isinstance(seconds, bool)
            and seconds < shortest
            and (decided or not _is_seen_again(runs, seconds))
        ):
            yield Finding(
                run.at(run.life.ttl),
                f"{_what(run, target)} is deleted {seconds} s after it ends, together with the logs of its "
                "pods.",
                f"Set {run.life.ttl.rpartition('.')[2]} to at least {least}, or omit it.",
            )


def _is_seen_again(runs: list[Run], seconds: int) -> bool:
    """Whether a scheduled run starts while the logs of the last one are kept: a failure that lasts is always
    in them."""
    return any(period is not None and period <= seconds for period in map(period_of, runs))


def _of_ended_pods(run: Run) -> Findings:
    """A finding about a workload that deletes its pods at its end, also those that failed."""
    ending = run.life.ending
    for field in () if ending is None else ending.fields:
        value = run.value(field)
        if ending is not None and value in ending.deletes:
            yield Finding(
                run.at(field),
                f"With {field} {value}, all pods are deleted when the {run.life.kind} ends, together "
                "with the logs that show why it failed.",
                f"Set {field} to {ending.instead}, which deletes only the pods that are still running.",
            )


def _of_failed_runs(run: Run, runs: list[Run]) -> Findings:
    """A finding about a workload that keeps no failed run."""
    if run.life.failed_kept and run.value(run.life.failed_kept) == 0:
        made = next((each.life.kind for each in runs if each is not run), "run")
        yield Finding(
            run.at(run.life.failed_kept),
            f"A failed {made} is deleted immediately, together with the logs that show why it failed.",
            f"Set {run.life.failed_kept} to at least 1.",
        )


def _what(run: Run, target: Target) -> str:
    if run.life.group_kind == target.kind:
        return f"The {run.life.kind}"
    return f"A {run.life.kind} of this {target.kind.kind}"


def _of_failed_hook(target: Target) -> Findings:
    """A finding about a hook that is deleted because it failed. Whoever runs a test reads its log."""
    annotations = target.read(Object).metadata.annotations
    if "test" in annotations.get(HELM_HOOK, "") or _SHOWN in annotations:
        return
    for key, policy in _DELETED_FAILED.items():
        words = [word.strip() for word in annotations.get(key, "").split(",")]
        if policy in words:
            yield Finding(
                field_path(("metadata", "annotations", key)),
                f"With {policy}, the {target.kind.kind} is deleted as soon as it fails, together with the "
                "log that shows why.",
                f"Remove {policy}, and keep {_BEFORE[key]}, which deletes it before the next run.",
            )


def _matters(target: Target, runs: list[Run], facts: Facts) -> bool:
    """Whether the logs matter: training, and scheduled runs, which nobody watches. Setup Jobs can run
    again, and somebody starts a run whose schedule is suspended."""
    if any(run.life.trains or (run.life.schedule is not None and not run.is_suspended) for run in runs):
        return True
    settings = facts.settings(JobRetries)
    if any(is_labelled_training(target.obj, job, settings) for job in jobs_in(target.obj)):
        return True
    views = [each.view for each in target.templates]
    return any(
        wants_accelerator(each, facts) or (runs_training(each) and is_large(each, facts)) for each in views
    )


RULE = rule(__name__, check, tuple(known_lifecycles()))
