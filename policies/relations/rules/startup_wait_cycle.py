"""startup-wait-cycle: workloads whose pods wait for each other."""

from __future__ import annotations

from itertools import islice

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.metadata import controller
from policies.relations.links import Relation
from policies.relations.waiters import Cycle, cycle_through, listed

MOST_NAMED = 4
"""Members of a cycle that a message names."""


def check(target: Target, facts: Facts) -> Findings:
    if controller(target.obj) is not None:
        return  # judged where a person writes it
    cycle = cycle_through(target, facts.namespace, facts.cluster)
    if cycle is None or len(cycle.steps) == 1:  # the rules about a workload's own Service report the latter
        return
    if not _is_reported_here(cycle, facts):
        return
    first = cycle.steps[0]
    yield Finding(
        first.link.path,
        f"{first.link.who[:1].upper()}{first.link.who[1:]} waits for Service {first.service}, and "
        f"{_way_back(cycle, facts.namespace)}: {_consequence(cycle, facts.namespace)}.",
        "Remove one of these waits, and let that application retry its connection instead.",
        cycle.certainty,
    )


def _is_reported_here(cycle: Cycle, facts: Facts) -> bool:
    """Whether the finding belongs here: at the object that closes the cycle, else at the first by name."""
    here = cycle.steps[0].waiter
    known = listed(here, facts.cluster)
    if known is None or known.links != here.links:
        return True
    # Manifests that go into a cluster do not change the members that run there.
    others = (step.waiter for step in cycle.steps[1:])
    return all(here.identity < other.identity for other in others if other.written or not known.written)


def _way_back(cycle: Cycle, namespace: str) -> str:
    """ "Deployment b behind it waits for Service a": the steps that lead back to the start."""
    steps = cycle.steps[1:]
    named = [
        f"{step.waiter.seen_from(namespace)} waits for Service {step.service}"
        for step in islice(steps, MOST_NAMED)
    ]
    if len(steps) > MOST_NAMED:
        named.append(f"{len(steps) - MOST_NAMED} more wait in turn")
    return ", ".join(named) + ", which leads back to this workload"


def _consequence(cycle: Cycle, namespace: str) -> str:
    limit, running = cycle.limit, cycle.running
    asked = all(step.link.relation is Relation.NEEDS_READY for step in cycle.steps)
    none = "none of them can become ready" if asked else "none of them can start"
    if limit is not None:
        return f"if none of them runs, none starts for {limit:.0f} s"
    if running is not None:
        return f"{running.seen_from(namespace)} runs now, but once all of them are down, {none}"
    if cycle.certainty is Certainty.UNDECIDED:
        return f"if these waits have no other end, {none}"
    return none


RULE = rule(__name__, check)
