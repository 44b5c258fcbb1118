"""cron-job-piles-up: CronJobs whose runs overlap, come late, or are kept in large numbers.

Of other kinds with a schedule, only overlapping runs are reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lives import known_lives, runs_in
from policies.jobs.jobs import PlacedJobSpec, jobs_in
from policies.jobs.schedules import shortest_period
from policies.jobs.training import runs_training
from policies.kube.group_kinds import CRON_JOB
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
    yield from _of_cron_job(target, facts) if target.kind == CRON_JOB else _scheduled(target, facts)


def _scheduled(target: Target, facts: Facts) -> Findings:
    """The runs of a kind whose schedule is in the table of lives."""
    outer, *inner = runs_in(target.obj)
    schedule = outer.life.schedule
    if schedule is None or outer.is_suspended:
        return
    written = outer.value(schedule.field)
    period = shortest_period(written) if isinstance(written, str) else None
    policy = outer.value(schedule.policy) or schedule.default
    if period is None or policy not in schedule.overlaps:
        return
    deadlines = [run.value(run.life.deadline) for run in inner if run.life.deadline]
    deadline = next((each for each in deadlines if isinstance(each, int)), None)
    hint = f"Set {schedule.policy} to {schedule.instead}."
    if deadline is not None and deadline <= period:
        return
    if deadline is not None and period <= _FREQUENT:
        yield Finding(outer.at(schedule.policy), _too_long(deadline, period), hint)
    elif _trains(target, facts) and period < _DAY:
        yield Finding(outer.at(schedule.policy), _still_training(period), hint)


def _of_cron_job(target: Target, facts: Facts) -> Findings:
    spec = target.read(CronJob).spec
    period = shortest_period(spec.schedule)
    for job in jobs_in(target.obj) if not spec.suspend else ():
        if period is not None and spec.concurrency_policy in ("", "Allow"):
            yield from _overlap(target, job, period, facts)
        elif spec.concurrency_policy == "Forbid":
            yield from _blocked(target, job, facts)
    yield from _deadlines(spec, period)
    yield from _history(spec)


def _overlap(target: Target, job: PlacedJobSpec, period: int, facts: Facts) -> Iterator[Finding]:
    deadline = job.typed.active_deadline_seconds
    if deadline is not None and deadline <= period:
        return
    path = "spec.concurrencyPolicy"
    if _trains(target, facts) and period < _DAY:
        yield Finding(path, _still_training(period), _HINT)
    elif deadline is not None and period <= _FREQUENT:
        yield Finding(path, _too_long(deadline, period), _HINT)
    elif deadline is None and period <= _FREQUENT and period < _time_of_retries(job):
        yield Finding(
            path,
            f"A run starts every {_period(period)}. A run that fails retries for "
            f"{_words(_time_of_retries(job))} (backoffLimit {job.backoff_limit}), and a run that hangs "
            "never ends. The runs add up until the nodes are full.",
            _HINT,
        )


def _still_training(period: int) -> str:
    return (
        f"A run starts every {_period(period)}, even while the previous one is still training. Slow or "
        "waiting runs add up, and they take accelerators and nodes from each other."
    )


def _too_long(deadline: int, period: int) -> str:
    return (
        f"A run may take {_words(deadline)} (activeDeadlineSeconds), but the next one starts after "
        f"{_words(period)}. Up to {-(-deadline // period)} run at the same time."
    )


def _blocked(target: Target, job: PlacedJobSpec, facts: Facts) -> Iterator[Finding]:
    if job.typed.active_deadline_seconds is None and _trains(target, facts):
        yield Finding(
            job.at("activeDeadlineSeconds"),
            "A run that hangs, or that waits for an accelerator or an image, never ends. With "
            "concurrencyPolicy Forbid, no other run starts meanwhile, and the schedule stops without an "
            "error.",
            "Set activeDeadlineSeconds above the duration of the longest run.",
        )


def _trains(target: Target, facts: Facts) -> bool:
    return any(
        wants_accelerator(each.view, facts) or runs_training(each.view) for each in target.templates[:1]
    )


_HINT: Final = "Set concurrencyPolicy to Forbid, and set the Job's activeDeadlineSeconds below the period."


def _time_of_retries(job: PlacedJobSpec) -> int:
    """Seconds of the pauses before the retries of a failing Job."""
    return sum(min(_BACKOFF * 2**n, _LONGEST_BACKOFF) for n in range(min(job.backoff_limit, 20)))


def _deadlines(spec: CronJobSpec, period: int | None) -> Iterator[Finding]:
    given = spec.starting_deadline_seconds
    if given is not None and 0 <= given < _TOO_SHORT:
        yield Finding(
            "spec.startingDeadlineSeconds",
            f"The controller skips a run that it doesn't start within {given} s, but it may check only "
            "every 10 s. Most runs never start.",
            f"Set startingDeadlineSeconds to at least {_TOO_SHORT}, or better, to a fraction of the period.",
        )
    elif given is None and spec.suspend:
        yield Finding(
            "spec.startingDeadlineSeconds",
            "When suspend becomes false, a missed run starts immediately, at a time that isn't in the "
            "schedule.",
            "Set startingDeadlineSeconds, so that the controller skips runs that are later than that.",
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


_KINDS: Final = (
    CRON_JOB,
    *(gk for gk, lives in known_lives().items() if any(each.schedule is not None for each in lives)),
)
RULE = rule(__name__, check, _KINDS)
