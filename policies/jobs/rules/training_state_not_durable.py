"""Jobs that lose work or evidence: to a retry of a broken program, to an eviction, to a clean-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.target import PodTemplate, Target
from policies.jobs.jobs import JobRetries, JobSpec, handles_failures_itself, is_someone_elses, jobs_in
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import CRON_JOB, JOB, JOB_SET, KUBEFLOW_JOBS, RAY_JOB
from policies.kube.json import Json, dig, integer, maps, text
from policies.kube.metadata import annotations_of

CHECKPOINT: Final = "mlchassis.dev/checkpoint"


def _own_jobs(target: Target) -> Iterator[JobSpec]:
    """The Jobs whose retries are the author's to decide here."""
    if not is_someone_elses(target.obj) and not handles_failures_itself(target.obj):
        yield from jobs_in(target.obj)


def check_real_failures(target: Target, facts: Facts) -> Iterator[Finding]:
    for job in _own_jobs(target):
        if job.restarts_in_place and job.backoff_limit and not job.has_failure_policy:
            yield Finding(
                job.at("podFailurePolicy"),
                f"A program that fails by its own fault is run again up to {job.backoff_limit} times, "
                "since with restartPolicy OnFailure no podFailurePolicy can tell a real error from an "
                "eviction.",
                "Set restartPolicy to Never; the policy job-retries then adds the podFailurePolicy.",
            )


def check_lost_on_eviction(target: Target, facts: Facts) -> Iterator[Finding]:
    for job in _own_jobs(target):
        if job.backoff_limit == 0 and job.on_disruption() != "Ignore":
            yield Finding(
                job.at("backoffLimit"),
                "With backoffLimit 0 the first eviction or preemption of a pod fails the whole Job.",
                "Add a podFailurePolicy rule that ignores the condition DisruptionTarget, or raise "
                "backoffLimit.",
            )


# --- job-logs-lost ---------------------------------------------------------------------------


def check_logs_lost(target: Target, facts: Facts) -> Iterator[Finding]:
    if is_someone_elses(target.obj):
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


# --- training-state-not-durable --------------------------------------------------------------

_FLEETING: Final = frozenset(
    {"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"}
)
_NO_STORAGE: Final = (
    "secrets-store.csi.k8s.io",
    "csi.cert-manager.io",
    "csi.spiffe.io",
    "driver.shipwright.io",
)
"""Inline CSI drivers that mount credentials, not storage."""


def check_training_state(target: Target, facts: Facts) -> Iterator[Finding]:
    catalogue = facts.settings(GpuAffinity).catalogue
    training = [t for t in target.templates if t.completes and catalogue.requests(t.pod)]
    if not training or is_someone_elses(target.obj) or CHECKPOINT in annotations_of(target.obj):
        return
    # One rank writes for all: storage in one template is enough.
    if any(CHECKPOINT in annotations_of(t.pod) or _has_durable_volume(t) for t in target.templates):
        return
    yield Finding(
        f"{training[0].spec_path}.volumes",
        "Whatever the training writes dies with its pod: no container mounts a volume that outlives it.",
        "Mount a PersistentVolumeClaim for checkpoints, or name where they go in the annotation "
        f"{CHECKPOINT}.",
    )


def _has_durable_volume(template: PodTemplate) -> bool:
    durable = {text(volume, "name") for volume in maps(template.spec, "volumes") if _is_durable(volume)}
    return any(
        text(mount, "name") in durable and mount.get("readOnly") is not True
        for container in template.containers()
        for mount in (*maps(container.spec, "volumeMounts"), *maps(container.spec, "volumeDevices"))
    )


def _is_durable(volume: Json) -> bool:
    """Whether what is written there is found again; a hostPath may be a shared file system, so it counts."""
    if (
        dig(volume, "persistentVolumeClaim", "readOnly") is True
        or text(volume, "csi", "driver") in _NO_STORAGE
    ):
        return False
    return bool(set(volume) - _FLEETING - {"name"})


# --- the rules ---------------------------------------------------------------------------------

_JOB: Final = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: report}}
spec:{fields}
  template:
    spec:
      restartPolicy: {restart}
      containers:
        - name: report
          image: registry.example/report:5
