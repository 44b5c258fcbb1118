"""Jobs, also in CronJobs and JobSets, and how they handle failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from policies.accelerators.requests import wants_accelerator
from policies.containers.programs import programs
from policies.core import data
from policies.core.facts import Facts
from policies.core.runs import run_of, runs_in
from policies.core.settings import Field, Model
from policies.core.target import Target
from policies.jobs.job_retries_settings import JobRetries, Raises
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import JOB, JOB_SET, kind_of
from policies.kube.json import Json, mapping
from policies.kube.metadata import ARGO_HOOK, HELM_HOOK, written
from policies.kube.objects.jobs import FailureRule, JobSet, ReplicatedJob
from policies.kube.objects.jobs import JobSpec as TypedSpec
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import read, readable
from policies.kube.pods import Role, containers

HOOKS: Final = (HELM_HOOK, ARGO_HOOK)
"""Annotations of Jobs that a release runs, watches and deletes."""

_SIGTERM: Final = 143
"""The exit code of a program that SIGTERM ends."""
_DEFAULT_BACKOFF: Final = 6
"""The API server's default of backoffLimit, set before webhooks receive the Job."""


class OrchestratedProgram(Model):
    """An entry of `orchestrated_programs.yaml`."""

    program: str = Field(pattern=r"\w", description="the program with its first arguments")
    replacement: str = Field(
        description="what it does in a pod that replaces one: a sentence without its subject"
    )
    stuck: bool = Field(False, description="whether the run then never ends")
    source: str

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.program.split())


_orchestrated_programs = data.entries(OrchestratedProgram, __package__, "orchestrated_programs.yaml")


class PlacedJobSpec(Struct, frozen=True):
    """The spec of a Job, and its path in the object."""

    spec: Json
    steps: tuple[str | int, ...]
    typed: TypedSpec

    def at(self, name: str) -> str:
        """Field path of one of its fields."""
        return field_path((*self.steps, name))

    @property
    def template(self) -> Json:
        """The pod template, with `metadata` and `spec`."""
        return mapping(self.spec, "template")

    @property
    def restarts_in_place(self) -> bool:
        """Whether the kubelet restarts its containers, so that no podFailurePolicy is allowed."""
        return self.typed.template.spec.restart_policy == "OnFailure"

    @property
    def backoff_limit(self) -> int:
        """Retries for the whole Job."""
        written = self.typed.backoff_limit
        return _DEFAULT_BACKOFF if written is None else written

    @property
    def is_indexed(self) -> bool:
        """Whether its pods have an index, and so names by which they find each other."""
        return self.typed.completion_mode == "Indexed"

    @property
    def runs_as_one(self) -> bool:
        """Whether its pods may need each other: they have names, all of them run at once, and no index has
        retries of its own."""
        return (
            self.is_indexed
            and self.typed.backoff_limit_per_index is None
            and self.typed.parallelism >= (self.typed.completions or 0)
        )

    @property
    def has_failure_policy(self) -> bool:
        return self.typed.pod_failure_policy is not None

    @property
    def _failure_rules(self) -> tuple[FailureRule, ...]:
        policy = self.typed.pod_failure_policy
        return () if policy is None else policy.rules

    def fails_at_sigterm(self) -> int | None:
        """The index of a podFailurePolicy rule that fails the Job if an eviction ends a program: it matches
        the exit code of SIGTERM, and no rule before it is about the condition DisruptionTarget."""
        for index, rule in enumerate(self._failure_rules):
            if rule.on_disruption:
                return None
            codes = rule.on_exit_codes
            if codes is not None and (_SIGTERM in codes.values) == (codes.operator == "In"):
                return index if rule.action == "FailJob" else None
        return None

    def on_disruption(self) -> str | None:
        """The action of the first podFailurePolicy rule about the condition DisruptionTarget."""
        return next((rule.action for rule in self._failure_rules if rule.on_disruption), None)


def jobs_in(obj: Json) -> Iterator[PlacedJobSpec]:
    """The Jobs of an object: itself, or those that it or its controller creates."""
    for run in runs_in(obj):
        typed = readable(run.spec, TypedSpec) if run.life.group_kind == JOB else None
        if typed is not None:
            yield PlacedJobSpec(run.spec, run.steps, typed)


