"""startup-wait-cycle: workloads whose pods wait for each other."""

from __future__ import annotations

from itertools import islice

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.relations.links import Relation
from policies.relations.wait_cycles import Cycle, cycle_through, in_listing

MAX_NAMED = 4
"""Members of a cycle that a message names."""


def check(target: Target, facts: Facts) -> Findings:
    cycle = cycle_through(target, facts.namespace, facts.cluster)
    # Other rules judge a workload that waits for its own Service.
    if cycle is None or len(cycle.steps) == 1 or not _is_reported_here(cycle, facts):
        return
    first = cycle.steps[0]
    yield Finding(
        first.link.path,
        f"{first.link.subject} waits for Service {first.service}, and "
        f"{_other_steps(cycle, facts.namespace)}: {_consequence(cycle, facts.namespace)}.",
        "Remove one of these waits, and let that application retry its connection instead.",
        cycle.certainty,
    )


def _is_reported_here(cycle: Cycle, facts: Facts) -> bool:
    """Whether the finding belongs to this object: it closes the cycle, or is its first member by name."""
    start = cycle.steps[0].waiter
    known = in_listing(start, facts.cluster)
    if known is None or known.links != start.links:
        return True
    # Manifests that are applied to a cluster do not change the members that run there.
    members = (step.waiter for step in cycle.steps[1:])
    others = (member for member in members if member.is_manifest or not known.is_manifest)
    return all(start.identity < other.identity for other in others)


def _other_steps(cycle: Cycle, namespace: str) -> str:
    """ "Deployment b waits for Service a": the steps that lead back to the start."""
    steps = cycle.steps[1:]
    named = [
        f"{step.waiter.name_in(namespace)} waits for Service {step.service}"
        for step in islice(steps, MAX_NAMED)
    ]
    if len(steps) > MAX_NAMED:
        named.append(f"{len(steps) - MAX_NAMED} more wait in turn")
    return ", ".join(named) + ", which leads back to this workload"


def _consequence(cycle: Cycle, namespace: str) -> str:
    limit, running = cycle.limit, cycle.running
    probes_only = all(step.link.relation is Relation.NEEDS_READY for step in cycle.steps)
    none = "none of them can become ready" if probes_only else "none of them can start"
    if limit is not None:
        return f"if none of them runs, none starts for {limit:.0f} s"
    if running is not None:
        return f"{running.name_in(namespace)} runs now, but once all of them are down, {none}"
    if cycle.certainty is Certainty.UNDECIDED:
        return f"unless these waits end in another way, {none}"
    return none


RULE = rule(__name__, check, unowned=True)