"""

_TRAINING: Final = """\
apiVersion: batch/v1
kind: Job
metadata: {name: finetune}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: train
          image: registry.example/train:3
          resources:
            limits: {nvidia.com/gpu: "1"}
          volumeMounts: [{name: checkpoints, mountPath: /checkpoints}]
      volumes:
        - name: checkpoints
"""

_IGNORE: Final = """
  backoffLimit: 0
  podFailurePolicy:
    rules:
      - action: Ignore
        onPodConditions: [{type: DisruptionTarget, status: "True"}]"""

_POD_FAILURE_POLICY: Final = "https://kubernetes.io/docs/tasks/job/pod-failure-policy/"

RULES = (
    Rule(
        id="job-retries-real-failures",
        family=Family.JOBS,
        check=check_real_failures,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        kinds=(JOB, CRON_JOB, JOB_SET),
        what="A Job that retries, with restartPolicy OnFailure and so without a podFailurePolicy.",
        why="A program that has a bug or a wrong argument fails the same way each time; every retry holds "
        "the accelerators for as long as it takes to fail, with growing pauses between, and restarts in "
        "place overwrite the log of the attempt before. Evictions come out of the same small number of "
        "retries.",
        mend="Set restartPolicy to Never. The policy job-retries then adds a podFailurePolicy that "
        "replaces evicted pods and stops at a real error.",
        source=_POD_FAILURE_POLICY,
        bad=_JOB.format(fields="", restart="OnFailure"),
        good=_JOB.format(fields="", restart="Never"),
    ),
    Rule(
        id="job-lost-on-eviction",
        family=Family.JOBS,
        check=check_lost_on_eviction,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        kinds=(JOB, CRON_JOB, JOB_SET),
        what="A Job with backoffLimit 0 and no podFailurePolicy rule that ignores the condition "
        "DisruptionTarget.",
        why="An eviction, a preemption or a node that is drained counts as a failure like any other, so "
        "the first one fails the Job, however far it had come.",
        mend="Ignore DisruptionTarget in a podFailurePolicy, as the policy job-retries does where "
        "restartPolicy is Never, or raise backoffLimit.",
        source=_POD_FAILURE_POLICY,
        bad=_JOB.format(fields="\n  backoffLimit: 0", restart="Never"),
        good=_JOB.format(fields=_IGNORE, restart="Never"),
    ),
    Rule(
        id="job-logs-lost",
        family=Family.JOBS,
        check=check_logs_lost,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        kinds=(JOB, CRON_JOB, JOB_SET, RAY_JOB, *KUBEFLOW_JOBS),
        what="A ttlSecondsAfterFinished below `minLogRetention` of job-retries.yaml (a day by default), or a "
        "failedJobsHistoryLimit of 0.",
        why="Deleting a Job deletes its pods, and `kubectl logs` with them. A training that failed at "
        "night has left nothing to look at in the morning.",
        mend="Raise ttlSecondsAfterFinished to at least `minLogRetention`, and keep at least one failed Job.",
        source="https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/",
        bad=_JOB.format(fields="\n  ttlSecondsAfterFinished: 60", restart="Never"),
        good=_JOB.format(fields="\n  ttlSecondsAfterFinished: 172800", restart="Never"),
    ),
    Rule(
        id="training-state-not-durable",
        family=Family.JOBS,
        check=check_training_state,
        standard=Mode.WARN,
        strict=Mode.WARN,
        kinds=(JOB, CRON_JOB, JOB_SET, *KUBEFLOW_JOBS),
        what="A Job with accelerators none of whose containers mounts a persistent volume for writing, and "
        f"without the annotation {CHECKPOINT}.",
        why="An eviction, a node failure or a retry starts a new pod; what the old one wrote to its "
        "container, an emptyDir or a generic ephemeral volume is gone, and the training begins anew.",
        mend="Write checkpoints to a PersistentVolumeClaim, or to object storage and name the place in the "
        f"annotation {CHECKPOINT}.",
        source="https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/",
        bad=f"{_TRAINING}          emptyDir: {{}}\n",
        good=f"{_TRAINING}          persistentVolumeClaim: {{claimName: checkpoints}}\n",
    ),
)
