"""Jobs wherever they stand: by themselves, in a CronJob, in a JobSet; and what becomes of their failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from policies.accelerators.requests import wants_accelerator
from policies.core.facts import Facts
from policies.core.settings import Duration, Settings
from policies.core.target import Target
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, kind_of
from policies.kube.json import Json, dig, indexed_maps, integer, mapping, maps, text
from policies.kube.metadata import controller

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The pod condition that eviction, preemption, taints and node shutdown leave.
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions"""

_BUILT_IN: Final = (
    "",
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "ray.io/kuberay-operator",
)
"""What `managedBy` says where the kind's own controller runs it."""


class Raises(StrEnum):
    """Whose values, though written by the user, `job-retries` raises."""

    ALL = "all"
    ACCELERATORS = "accelerators"
    NONE = "none"


class JobRetries(Settings):
    """Key `job-retries.yaml`."""

    retryable_exit_codes: tuple[Annotated[int, Field(ge=1, le=255)], ...] = Field(
        (137, 143),
        min_length=1,
        max_length=200,
        description="exit codes that are retried within backoffLimit, beside 0: 143 is SIGTERM, 137 SIGKILL, "
        "which also ends what uses too much memory; every other code is a real error",
    )
    raises: Raises = Field(
        Raises.ACCELERATORS,
        description="whose ttlSecondsAfterFinished, history limits and backoffLimit 0 are raised although "
        "someone wrote them: of all Jobs, of Jobs with accelerators, or of none; a cluster that submits "
        "thousands of short Jobs an hour must not keep them all for a day",
    )
    min_log_retention: Duration = Field(
        86400,
        description="seconds that a finished Job, and with it the logs of its pods, stays at the least; "
        "also what the rule job-logs-lost measures against",
    )
    backoff_limit: int = Field(
        3,
        ge=1,
        le=2**31 - 1,
        description="what a backoffLimit of 0 is raised to, where an eviction would fail the Job",
    )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The spec of a Job, and where it stands."""

    spec: Json
    steps: tuple[str | int, ...]

    def at(self, name: str) -> str:
        """Field path of one of its fields."""
        return field_path((*self.steps, name))

    @property
    def template(self) -> Json:
        """Its pod template: shaped like a pod, as far as `metadata` and `spec` go."""
        return mapping(self.spec, "template")

    @property
    def restarts_in_place(self) -> bool:
        """Whether the kubelet restarts its containers, so that no podFailurePolicy is allowed."""
        return text(self.template, "spec", "restartPolicy") == "OnFailure"

    @property
    def backoff_limit(self) -> int:
        """Retries for the whole Job; the default is 6, and more where they are counted for each index."""
        return integer(self.spec, "backoffLimit", default=6)

    @property
    def has_failure_policy(self) -> bool:
        return self.spec.get("podFailurePolicy") is not None

    def on_disruption(self) -> str | None:
        """The action of the first podFailurePolicy rule about the condition DisruptionTarget."""
        for rule in maps(self.spec, "podFailurePolicy", "rules"):
            for pattern in maps(rule, "onPodConditions"):
                if pattern.get("type") == DISRUPTION_TARGET and pattern.get("status", "True") == "True":
                    return text(rule, "action")
        return None


def jobs_in(obj: Json) -> Iterator[JobSpec]:
    """The Jobs that an object is, or will make."""
    match kind_of(obj):
        case kind if kind == JOB:
            yield JobSpec(mapping(obj, "spec"), ("spec",))
        case kind if kind == CRON_JOB:
            yield JobSpec(mapping(obj, "spec", "jobTemplate", "spec"), ("spec", "jobTemplate", "spec"))
        case kind if kind == JOB_SET:
            for index, _ in indexed_maps(obj, "spec", "replicatedJobs"):
                steps = ("spec", "replicatedJobs", index, "template", "spec")
                yield JobSpec(mapping(obj, *steps), steps)


def is_someone_elses(obj: Json) -> bool:
    """Whether another controller made the Job, as RayJob makes its submitter, or runs it.

    A CronJob's Jobs are not meant: nothing compares them with what made them.
    """
    owner = controller(obj)
    if owner is not None and owner.get("kind") != "CronJob":
        return True
    return text(obj, "spec", "managedBy") not in _BUILT_IN


def handles_failures_itself(obj: Json) -> bool:
    """Whether it is a JobSet whose author said what a failed Job means for the whole set.

    The usual pattern for training that must restart as one is a Job that fails at once and a
    `failurePolicy` that restarts the set; a Job that outlives an eviction would break it.
    https://jobset.sigs.k8s.io/docs/concepts/#failure-policy
    """
    return kind_of(obj) == JOB_SET and dig(obj, "spec", "failurePolicy") is not None


def may_raise(job: JobSpec, settings: JobRetries, facts: Facts) -> bool:
    """Whether values that the Job's author wrote may be raised."""
    if settings.raises is Raises.ACCELERATORS:
        return wants_accelerator(job.template, facts)
    return settings.raises is Raises.ALL


def own_jobs(target: Target) -> Iterator[JobSpec]:
    """The Jobs whose retries are the author's to decide here."""
    if not is_someone_elses(target.obj) and not handles_failures_itself(target.obj):
        yield from jobs_in(target.obj)
