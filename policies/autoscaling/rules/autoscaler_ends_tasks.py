"""autoscaler-ends-tasks: workers of a queue that an autoscaler removes while they work."""

from __future__ import annotations

from policies.autoscaling.queues import queue_of
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, ROLLOUT, STATEFUL_SET
from policies.kube.objects.pods import DEFAULT_GRACE
from policies.kube.pods import Role
from policies.probes.serving import recognised
from policies.rollouts.rollouts import autoscaler_of, minimum_replicas


def check(target: Target, facts: Facts) -> Findings:
    autoscaler = autoscaler_of(target.kind.kind, target.name, facts) if target.replicas else None
    if autoscaler is None or (autoscaler.spec.max_replicas or 0) <= minimum_replicas(target, facts):
        return
    queue = queue_of(autoscaler)
    for template in target.templates if queue else ():
        if template.typed.spec.termination_grace_period_seconds is not None or any(
            recognised(each, facts) is not None or each.typed.pre_stop is not None
            for each in template.containers(Role.MAIN)
        ):
            continue
        yield Finding(
            f"{template.spec_path}.terminationGracePeriodSeconds",
            f"HorizontalPodAutoscaler {autoscaler.name} removes pods when its queue ({queue}) is short, also "
            f"those that still work on a task, and the pod has {DEFAULT_GRACE} s, the default, to end: a "
            "task that takes longer is lost or done again.",
            "Set terminationGracePeriodSeconds to the time of the longest task, and let the program end its "
            "task at SIGTERM; or use a ScaledJob, which never removes a running pod.",
        )


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET, ROLLOUT), unowned=True)
