"""quota-exceeded: pods that a ResourceQuota of their namespace never admits."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.runs import run_of
from policies.kube.group_kinds import POD
from policies.kube.names import listed, plural
from policies.quotas.limit_ranges import has_own_defaults
from policies.quotas.quotas import (
    REPLICATED,
    QuotaMatch,
    Room,
    group_without_room,
    in_use,
    is_running,
    missing_resources,
    quota_matches,
    used_by_other_manifests,
)
from policies.quotas.rules.limit_range_conflict import refuses
from policies.rollouts.rollouts import RolloutOutcome, outcome


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == POD:
        return  # the API server refuses it at once
    for each in quota_matches(target, facts):
        try:
            found = list(_findings(target, each, facts))
        except ValueError:
            continue  # a quantity that no API server accepts
        if found:
            sized = any(finding.path.endswith(".resources") for finding in found)
            if not sized or not refuses(target, facts):  # else one edit is right for both
                yield from found
            return


def _findings(target: Target, each: QuotaMatch, facts: Facts) -> Findings:
    name = each.quota.name
    for template, pods in zip(each.templates, each.pods, strict=True):
        unless = "" if pods.defaults_known else ", unless a LimitRange adds it"
        lacking = () if has_own_defaults(template.workload) else missing_resources(each.quota, pods)
        for container, missing in lacking:
            yield Finding(
                template.at(container, "resources"),
                f"ResourceQuota {name} refuses every pod, because it counts {listed(missing)} and "
                f"container {container.name} doesn't set such a value{unless}.",
                "Set it, or give the namespace a LimitRange with defaults.",
                # a webhook may add it to the pods, or an unknown LimitRange
                Certainty.LIKELY if pods.defaults_known else Certainty.UNDECIDED,
            )
            return
    room = each.room()
    if room is None:
        return
    if room.replicas < 1:
        count = sum(part.count for part in each.pods)
        group = target.kind not in REPLICATED and count > 1
        run = run_of(target.obj)
        waits = not group or (run is not None and run.needs_all_pods)
        then = (
            "Some of them are never created, and the others wait for them."
            if waits
            else "Some of them are created only when others have ended. If these wait for them, none goes on."
        )
        yield Finding(
            _resources(each.templates[0]),
            f"ResourceQuota {name} allows {room.limit}, but the {count} pods of this {target.kind.kind} "
            f"take {room.each}. {then}"
            if group
            else (
                f"ResourceQuota {name} allows {room.limit}, but one replica takes "
                f"{room.each}. No replica ever runs."
            ),
            "Request less, or raise the quota.",
            Certainty.CERTAIN if waits else Certainty.LIKELY,
        )
    elif outcome(each.update, float(room.replicas)) is RolloutOutcome.SHORT:
        yield _short(target, each, room, room.text, Certainty.CERTAIN)
    else:
        yield from _next_to_others(target, each, facts)
        yield from _next_to_groups(target, each, facts)


def _next_to_others(target: Target, each: QuotaMatch, facts: Facts) -> Findings:
    """Replicas that fit in an empty namespace, but not next to the other pods."""
    used, last = in_use(each.quota), True
    if used is None:
        used, last = used_by_other_manifests(target, each.quota, facts)
        others = "The other workloads of this set take"
    elif is_running(target, each.quota, facts) is not False:
        return  # its own pods are, or may be, among those in use
    else:
        others = "Other pods use"
    room = each.room(used)
    if room is not None and last and outcome(each.update, float(room.replicas)) is RolloutOutcome.SHORT:
        part = "a replica" if target.kind in REPLICATED else f"this {target.kind.kind}"
        why = (
            f"{others} {room.amount(room.used)} of the {room.limit} that ResourceQuota {room.quota} allows, "
            f"and {part} takes {room.each}"
        )
        yield _short(target, each, room, why, Certainty.LIKELY)


def _next_to_groups(target: Target, each: QuotaMatch, facts: Facts) -> Findings:
    """Two groups of pods of which each fits the quota alone: if both start, each may get a part of its pods,
    which wait for the rest. The last of them by kind and name has the finding."""
    if target.kind in REPLICATED or sum(part.count for part in each.pods) < 2:
        return
    if in_use(each.quota) is not None:
        return  # those that run are among the pods in use
    found = group_without_room(target, each, facts)
    if found is not None:
        who, room = found
        yield Finding(
            _resources(each.templates[0]),
            f"ResourceQuota {room.quota} allows {room.limit}. {who} takes {room.amount(room.used)}, "
            f"and this {target.kind.kind} takes {room.each}. If both start, each "
            "may get only some of its pods, which wait for the rest.",
            "Admit them as groups with a Kueue queue or another gang scheduler, or raise the quota.",
            Certainty.LIKELY,
        )


def _short(target: Target, each: QuotaMatch, room: Room, why: str, certainty: Certainty) -> Finding:
    fits, wanted = int(room.replicas), each.update.replicas
    if target.kind not in REPLICATED:
        path = _resources(each.templates[0])
        return Finding(
            path,
            f"{why}, so not all of its pods are created.",
            "Request less, or raise the quota.",
            certainty,
        )
    left = wanted - fits
    return Finding(
        "spec.replicas",
        f"{why}, so {left} of {wanted} replicas {'is' if left == 1 else 'are'} not created.",
        f"{_fewer(fits)} less, or raise the quota.",
        certainty,
    )


def _fewer(fits: int) -> str:
    """The start of a sentence about the replicas that fit."""
    return f"Run at most {plural(fits, 'replica')}, request" if fits else "Request"


def _resources(template: PodTemplate) -> str:
    first = next(iter(template.containers()), None)
    return template.spec_path if first is None else template.at(first, "resources")


RULE = rule(__name__, check, unowned=True, at_once=True)
