"""rollout-takes-all-down: rollouts that stop every replica at once."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.target import Target
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.json import Json, dig, integer, replaced, text
from policies.probes.serving import serving_containers
from policies.rollouts.rollouts import count_of, is_recreate, rolling_update, running_replicas


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    replicas = running_replicas(target.obj, facts)
    if replicas < 2 or not any(serving_containers(template.pod, facts) for template in target.templates):
        return
    if target.kind == STATEFUL_SET:
        unavailable = _unavailable_of_stateful_set(target.obj, replicas)
        field = "spec.updateStrategy.rollingUpdate.maxUnavailable"
    else:
        if is_recreate(target.obj):
            yield Finding(
                "spec.strategy.type",
                f"Strategy Recreate stops all {replicas} replicas before the first new one starts: every "
                "change is an outage of at least one start.",
                "Use RollingUpdate, or keep Recreate only where two versions can't run side by side.",
                Certainty.LIKELY,
            )
            return
        rollout = rolling_update(replaced(target.obj, ("spec", "replicas"), replicas))
        unavailable = rollout.unavailable if rollout else None
        field = "spec.strategy.rollingUpdate.maxUnavailable"
    if unavailable is not None and unavailable >= replicas:
        yield Finding(
            field,
            f"All {replicas} replicas may be unavailable at once: a rollout takes them all down together, "
            "and one bad image leaves nothing that serves.",
            f"Set maxUnavailable below {replicas}: 1, 25%, or 0 with a maxSurge.",
        )


def _unavailable_of_stateful_set(stateful_set: Json, replicas: int) -> int | None:
    """Pods that a rolling update may take away at once; None if it is no such update.

    The controller rounds a percentage down, to 1 at the least, contrary to the API's comment
    (`getStatefulSetMaxUnavailable` in `stateful_set_utils.go`).
    """
    if text(stateful_set, "spec", "updateStrategy", "type") == "OnDelete":
        return None
    steps = dig(stateful_set, "spec", "updateStrategy", "rollingUpdate")
    value = dig(steps, "maxUnavailable")
    if value is None or integer(steps, "partition", default=0) > 0:
        return 1
    count = count_of(value, replicas, up=False)
    return None if count is None else max(count, 1)


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET))
