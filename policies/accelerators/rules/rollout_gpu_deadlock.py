"""rollout-gpu-deadlock: a rollout whose new pod waits for the accelerators that the old pod holds."""

from __future__ import annotations

from collections.abc import Iterator

from policies.accelerators.placement import kept_apart, placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.needs import Need
from policies.core.target import Target
from policies.kube.group_kinds import DEPLOYMENT
from policies.kube.names import listed
from policies.kube.nodes import HOSTNAME
from policies.rollouts.rollouts import rolling_update


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    rollout = rolling_update(target.obj)
    if rollout is None or rollout.unavailable:
        return
    settings = facts.settings(GpuAffinity)
    certainty = Certainty.SURE if settings.pools or settings.fixed_size else Certainty.UNDECIDED
    for template in target.templates:
        found = placement(template.pod, settings, facts)
        if found is None or not found.nodes:
            continue  # with no node at all it is gpu-unschedulable's
        room = found.room(one_each=kept_apart(template.pod, HOSTNAME))
        if room <= rollout.replicas:
            asked = listed(f"{count} {resource}" for resource, count in found.requests.items())
            yield Finding(
                "spec.strategy.rollingUpdate.maxUnavailable",
                f"A rollout starts a pod with {asked} before it stops one, and beside the "
                f"{rollout.replicas} that run there is no room: all nodes and pools together take "
                f"{room:g} such pods.",
                "Set maxUnavailable to 1 and maxSurge to 0, or declare a pool that can grow in "
                "gpu-affinity.yaml.",
                certainty,
            )


RULE = rule(__name__, check, (DEPLOYMENT,), needs=(Need.EXTENDED,))
