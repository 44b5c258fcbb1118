"""cron-job-piles-up: CronJobs whose runs overlap, never start, or are kept in large numbers.

Of other kinds with a schedule, only runs that overlap or block the next ones are reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import Run, runs_in
from policies.jobs.jobs import PlacedJobSpec, jobs_in
from policies.jobs.schedules import period_of
from policies.jobs.training import runs_training
from policies.kube.group_kinds import CRON_JOB, JOB
from policies.kube.objects.jobs import CronJob, CronJobSpec

_BACKOFF: Final = 10
"""Seconds before the Job controller's first retry; each further pause is twice as long, 600 at most."""
_LONGEST_BACKOFF: Final = 600
_DAY: Final = 86400
_FREQUENT: Final = 300
"""Seconds: runs that come more often are expected to be short, and a failing one lasts longer than that."""
_MANY: Final = 50
"""Finished Jobs of one CronJob, each with its pods."""
_TOO_SHORT: Final = 10
"""Seconds: https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#starting-deadline"""


def check(target: Target, facts: Facts) -> Findings:
    runs = list(runs_in(target.obj))
    schedule = runs[0].life.schedule if runs else None
    if schedule is None:
        return
    outer, *inner = runs
    period = period_of(outer)
    policy = outer.value(schedule.policy) or schedule.default
    for run in inner[:1] if not outer.is_suspended else ():
        if period is not None and policy in schedule.overlaps:
            yield from _overlap(target, outer, run, period, facts)
        elif policy == schedule.instead and run.life.group_kind == JOB:  # others may have a default
            yield from _blocked(target, outer, run, facts)
    if target.kind == CRON_JOB:
        spec = target.read(CronJob).spec
        yield from _deadlines(spec)
        yield from _history(spec)


def _overlap(target: Target, outer: Run, run: Run, period: int, facts: Facts) -> Iterator[Finding]:
    schedule, deadline = outer.life.schedule, _deadline(run)
    if schedule is None or (deadline is not None and deadline <= period):
        return
    path, hint = outer.at(schedule.policy), f"Set {schedule.policy} to {schedule.instead}"
    if run.life.deadline:
        hint += f", and set the {run.life.kind}'s {run.life.deadline} below the period"
    job = next(jobs_in(target.obj), None) if run.life.group_kind == JOB else None
    if _trains(target, facts) and period < _DAY:
        yield Finding(path, _still_training(period), f"{hint}.")
    elif deadline is not None and period <= _FREQUENT:
        yield Finding(path, _too_long(run.life.deadline, deadline, period), f"{hint}.")
    elif job is not None and deadline is None and period <= _FREQUENT and period < _time_of_retries(job):
        yield Finding(
            path,
            f"A run starts every {_period(period)}. A run that fails retries for "
            f"{_words(_time_of_retries(job))} (backoffLimit {job.backoff_limit}), and a run that hangs "
            "never ends. The runs add up until the nodes are full.",
            f"{hint}.",
        )


def _deadline(run: Run) -> int | None:
    """The seconds after which a run is ended."""
    value = run.value(run.life.deadline) if run.life.deadline else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _still_training(period: int) -> str:
    return (
        f"A run starts every {_period(period)}, even while the previous one is still training. Slow or "
        "waiting runs add up, and they take accelerators and nodes from each other."
    )


def _too_long(field: str, deadline: int, period: int) -> str:
    return (
        f"A run may take {_words(deadline)} ({field}), but the next one starts after "
        f"{_words(period)}. Up to {-(-deadline // period)} run at the same time."
    )


def _blocked(target: Target, outer: Run, run: Run, facts: Facts) -> Iterator[Finding]:
    schedule, field = outer.life.schedule, run.life.deadline
    if schedule is not None and field and run.value(field) is None and _trains(target, facts):
        yield Finding(
            run.at(field),
            "A run that hangs, or that waits for an accelerator or an image, never ends. With "
            f"{schedule.policy} {schedule.instead}, no other run starts meanwhile, and the schedule stops "
            "without an error.",
            f"Set {field} above the duration of the longest run.",
        )


def _trains(target: Target, facts: Facts) -> bool:
    return any(
        wants_accelerator(each.view, facts) or runs_training(each.view) for each in target.templates[:1]
    )


def _time_of_retries(job: PlacedJobSpec) -> int:
    """Seconds of the pauses before the retries of a failing Job."""
    return sum(min(_BACKOFF * 2**n, _LONGEST_BACKOFF) for n in range(min(job.backoff_limit, 20)))


def _deadlines(spec: CronJobSpec) -> Iterator[Finding]:
    given = spec.starting_deadline_seconds
    if given is not None and 0 <= given < _TOO_SHORT:
        yield Finding(
            "spec.startingDeadlineSeconds",
            f"The controller skips a run that it doesn't start within {given} s, but it may check only "
            "every 10 s. Most runs never start.",
            f"Set startingDeadlineSeconds to at least {_TOO_SHORT}, or better, to a fraction of the period.",
        )


def _history(spec: CronJobSpec) -> Iterator[Finding]:
    for name, kept in (
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit),
    ):
        if kept is not None and kept > _MANY:
            yield Finding(
                f"spec.{name}",
                f"Up to {kept} finished Jobs and their pods stay in the API server's database. Listing "
                "pods becomes slow for everyone, and the pods count against object quotas.",
                f"Set {name} to at most {_MANY}, and keep logs in a log store.",
            )


def _period(seconds: int) -> str:
    """What follows `every`."""
    return {60: "minute", 3600: "hour", 86400: "day"}.get(seconds) or _words(seconds)


def _words(seconds: int) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds} s"


_KINDS: Final = tuple(
    kind for kind, lives in known_lifecycles().items() if any(each.schedule is not None for each in lives)
)
RULE = rule(__name__, check, _KINDS)
