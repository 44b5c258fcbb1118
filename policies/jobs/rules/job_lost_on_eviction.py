"""job-lost-on-eviction: Jobs that fail at the first eviction."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.jobs.idle import only_idles
from policies.jobs.jobs import JobRetries, is_gang, own_jobs, wants_to_finish
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET


def check(target: Target, facts: Facts) -> Findings:
    # A gang fails with one pod.
    if is_gang(target.obj, facts) or only_idles(target):
        return
    for job in own_jobs(target):
        if job.backoff_limit or job.on_disruption() == "Ignore":
            continue
        if wants_to_finish(target.obj, job, facts.settings(JobRetries), facts):
            yield Finding(
                job.at("backoffLimit"),
                "With backoffLimit 0 the first eviction or preemption of a pod fails the whole Job.",
                "Add a podFailurePolicy rule that ignores the condition DisruptionTarget, or raise "
                "backoffLimit.",
            )


RULE = rule(__name__, check, (JOB, CRON_JOB, JOB_SET))
