"""job-retries-real-failures: Jobs that retry a failing program."""

from __future__ import annotations

from policies.containers.programs import only_idles
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import leaves_retries_open, own_jobs
from policies.jobs.training import training_containers
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET


def check(target: Target, facts: Facts) -> Findings:
    if only_idles(target):
        return
    settings = facts.settings(JobRetries)
    for job in own_jobs(target):
        if not job.restarts_in_place or job.has_failure_policy or not leaves_retries_open(target.obj, job):
            continue
        if training_containers(target.obj, job, settings, facts):
            yield Finding(
                job.at("podFailurePolicy"),
                f"A training program with an error runs again up to {job.backoff_limit} times, and then "
                "its pod is deleted with the log of the error. With restartPolicy OnFailure, no "
                "podFailurePolicy can tell an error from an eviction.",
                "Set restartPolicy to Never. The policy job-retries then adds the podFailurePolicy.",
            )


RULE = rule(__name__, check, (JOB, CRON_JOB, JOB_SET))
