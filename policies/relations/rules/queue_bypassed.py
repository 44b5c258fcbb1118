"""queue-bypassed: training that names no queue in a namespace that has one."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.queues import SUSPENDED_GROUPS, queue_to_name
from policies.jobs.training import runs_training, trains_by_kind
from policies.kube.objects.queues import QUEUE_NAME


def check(target: Target, facts: Facts) -> Findings:
    queue = queue_to_name(target, facts)
    if queue and any(
        wants_accelerator(each.view, facts) or trains_by_kind(each.view) or runs_training(each.view)
        for each in target.templates
    ):
        yield Finding(
            f"metadata.labels[{QUEUE_NAME}]",
            f"The namespace has the queue {queue}, but this {target.kind.kind} doesn't name one. Kueue "
            "doesn't count it, and its pods take nodes that were promised to admitted workloads.",
            f"Set the label {QUEUE_NAME}: {queue}.",
        )


_KINDS: Final = tuple(kind for kind in known_lifecycles() if kind.group in SUSPENDED_GROUPS)
RULE = rule(__name__, check, _KINDS, unowned=True)
