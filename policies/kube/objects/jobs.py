"""Jobs, CronJobs and JobSets."""

from __future__ import annotations

from typing import Final

from policies.kube.objects.metadata import NO_METADATA, Object, ObjectMeta, Part
from policies.kube.objects.pods import PodTemplateSpec

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The pod condition after eviction, preemption, taints and node shutdown.
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions"""


class ConditionPattern(Part):
    """An entry of `onPodConditions`."""

    type: str = ""
    status: str = "True"


class ExitCodes(Part):
    container_name: str = ""
    operator: str = ""
    values: tuple[int, ...] = ()


class FailureRule(Part):
    action: str = ""
    on_pod_conditions: tuple[ConditionPattern, ...] = ()
    on_exit_codes: ExitCodes | None = None

    @property
    def on_disruption(self) -> bool:
        """Whether it is about pods with the condition of an eviction."""
        return any(
            each.type == DISRUPTION_TARGET and each.status == "True" for each in self.on_pod_conditions
        )


class PodFailurePolicy(Part):
    rules: tuple[FailureRule, ...] = ()


class JobSpec(Part):
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = ""
    suspend: bool = False
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str = ""
    managed_by: str = ""
    template: PodTemplateSpec = PodTemplateSpec()

    @property
    def at_once(self) -> int:
        """The number of pods that run at the same time."""
        return min(self.parallelism, self.completions or self.parallelism)


class Job(Object):
    spec: JobSpec = JobSpec()


class JobTemplateSpec(Part):
    metadata: ObjectMeta = NO_METADATA
    spec: JobSpec = JobSpec()


class CronJobSpec(Part):
    schedule: str = ""
    suspend: bool = False
    concurrency_policy: str = ""
    starting_deadline_seconds: int | None = None
    failed_jobs_history_limit: int | None = None
    successful_jobs_history_limit: int | None = None
    job_template: JobTemplateSpec = JobTemplateSpec()


class CronJob(Object):
    spec: CronJobSpec = CronJobSpec()


class DependsOn(Part):
    name: str = ""
    status: str = ""


class ReplicatedJob(Part):
    name: str = ""
    group_name: str = ""
    replicas: int = 1
    depends_on: tuple[DependsOn, ...] = ()
    template: JobTemplateSpec = JobTemplateSpec()


class JobSetNetwork(Part):
    subdomain: str = ""


class JobSetStartup(Part):
    startup_policy_order: str = ""


class JobSetFailureRule(Part):
    action: str = ""


class JobSetFailurePolicy(Part):
    max_restarts: int = 0
    rules: tuple[JobSetFailureRule, ...] = ()


class JobSetSpec(Part):
    replicated_jobs: tuple[ReplicatedJob, ...] = ()
    network: JobSetNetwork = JobSetNetwork()
    startup_policy: JobSetStartup = JobSetStartup()
    failure_policy: JobSetFailurePolicy | None = None
    suspend: bool = False
    managed_by: str = ""


class JobSet(Object):
    spec: JobSetSpec = JobSetSpec()