def is_someone_elses(obj: Json) -> bool:
    """Whether another controller created the Job, as RayJob creates its submitter, or runs it. The Jobs of a
    CronJob are excluded: the controller does not compare them with their template."""
    owner = read(obj, Object).metadata.controller
    if owner is not None and owner.kind != "CronJob":
        return True
    run = run_of(obj)
    return run is not None and run.is_delegated


def handles_failures_itself(obj: Json) -> bool:
    """Whether it is a JobSet with a `failurePolicy`: often a failed Job restarts the whole set, so a Job must
    not survive an eviction.
    https://jobset.sigs.k8s.io/docs/concepts/#failure-policy
    """
    return kind_of(obj) == JOB_SET and read(obj, JobSet).spec.failure_policy is not None


def orchestrated(job: PlacedJobSpec) -> OrchestratedProgram | None:
    """The program of a Job that its orchestrator starts again after a failure, so Kubernetes must not."""
    known = _orchestrated_programs()
    for container in containers(job.template, Role.MAIN):
        for words in programs(container):
            for each in known:
                if words[: len(each.words)] == each.words:
                    return each
    return None


def is_hook(obj: Json) -> bool:
    """Whether a release of Helm or Argo CD runs and watches the Job."""
    annotations = read(obj, Object).metadata.annotations
    return any(key in annotations for key in HOOKS)


def is_gang(obj: Json, facts: Facts) -> bool:
    """Whether several pods with accelerators work as one: if one of them is replaced, the others wait for the
    lost one."""
    pods = 0
    for job in jobs_in(obj):
        if not wants_accelerator(facts.view(job.template), facts):
            continue
        if kind_of(obj) == JOB_SET:
            pods += job.typed.parallelism * read(mapping(obj, *job.steps[:3]), ReplicatedJob).replicas
        elif job.runs_as_one:
            pods += job.typed.at_once
    return pods > 1


def leaves_retries_open(obj: Json, job: PlacedJobSpec) -> bool:
    """Whether the author left the number of retries to the API server's default."""
    if job.typed.backoff_limit_per_index is not None:
        return False
    limit = job.typed.backoff_limit
    return limit is None or (limit == _DEFAULT_BACKOFF and not _wrote(obj, job, "backoffLimit"))


def replaces_pods_early(obj: Json, job: PlacedJobSpec) -> bool:
    """Whether the author wrote that a pod is replaced before it has ended. The API server accepts no
    podFailurePolicy next to it."""
    value = job.spec.get("podReplacementPolicy")
    if value == "TerminatingOrFailed":  # the API server's default, too
        return _wrote(obj, job, "podReplacementPolicy")
    return value not in (None, "Failed")


def _wrote(obj: Json, job: PlacedJobSpec, name: str) -> bool:
    """Whether the author of an object wrote a field of a Job that the API server would set by default. It
    sets none in the Job templates of a CronJob or a JobSet."""
    return kind_of(obj) != JOB or written(obj, *job.steps, name) is not None


def wants_to_finish(obj: Json, job: PlacedJobSpec, settings: JobRetries, facts: Facts) -> bool:
    """Whether the loss of a run is expensive: by its accelerators, or by its labels."""
    return wants_accelerator(facts.view(job.template), facts) or is_labelled_training(obj, job, settings)


def is_labelled_training(obj: Json, job: PlacedJobSpec, settings: JobRetries) -> bool:
    """Whether a label marks a Job as training."""
    labels = {**read(obj, Object).metadata.labels, **job.typed.template.metadata.labels}
    return has_label(labels, settings.training_labels)


def has_label(labels: Mapping[str, str], patterns: Iterable[str]) -> bool:
    """Whether a label or an annotation matches one of the patterns: `key=value`, in which `*` is any text,
    or `key`."""
    for pattern in patterns:
        key, _, value = pattern.partition("=")
        if key in labels and fnmatchcase(labels[key], value or "*"):
            return True
    return False


def may_raise(job: PlacedJobSpec, settings: JobRetries, facts: Facts) -> bool:
    """Whether values that the Job's author set may be raised."""
    if settings.raises is Raises.ACCELERATORS:
        return wants_accelerator(facts.view(job.template), facts)
    return settings.raises is Raises.ALL


def own_jobs(target: Target) -> Iterator[PlacedJobSpec]:
    """The Jobs whose author decides about retries in this object."""
    if not (is_someone_elses(target.obj) or handles_failures_itself(target.obj) or is_hook(target.obj)):
        yield from (job for job in jobs_in(target.obj) if orchestrated(job) is None)
