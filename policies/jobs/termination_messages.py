"""Keeping the end of the log of failed containers as their termination message.

With `terminationMessagePolicy: FallbackToLogsOnError`, the kubelet writes the last 80 lines (at most 2048
bytes) of the log into the pod's status if a container fails without a message.

Law: no other field changes. Pods whose operator reads the messages stay as they are. Argo Workflows v3.7
compares them with the texts of network errors to decide about retries, and keeps them in the Workflow. Tekton
v1.5 parses the message of a step as JSON and reports an error for other text.
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core.annotations import TERMINATION_MESSAGE
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.reasons import Reasons
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import has_label
from policies.kube.group_kinds import JOB, GroupKind
from policies.kube.json import Json
from policies.kube.pods import Role, with_container

FIELD: Final = "terminationMessagePolicy"
FALLBACK: Final = "FallbackToLogsOnError"
_DEFAULT: Final = "File"
"""The API server's default, set before webhooks receive the pod."""
_READ: Final = (GroupKind("argoproj.io", "Workflow"), GroupKind("tekton.dev", "TaskRun"))
"""Owners whose operator reads the messages of their pods."""
KEEPS: Final = "file"
"""The value of the annotation that keeps the default."""


def with_log_fallback(pod: Json, settings: JobRetries, facts: Facts, reasons: Reasons) -> Json:
    """The pod with `FallbackToLogsOnError`, if a Job owns it or it is training."""
    view = facts.view(pod)
    annotations = view.typed.metadata.annotations
    if not settings.logs_on_error or annotations.get(TERMINATION_MESSAGE) == KEEPS:
        return pod
    if not _needs_fallback(view, settings, facts):
        return pod
    changed = pod
    for container in view.containers:
        if container.role is Role.SIDECAR or container.spec.get(FIELD) not in (None, _DEFAULT):
            continue
        changed = with_container(changed, container, {**container.spec, FIELD: FALLBACK})
        reasons.give(
            f"{container.path}.{FIELD}",
            "the end of its log stays in the pod's status if it fails without a message",
            setting="logsOnError",
            annotation=f"{TERMINATION_MESSAGE}=logs",
        )
    return changed


def _needs_fallback(view: PodView, settings: JobRetries, facts: Facts) -> bool:
    """Whether the pod runs to completion, for a Job or training, and no operator reads its messages."""
    if not view.completes:
        return False
    owner = None if view.owner is None else view.owner.group_kind
    if owner in _READ:
        return False
    if owner == JOB:
        return True
    labels = view.typed.metadata.labels
    return wants_accelerator(view, facts) or has_label(labels, settings.training_labels)
