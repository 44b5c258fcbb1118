"""job-logs-lost: Jobs that are deleted with their logs soon after their end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lives import runs_in
from policies.jobs.jobs import JobRetries, is_hook, is_someone_elses, jobs_in, wants_to_finish
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, KUBEFLOW_JOBS
from policies.kube.json import integer
from policies.kube.objects.jobs import CronJob

LONG_ENOUGH: Final = 3600
"""Seconds: enough for somebody who waits for the Job."""


def check(target: Target, facts: Facts) -> Findings:
    if is_someone_elses(target.obj) or is_hook(target.obj):
        return
    if not _matters(target, facts):
        return
    settings = facts.settings(JobRetries)
    least = settings.min_log_retention
    # More than an hour is the author's decision, unless the policy sets a minimum.
    shortest = least if "min_log_retention" in settings.given else min(least, LONG_ENOUGH)
    for steps in _time_to_live(target):
        seconds = integer(target.obj, *steps, default=least)
        if seconds < shortest:
            yield Finding(
                field_path(steps),
                f"{_what(target)} is deleted {seconds} s after it ends, together with the logs of its pods.",
                f"Set ttlSecondsAfterFinished to at least {least}, or omit it.",
            )
    yield from _of_ended_pods(target)
    if target.kind == CRON_JOB and target.read(CronJob).spec.failed_jobs_history_limit == 0:
        yield Finding(
            "spec.failedJobsHistoryLimit",
            "A failed Job is deleted immediately, together with the logs that show why it failed.",
            "Set failedJobsHistoryLimit to at least 1.",
        )


def _of_ended_pods(target: Target) -> Findings:
    """A finding about a workload that deletes its pods at its end, also those that failed."""
    for run in runs_in(target.obj):
        ending = run.life.ending
        if ending is None:
            continue
        for field in ending.fields:
            value = run.value(field)
            if value in ending.deletes:
                yield Finding(
                    run.at(field),
                    f"With {field} {value}, all pods are deleted when the {run.life.kind} ends, together "
                    "with the logs that show why it failed.",
                    f"Set {field} to {ending.instead}, which deletes only the pods that are still running.",
                )


def _what(target: Target) -> str:
    return "A Job of this CronJob" if target.kind == CRON_JOB else f"The {target.kind.kind}"


def _matters(target: Target, facts: Facts) -> bool:
    """Whether the logs matter: training, and CronJobs, which nobody watches. Setup Jobs can run again."""
    if target.kind == CRON_JOB:
        return True
    settings = facts.settings(JobRetries)
    if target.kind in KUBEFLOW_JOBS:
        return any(run.life.trains for run in runs_in(target.obj))
    return any(wants_to_finish(target.obj, job, settings, facts) for job in jobs_in(target.obj))


def _time_to_live(target: Target) -> Iterator[tuple[str | int, ...]]:
    """The fields for the retention of finished Jobs."""
    name = "ttlSecondsAfterFinished"
    for job in jobs_in(target.obj):
        yield (*job.steps, name)
    if target.kind == JOB_SET:
        yield ("spec", name)
    elif target.kind in KUBEFLOW_JOBS:
        yield ("spec", "runPolicy", name)


RULE = rule(__name__, check, (JOB, CRON_JOB, JOB_SET, *KUBEFLOW_JOBS))
