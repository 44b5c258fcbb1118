"""rollout-node-deadlock: more pods that must be apart than there are nodes or zones for them."""

from __future__ import annotations

from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import placement
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import SERVING
from policies.kube.names import plural
from policies.kube.objects.nodes import HOSTNAME, pinned_to_one_node
from policies.kube.scheduling import is_within_limits
from policies.relations.domains import (
    MAX_NODES,
    DomainCause,
    Domains,
    Limit,
    domains,
    limits_of,
    with_accelerators,
)
from policies.rollouts.rollouts import (
    RollingUpdate,
    RolloutOutcome,
    outcome,
    pending_replicas,
    running_update,
)

_PLACES: Final = {HOSTNAME: "on different nodes", "topology.kubernetes.io/zone": "in different zones"}


def check(target: Target, facts: Facts) -> Findings:
    nodes = facts.nodes()
    if not nodes or len(nodes) > MAX_NODES:
        return
    if len(target.templates) != 1:
        return
    [template] = target.templates
    limits = limits_of(template)
    update = running_update(target, facts) if limits else None
    if update is None:
        return
    settings = facts.settings(GpuAffinity)
    spec = template.typed.spec
    if spec.node_name or not is_within_limits(spec):
        return
    placed = placement(template.view, facts)
    for limit in limits:
        if limit.cause is DomainCause.PORT and pinned_to_one_node(spec):
            continue  # rollout-host-port-deadlock's
        found = domains(spec, limit, nodes)
        if found is not None and placed is not None:
            found = with_accelerators(found, limit, placed)
        if found is None or not found.usable:
            continue
        ends = outcome(update, found.room(limit))
        if placed is not None and placed.nodes:
            by_accelerators = outcome(update, placed.room(one_each=False))
            if by_accelerators in (ends, RolloutOutcome.SHORT):
                continue  # rollout-gpu-deadlock's
        if ends is RolloutOutcome.SHORT or (ends is RolloutOutcome.STUCK and limit.across_revisions):
            # Pods of another workload may count in a spread.
            sure = settings.fixed_size and limit.cause is not DomainCause.SPREAD
            yield _finding(update, limit, found, ends, Certainty.CERTAIN if sure else Certainty.LIKELY)
            return


def _finding(
    update: RollingUpdate, limit: Limit, found: Domains, ends: RolloutOutcome, certainty: Certainty
) -> Finding:
    room = int(found.room(limit))
    reason, alternative = _reason(limit, found), _alternative(limit, found)
    if ends is RolloutOutcome.SHORT:
        message = f"{reason}, and {pending_replicas(update.replicas, room)}."
        return Finding(
            limit.path, message, f"Run at most {plural(room, 'replica')}, or {alternative}.", certainty
        )
    return Finding(
        update.path,
        f"{reason}, one for each replica. A rollout starts {update.starts} before it stops an old one, so "
        f"{update.either('the new pod stays', 'new pods stay')} Pending and the rollout never "
        "completes.",
        f"{update.in_place}, or {alternative}.",
        certainty,
    )


def _reason(limit: Limit, found: Domains) -> str:
    """Why so few pods fit, as a sentence without its end."""
    if limit.cause is DomainCause.SPREAD:
        what = "whose taints or labels keep the pods out"
        if found.lacking:
            what = f"without a node that has {found.lacking}"
        empty = (
            f"The spread over {limit.key} counts a domain {what}"
            if found.unusable
            else f"The nodes have {found.usable} domains of {limit.key}, "
            f"fewer than minDomains {limit.min_domains}"
        )
        return f"{empty}, so maxSkew {limit.per_domain} allows {int(found.room(limit))} pods in all"
    apart = f"The pods must be {_places(limit)}, but only {found.usable} of these can run them"
    return apart if limit.cause is DomainCause.APART else f"Each pod uses a port of its node. {apart}"


def _alternative(limit: Limit, found: Domains) -> str:
    match limit.cause:
        case DomainCause.APART:
            return f"prefer pods {_places(limit)} instead of requiring it"
        case DomainCause.PORT:
            return "remove the host port and use a Service"
        case DomainCause.SPREAD:
            change = "set nodeTaintsPolicy to Honor" if found.unusable else "lower minDomains"
            if found.lacking:
                change = (
                    "select the nodes with accelerators by a label, or declare a pool that can grow in "
                    "gpu-affinity.yaml"
                )
            return f"{change}, or set whenUnsatisfiable to ScheduleAnyway"


def _places(limit: Limit) -> str:
    return _PLACES.get(limit.key, f"on nodes with different values of {limit.key}")


RULE = rule(__name__, check, SERVING, unowned=True)
