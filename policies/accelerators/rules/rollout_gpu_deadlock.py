"""rollout-gpu-deadlock: rollouts whose new pods wait for the accelerators of the old pods."""

from __future__ import annotations

from itertools import islice
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import competing, kept_apart, placement
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.group_kinds import LEADER_WORKER_SET, RAY_SERVICE, SERVING
from policies.kube.names import listed, plural
from policies.kube.objects.nodes import HOSTNAME
from policies.kube.objects.ray import RayService
from policies.rollouts.rollouts import (
    RolloutOutcome,
    made_rollouts,
    outcome,
    pending_replicas,
    pods_per_replica,
    running_update,
)

_UPDATED: Final = (*SERVING, LEADER_WORKER_SET)
"""The kinds that are updated themselves; the operators of others make Deployments."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == RAY_SERVICE:
        yield from _second_cluster(target, facts)
        return
    yield from islice(_made_by_operator(target, facts), 1)
    update = running_update(target, facts) if target.kind in _UPDATED else None
    if update is None:
        return
    groups = target.kind == LEADER_WORKER_SET
    for template, placed, pods in competing(pods_per_replica(target), facts):
        apart = not groups and kept_apart(template.typed, HOSTNAME)
        room = placed.room(one_each=apart) / pods
        ends = outcome(update, room)
        if (
            ends is RolloutOutcome.STUCK
            and apart
            and not kept_apart(template.typed, HOSTNAME, revisions=True)
        ):
            apart, room = False, placed.room(one_each=False) / pods
            ends = outcome(update, room)
        if ends is RolloutOutcome.COMPLETES:
            continue
        requested = listed(f"{count * pods} {resource}" for resource, count in placed.requests.items())
        limit, instead = "", ""
        if apart and placed.room(one_each=False) > room:
            limit = "with one on each node, as podAntiAffinity requires, "
            instead = "make the podAntiAffinity preferred, "
        what, such = (f"group of {pods} pods", "groups") if groups else ("pod", "pods")
        if ends is RolloutOutcome.SHORT:
            yield Finding(
                "spec.replicas",
                f"{limit.capitalize()}{'all' if limit else 'All'} nodes and pools together fit only "
                f"{int(room)} {such} with {requested}, so {pending_replicas(update.replicas, room)}.",
                f"Run at most {plural(int(room), 'replica')}, {instead}or declare a pool that can grow in "
                "gpu-affinity.yaml.",
                _certainty(facts),
            )
        else:
            starts = f"a new {what}" if groups else update.starts
            yield Finding(
                update.path,
                f"A rollout starts {starts} with {requested}{update.either('', ' each')} before it "
                f"stops an old one. While {_running(update.replicas)}, no node has room for "
                f"{update.either('it', 'all of them')}: {limit}all nodes and pools together fit "
                f"only {int(room)}.",
                f"{update.in_place}, {instead}or declare a pool that can grow in gpu-affinity.yaml.",
                _certainty(facts),
            )
        return


def _running(pods: int) -> str:
    return f"{pods} {'is' if pods == 1 else 'are'} running"


def _made_by_operator(target: Target, facts: Facts) -> Findings:
    """Findings about Deployments that the operator of the workload makes."""
    for made in made_rollouts(target):
        placed = placement(made.template.view, facts)
        if placed is None or not placed.nodes:
            continue
        room = placed.room(one_each=False)
        if outcome(made.update, room) is not RolloutOutcome.STUCK:
            continue
        change = (
            f"Set {made.strategy}.type to Recreate" if made.strategy else "Delete an old pod for each change"
        )
        yield Finding(
            made.strategy or made.template.spec_path,
            f"A change to this {target.kind.kind} starts a new pod with {placed.requested} before it stops "
            f"an old one. While {_running(made.update.replicas)}, no node has room for it: all nodes and "
            f"pools together fit only {int(room)}.",
            f"{change}, or declare a pool that can grow in gpu-affinity.yaml.",
            Certainty.UNDECIDED,  # the operator's own configuration may have another strategy
        )


def _second_cluster(target: Target, facts: Facts) -> Findings:
    """A finding about a RayService, whose upgrade starts a second cluster before it removes the first."""
    spec = target.read(RayService).spec
    if spec.upgrade_strategy.type == "None":
        return
    groups = spec.ray_cluster_config.worker_group_specs
    for template in target.templates:
        index = template.entry
        placed = placement(template.view, facts)
        if placed is None or not placed.nodes or index is None or index >= len(groups):
            continue
        group = groups[index]
        pods = group.pods
        room = placed.room(one_each=False)
        if pods <= room < 2 * pods:
            yield Finding(
                template.spec_path,
                f"An upgrade starts a second cluster before it removes the first. Group {group.group_name} "
                f"needs {plural(pods, 'pod')} with {placed.requested} in each cluster, but all nodes "
                f"and pools together fit only {int(room)}. The new cluster never becomes ready.",
                "Set upgradeStrategy.type: None and accept an interruption, or declare a pool that can "
                "grow in gpu-affinity.yaml.",
                Certainty.UNDECIDED,
            )
            return


def _certainty(facts: Facts) -> Certainty:
    settings = facts.settings(GpuAffinity)
    return Certainty.CERTAIN if settings.knows_all_nodes else Certainty.UNDECIDED


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
