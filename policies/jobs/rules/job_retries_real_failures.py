"""job-retries-real-failures: Jobs that run a broken program again and again."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.jobs.jobs import (
    own_jobs,
)
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for job in own_jobs(target):
        if job.restarts_in_place and job.backoff_limit and not job.has_failure_policy:
            yield Finding(
                job.at("podFailurePolicy"),
                f"A program that fails by its own fault is run again up to {job.backoff_limit} times, "
                "since with restartPolicy OnFailure no podFailurePolicy can tell a real error from an "
                "eviction.",
                "Set restartPolicy to Never; the policy job-retries then adds the podFailurePolicy.",
            )


RULE = rule(__name__, check, (JOB, CRON_JOB, JOB_SET))
