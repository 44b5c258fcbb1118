"""The mutator job-retries, which job-retries.md documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.annotations import RETRYABLE_EXIT_CODES
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.reasons import NO_REASONS, Reasons, in_words
from policies.core.runs import runs_in
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import (
    PlacedJobSpec,
    handles_failures_itself,
    is_gang,
    is_hook,
    is_someone_elses,
    jobs_in,
    leaves_retries_open,
    may_raise,
    orchestrated,
    replaces_pods_early,
)
from policies.jobs.termination_messages import with_log_fallback
from policies.jobs.training import training_containers
from policies.kube.field_paths import named_path
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, MPI_JOB, POD, kind_of
from policies.kube.json import Json, dig, integer, replaced
from policies.kube.names import listed
from policies.kube.objects.jobs import DISRUPTION_TARGET
from policies.kube.objects.metadata import Object, ObjectMeta
from policies.kube.objects.reading import read
from policies.kube.pods import Role, containers

_MAX_RULES: Final = 20
"""Rules that the API server accepts in one podFailurePolicy."""
_MAX_CODES: Final = 50
"""Exit codes in the annotation."""


def mutate(obj: Json, settings: JobRetries, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    if kind_of(obj) == POD:
        return with_log_fallback(obj, settings, facts, reasons)
    if is_someone_elses(obj) or is_hook(obj):
        return obj
    if kind_of(obj) == MPI_JOB:
        return _with_ending(obj, reasons)
    stored = read(obj, Object).exists
    if stored and kind_of(obj) != CRON_JOB:
        return obj  # these fields can't be changed after creation
    independent = not (handles_failures_itself(obj) or is_gang(obj, facts))
    for job in jobs_in(obj):
        spec = job.spec
        retried_here = independent and orchestrated(job) is None
        if retried_here:
            spec = _with_policy(obj, job, settings, facts, reasons)
        if not stored and may_raise(job, settings, facts):
            if spec is job.spec and retried_here:
                spec = _with_backoff_limit(job, settings, named_path(obj, job.steps), reasons)
            spec = _with_retention(spec, settings, named_path(obj, job.steps), reasons)
        if spec is not job.spec:
            obj = replaced(obj, job.steps, spec)
    return obj if stored else _with_history(obj, settings, facts, reasons)


def _with_ending(obj: Json, reasons: Reasons = NO_REASONS) -> Json:
    """The workload with the value that deletes its running pods at its end, if all pods that may still run
    then never end by themselves."""
    for run in runs_in(obj):
        ending, roles = run.life.ending, [each.role for each in run.roles()]
        if ending is None or any(map(run.has, (*ending.fields, *ending.unless))):
            continue
        if any(role.endless for role in roles) and all(role.endless or role.ends for role in roles):
            obj = replaced(obj, (*run.steps, *ending.fields[0].split(".")), ending.instead)
            reasons.give(
                run.at(ending.fields[0]),
                "its workers don't end by themselves, and without it they keep their nodes after the "
                "launcher ends",
            )
    return obj


def _with_policy(obj: Json, job: PlacedJobSpec, settings: JobRetries, facts: Facts, reasons: Reasons) -> Json:
    never = job.typed.template.spec.restart_policy == "Never"
    if job.has_failure_policy or not never or replaces_pods_early(obj, job):
        return job.spec
    rules: list[Json] = [
        {"action": "Ignore", "onPodConditions": [{"type": DISRUPTION_TARGET, "status": "True"}]}
    ]
    # First, since the containers of an evicted pod exit with 143 or their own code for SIGTERM.
    codes: list[int] = []
    if leaves_retries_open(obj, job):
        main = tuple(containers(job.template, Role.MAIN))
        training = training_containers(obj, job, settings, facts)
        if not training and _names_exit_codes(obj, job):
            training = main
        if training:
            codes = _exit_codes(obj, job, settings)
            names = [each.name for each in training]
            rules += _fail_job_rules(names, codes, alone=len(names) == len(main))
    place = named_path(obj, job.steps)
    reasons.give(
        f"{place}.podFailurePolicy",
        lambda: f"an evicted pod is replaced and doesn't count{_exit_code_text(codes)}",
        setting="retryableExitCodes" if codes else "",
        annotation=lambda: _annotation(codes),
    )
    reasons.give(
        f"{place}.podReplacementPolicy", "the API server requires the value Failed with a podFailurePolicy"
    )
    return {**job.spec, "podFailurePolicy": {"rules": rules}, "podReplacementPolicy": "Failed"}


def _exit_code_text(retryable: list[int]) -> str:
    if not retryable:
        return ""
    return f"; training stops at once on an exit code other than {listed(map(str, (0, *retryable)))}"


def _annotation(retryable: list[int]) -> str:
    if not 0 < len(retryable) <= _MAX_CODES:
        return ""
    return f"{RETRYABLE_EXIT_CODES}={','.join(map(str, retryable))}"


def _names_exit_codes(obj: Json, job: PlacedJobSpec) -> bool:
    return any(RETRYABLE_EXIT_CODES in carrier.annotations for carrier in _carriers(obj, job))


def _carriers(obj: Json, job: PlacedJobSpec) -> tuple[ObjectMeta, ObjectMeta]:
    """The metadata that may have the annotation: of the object and of the pod template."""
    return read(obj, Object).metadata, job.typed.template.metadata


def _fail_job_rules(names: list[str], retryable: list[int], *, alone: bool) -> list[Json]:
    """The rules that fail the Job if one of the named containers exits with another code. `alone`: it has no
    other main container."""
    # With names, since a sidecar that is stopped after the main container exits with another code.
    each: list[Json] = [{"containerName": name} for name in names]
    if len(names) >= _MAX_RULES:
        each = [{}] if alone else []
    return [
        {"action": "FailJob", "onExitCodes": {**name, "operator": "NotIn", "values": retryable}}
        for name in each
    ]


def _exit_codes(obj: Json, job: PlacedJobSpec, settings: JobRetries) -> list[int]:
    try:
        annotated = _annotated(obj, job)
    except ValueError:
        annotated = set()  # `advise` reports it
    return sorted(annotated.union(settings.retryable_exit_codes))


def _annotated(obj: Json, job: PlacedJobSpec) -> set[int]:
    """The exit codes in the annotations of the object and the pod template. Raises ValueError."""
    codes: set[int] = set()
    for carrier in _carriers(obj, job):
        written = carrier.annotations.get(RETRYABLE_EXIT_CODES)
        if written is not None:
            codes.update(int(code) for code in written.split(","))
    if any(not 0 < code < 256 for code in codes) or len(codes) > _MAX_CODES:
        raise ValueError("exit codes are between 1 and 255, at most 50 of them")
    return codes


def _with_backoff_limit(job: PlacedJobSpec, settings: JobRetries, path: str, reasons: Reasons) -> Json:
    """The spec with a backoffLimit above 0, unless a rule of the user handles evictions."""
    if job.on_disruption() or job.spec.get("backoffLimit") != 0 or "backoffLimitPerIndex" in job.spec:
        return job.spec
    reasons.give(f"{path}.backoffLimit", "with 0, the first eviction fails the Job", setting="backoffLimit")
    return {**job.spec, "backoffLimit": settings.backoff_limit}


def _with_retention(spec: Json, settings: JobRetries, path: str, reasons: Reasons) -> Json:
    least = settings.min_log_retention
    if integer(spec, "ttlSecondsAfterFinished", default=least) >= least:
        return spec
    reasons.give(
        f"{path}.ttlSecondsAfterFinished",
        f"its logs are deleted with it, so they stay for at least {in_words(least)}",
        setting="minLogRetention",
    )
    return {**spec, "ttlSecondsAfterFinished": least}


def _with_history(obj: Json, settings: JobRetries, facts: Facts, reasons: Reasons) -> Json:
    """The object with a minimum retention of its finished Jobs."""
    if not any(may_raise(job, settings, facts) for job in jobs_in(obj)):
        return obj
    if kind_of(obj) == JOB_SET:
        spec = _with_retention(obj["spec"], settings, "spec", reasons)
        return obj if spec is obj["spec"] else replaced(obj, ("spec",), spec)
    for name in ("failedJobsHistoryLimit", "successfulJobsHistoryLimit"):
        if dig(obj, "spec", name) == 0:
            reasons.give(
                f"spec.{name}",
                "with 0, a finished Job and its logs are deleted immediately",
                setting="raises",
            )
            obj = replaced(obj, ("spec", name), 1)
    return obj


def advise(obj: Json, settings: JobRetries, facts: Facts) -> Iterator[Finding]:
    """A finding about a malformed annotation."""
    for job in jobs_in(obj):
        try:
            _annotated(obj, job)
        except ValueError:
            yield Finding(
                f"metadata.annotations[{RETRYABLE_EXIT_CODES}]",
                f"The annotation {RETRYABLE_EXIT_CODES} is not a list of exit codes and was not applied.",
                'Use numbers from 1 to 255, such as "75" or "75, 130".',
                Certainty.UNDECIDED,
            )
            return


MUTATOR = Mutator(
    "job-retries",
    JobRetries,
    mutate=mutate,
    advise=advise,
    kinds=(JOB, CRON_JOB, JOB_SET, MPI_JOB, POD),
    on_update=(CRON_JOB,),
)
