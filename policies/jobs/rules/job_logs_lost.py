"""job-logs-lost: Jobs that are deleted, with their logs, before anybody can have looked."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.jobs.jobs import JobRetries, is_hook, is_someone_elses, jobs_in
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, KUBEFLOW_JOBS, RAY_JOB
from policies.kube.json import dig, integer


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    if is_someone_elses(target.obj) or is_hook(target.obj):
        return
    least = facts.settings(JobRetries).min_log_retention
    for steps in _time_to_live(target):
        seconds = integer(target.obj, *steps, default=least)
        if seconds < least:
            yield Finding(
                field_path(steps),
                f"The Job is deleted {seconds} s after it ends, and the logs of its pods with it; they are "
                f"to stay {least} s.",
                f"Set ttlSecondsAfterFinished to at least {least}, or leave it out.",
            )
    if target.kind == CRON_JOB and dig(target.obj, "spec", "failedJobsHistoryLimit") == 0:
        yield Finding(
            "spec.failedJobsHistoryLimit",
            "A Job that fails is deleted at once, and the logs that say why with it.",
            "Set failedJobsHistoryLimit to at least 1.",
        )


def _time_to_live(target: Target) -> Iterator[tuple[str | int, ...]]:
    """Where it may say how long it stays after its end."""
    name = "ttlSecondsAfterFinished"
    for job in jobs_in(target.obj):
        yield (*job.steps, name)
    if target.kind == JOB_SET or (
        target.kind == RAY_JOB and target.spec.get("shutdownAfterJobFinishes") is True
    ):
        yield ("spec", name)
    elif target.kind in KUBEFLOW_JOBS:
        yield ("spec", "runPolicy", name)


RULE = rule(__name__, check, (JOB, CRON_JOB, JOB_SET, RAY_JOB, *KUBEFLOW_JOBS))
