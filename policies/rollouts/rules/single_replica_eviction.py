"""single-replica-eviction: servers that one eviction takes away whole."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts, Resource
from policies.core.finding import Finding
from policies.core.target import Target
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.rollouts.serving import running_replicas, serves


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    given = target.spec.get("replicas")
    if given is None and facts.listing(Resource.AUTOSCALERS) is None:
        return  # an autoscaler that isn't known may set it
    if running_replicas(target, facts) == 1 and serves(target, facts):
        yield Finding(
            "spec.replicas",
            "One replica serves: when its node is drained or fails, nothing serves until another pod has "
            "been scheduled and has loaded its model.",
            "Run two replicas with a PodDisruptionBudget of maxUnavailable 1, or accept the gap with an "
            "exemption.",
        )


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET))
