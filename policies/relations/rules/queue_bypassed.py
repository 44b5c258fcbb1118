"""queue-bypassed: training that names no queue in a namespace that has one."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import run_of
from policies.jobs.training import runs_training, trains_by_kind
from policies.kube.objects.metadata import Object
from policies.kube.objects.queues import QUEUE_NAME, LocalQueue

_DEFAULT: Final = "default"
"""A LocalQueue of this name takes workloads that name none (Kueue 0.10 and later, LocalQueueDefaulting)."""
_GROUPS: Final = (
    "batch",
    "jobset.x-k8s.io",
    "kubeflow.org",
    "trainer.kubeflow.org",
    "ray.io",
    "workload.codeflare.dev",
)
"""The groups of the kinds that Kueue suspends (pkg/controller/jobs of Kueue 0.14)."""
_NOT: Final = ("CronJob", "Experiment", "Trial", "TrainingRuntime", "ClusterTrainingRuntime")


def check(target: Target, facts: Facts) -> Findings:
    queues = facts.objects(LocalQueue)
    if not queues or target.kind.kind in _NOT:
        return
    names = sorted(each.name for each in queues)
    metadata = target.read(Object).metadata
    # Kueue reads the annotation, which is deprecated, if there is no such label.
    if QUEUE_NAME in metadata.labels or QUEUE_NAME in metadata.annotations or _DEFAULT in names:
        return
    accelerated = [each for each in target.templates if wants_accelerator(each.view, facts)]
    run = run_of(target.obj)
    pods = sum(
        role.pods for each in accelerated if run is not None and (role := run.role_of(each)) is not None
    )
    if pods > 1:
        return  # gang-without-queue reports it
    if accelerated or any(trains_by_kind(each.view) or runs_training(each.view) for each in target.templates):
        yield Finding(
            f"metadata.labels[{QUEUE_NAME}]",
            f"The namespace has the queue {names[0]}, but this {target.kind.kind} doesn't name one. Kueue "
            "doesn't count it, and its pods take nodes that were promised to admitted workloads.",
            f"Set the label {QUEUE_NAME}: {names[0]}.",
        )


RULE = rule(
    __name__, check, tuple(kind for kind in known_lifecycles() if kind.group in _GROUPS), unowned=True
)
