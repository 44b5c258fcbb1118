"""autoscaler-conflict: replicas that two autoscalers set, or an autoscaler and a manifest, also if Argo CD
was told to ignore the manifest's; and requests that one sets and by which another one scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.autoscalers import MAKERS, autoscaler_minimum, autoscaler_of, made_autoscaler
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.facts import Rank
from policies.core.listing import TypedIndex
from policies.kube.group_kinds import AUTOSCALER, SERVING, GroupKind
from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.metadata import written
from policies.kube.objects.reading import read
from policies.kube.objects.scaling import HorizontalPodAutoscaler, VerticalPodAutoscaler

Scaled = tuple[str, str, str]
_APPLICATION: Final = GroupKind("argoproj.io", "Application")
_VERTICAL: Final = GroupKind("autoscaling.k8s.io", "VerticalPodAutoscaler")
_RESPECTED: Final = "RespectIgnoreDifferences=true"


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in SERVING:
        out_of_range = list(_of_manifest(target, facts))
        yield from out_of_range or _ignored_until_a_sync(target, facts)
        return
    autoscalers = facts.objects(HorizontalPodAutoscaler)
    own = _own(target)
    if autoscalers is None or own is None:
        return
    scaled = _scaled(own)
    others = sorted(_rank(each) for each in autoscalers.by(_BY_TARGET, scaled) if each.name != own.name)
    if others and scaled[2] and facts.is_first(_rank(own), others):
        yield Finding(
            "spec.scaleTargetRef",
            f"{others[0][1]} also scales {scaled[1]} {scaled[2]}. Each of them undoes the "
            "other's changes, and the number of replicas goes up and down.",
            "Keep one autoscaler and give it the metrics of both.",
            # An upgrade that renames the autoscaler deletes the other one afterwards.
            Certainty.LIKELY if facts.whole is None else Certainty.CERTAIN,
        )
    yield from _vertical(own, facts)


def _vertical(own: HorizontalPodAutoscaler, facts: Facts) -> Findings:
    """A finding about requests that a VerticalPodAutoscaler sets, and by which this autoscaler scales."""
    measured = {
        each.resource.name
        for each in own.spec.metrics
        if each.resource is not None and each.resource.target.average_utilization is not None
    }
    reference = own.spec.scale_target_ref
    whole = facts.whole
    for vertical in () if whole is None else whole.typed(_VERTICAL, facts.namespace, VerticalPodAutoscaler):
        other = vertical.spec.target_ref
        if (other.kind, other.name) != (reference.kind, reference.name):
            continue
        if resource := min(measured & vertical.sized, default=""):
            yield Finding(
                "spec.metrics",
                f"VerticalPodAutoscaler {vertical.name} sets the {resource} requests of "
                f"{reference.kind} {reference.name}, by whose utilization this autoscaler scales. Each of "
                "them reacts to the other's changes.",
                f"Scale by another metric, or leave {resource} out of the VerticalPodAutoscaler's "
                "controlledResources.",
                Certainty.LIKELY,
            )
            return


def _rank(autoscaler: HorizontalPodAutoscaler) -> Rank:
    return autoscaler.exists, autoscaler.title


def _of_manifest(target: Target, facts: Facts) -> Findings:
    """A finding about replicas outside the autoscaler's range: each apply sets them, and the autoscaler sets
    them back."""
    replicas = written(target.obj, "spec", "replicas")
    if type(replicas) is not int or not replicas:
        return
    autoscaler = autoscaler_of(target.kind.kind, target.name, facts)
    if autoscaler is None:
        return
    low, high = autoscaler_minimum(autoscaler), autoscaler.spec.max_replicas or replicas
    if low <= replicas <= high:
        return
    stops = (
        f"stops pods until {replicas} {'is' if replicas == 1 else 'are'} left"
        if replicas < low
        else f"starts pods until there are {replicas}"
    )
    yield Finding(
        "spec.replicas",
        f"Each apply of this manifest {stops}, and {autoscaler.title} (from {low} to {high}) then restores "
        "its own number. Every apply stops and starts servers.",
        "Remove spec.replicas, because the autoscaler sets it. If kubectl apply wrote it, remove it with "
        "kubectl apply edit-last-applied first. Otherwise, the next apply sets it to 1 once.",
        Certainty.LIKELY,
    )


def _ignored_until_a_sync(target: Target, facts: Facts) -> Findings:
    """A finding about replicas that an Application ignores when it compares, and not when it syncs."""
    replicas = written(target.obj, "spec", "replicas")
    if facts.whole is None or type(replicas) is not int:
        return
    for application in facts.whole.every(_APPLICATION, None):
        spec = mapping(application, "spec")
        respected = _RESPECTED in strings(spec, "syncPolicy", "syncOptions")
        if respected or text(spec, "destination", "namespace") != facts.namespace:
            continue
        if any(_is_about_replicas(each, target, facts) for each in maps(spec, "ignoreDifferences")):
            name = text(application, "metadata", "name")
            yield Finding(
                "spec.replicas",
                f"Argo CD's Application {name} ignores spec.replicas when it compares, but it still applies "
                f"the field: each sync sets {replicas} again, whatever an autoscaler or a person has set.",
                f"Remove spec.replicas, or add {_RESPECTED} to the Application's syncOptions.",
                Certainty.LIKELY,
            )
            return


def _is_about_replicas(ignored: Json, target: Target, facts: Facts) -> bool:
    """Whether an entry of `ignoreDifferences` ignores the replicas of the object."""
    own = {"group": target.kind.group, "kind": target.kind.kind, "name": target.name}
    own["namespace"] = facts.namespace
    if any(text(ignored, key) not in ("", "*", value) for key, value in own.items()):
        return False
    paths = (*strings(ignored, "jsonPointers"), *strings(ignored, "jqPathExpressions"))
    return not {"/spec/replicas", ".spec.replicas"}.isdisjoint(paths)


def _own(target: Target) -> HorizontalPodAutoscaler | None:
    """The reviewed autoscaler, or the one that another controller makes of the object. The latter's own are
    reported at that object."""
    if target.kind == AUTOSCALER:
        return None if target.has_controller else target.read(HorizontalPodAutoscaler)
    made = made_autoscaler(target.obj)
    return None if made is None else read(made, HorizontalPodAutoscaler)


def _scaled(autoscaler: HorizontalPodAutoscaler) -> Scaled:
    reference = autoscaler.spec.scale_target_ref
    return reference.api_version.partition("/")[0], reference.kind, reference.name


def _targets(autoscaler: HorizontalPodAutoscaler) -> Iterator[Scaled]:
    yield _scaled(autoscaler)


_BY_TARGET: Final = TypedIndex(HorizontalPodAutoscaler, _targets)

RULE = rule(__name__, check, (AUTOSCALER, *MAKERS, *SERVING))
