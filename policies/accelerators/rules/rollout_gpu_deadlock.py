"""rollout-gpu-deadlock: a rollout whose new pod waits for the accelerators that the old pod holds."""

from __future__ import annotations

from collections.abc import Iterator

from policies.accelerators.placement import Placement, kept_apart, placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.pod_features import PodFeature
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DEPLOYMENT, LEADER_WORKER_SET
from policies.kube.json import integer
from policies.kube.names import listed
from policies.kube.nodes import HOSTNAME
from policies.rollouts.rollouts import group_update, rolling_update


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    if target.kind == LEADER_WORKER_SET:
        yield from _of_groups(target, facts)
        return
    rollout = rolling_update(target.obj)
    if rollout is None or rollout.unavailable:
        return
    for template, found in _placed(target, facts):
        room = found.room(one_each=kept_apart(template.pod, HOSTNAME, revisions=True))
        if room <= rollout.replicas:
            asked = listed(f"{count} {resource}" for resource, count in found.requests.items())
            yield Finding(
                "spec.strategy.rollingUpdate.maxUnavailable",
                f"A rollout starts a new pod with {asked} before it stops an old one. With "
                f"{rollout.replicas} running, no node has room for it: all nodes and pools together fit "
                f"{room:g} such pods.",
                "Set maxUnavailable to 1 and maxSurge to 0, or declare a pool that can grow in "
                "gpu-affinity.yaml.",
                _certainty(facts),
            )


def _of_groups(target: Target, facts: Facts) -> Iterator[Finding]:
    """A rollout adds a whole group: the pods of all templates that ask for the same and fit on the same nodes
    take room from each other."""
    rollout = group_update(target.obj)
    if rollout is None or rollout.unavailable or not rollout.surge:
        return
    size = integer(target.obj, "spec", "leaderWorkerTemplate", "size", default=1)
    leads = any(template.path.endswith("leaderTemplate") for template in target.templates)
    alike: list[tuple[Placement, int]] = []
    for template, found in _placed(target, facts):
        pods = 1 if template.path.endswith("leaderTemplate") else size - leads
        same = next((n for n, (each, _) in enumerate(alike) if _compete(each, found)), None)
        if same is None:
            alike.append((found, pods))
        else:
            alike[same] = (found, alike[same][1] + pods)
    for found, pods in alike:
        room = found.room(one_each=False)
        needed = pods * (rollout.replicas + 1)
        if pods and room < needed:
            asked = listed(f"{count * pods} {resource}" for resource, count in found.requests.items())
            yield Finding(
                "spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable",
                f"A rollout starts a whole group, {pods} pods with {asked}, before it stops one. With the "
                f"{rollout.replicas} that run it needs room for {needed} such pods, and all nodes and pools "
                f"together have room for {room:g}.",
                "Set maxUnavailable to 1 and maxSurge to 0, or declare a pool that can grow in "
                "gpu-affinity.yaml.",
                _certainty(facts),
            )
            return


def _placed(target: Target, facts: Facts) -> Iterator[tuple[PodTemplate, Placement]]:
    """The templates whose pods some node can take; one without any node is gpu-unschedulable's."""
    settings = facts.settings(GpuAffinity)
    for template in target.templates:
        found = placement(template.pod, settings, facts)
        if found is not None and found.nodes:
            yield template, found


def _certainty(facts: Facts) -> Certainty:
    """Sure only if the nodes and pools are all that there can be."""
    settings = facts.settings(GpuAffinity)
    return Certainty.SURE if settings.pools or settings.fixed_size else Certainty.UNDECIDED


def _compete(one: Placement, other: Placement) -> bool:
    return one.requests == other.requests and {node.name for node in one.nodes} == {
        node.name for node in other.nodes
    }


RULE = rule(__name__, check, (DEPLOYMENT, LEADER_WORKER_SET), requires=(PodFeature.EXTENDED,))
