"""Claims that are bound when a pod mounts them, in an earlier wave of Argo CD than their pods.

Law: Argo CD begins a wave when the claims of the earlier ones are bound (`getCorev1PVCHealth` in its
gitops-engine/pkg/health/health_pvc.go), and such a claim is Pending until a pod that mounts it is scheduled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target
from policies.core.facts import WholeObjects
from policies.core.pod_templates import pod_templates
from policies.core.volumes import waits_for_a_pod
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import CLAIM, CONFIG_MAP, POD, SERVICE
from policies.kube.json import Json, integer, mapping, maps, text
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import readable
from policies.kube.objects.storage import PersistentVolumeClaim
from policies.relations.order import Position, argo_position, orders_with_argo
from policies.relations.reads import objects_read

_IGNORED: Final = "argocd.argoproj.io/ignore-healthcheck"
_OWN_HEALTH: Final = "resource.customizations.health.PersistentVolumeClaim"
"""A key of Argo CD's ConfigMap: another program says whether a claim is healthy."""
_HINT: Final = "Deploy the claim in the same wave as what mounts it."


def claims_too_early(target: Target, facts: Facts) -> Findings:
    manifests = facts.whole
    if manifests is None or not target.read(Object).is_manifest:
        return
    for template in target.templates:
        for each in objects_read(template):
            found = manifests.together(CLAIM, facts.namespace, each.name) if each.kind == CLAIM else None
            claim = None if found is None else readable(found, PersistentVolumeClaim)
            if claim is None or not _blocks(claim, manifests, facts):
                continue
            position = argo_position(claim)
            if position is None:
                continue
            users = list(_users(manifests, facts.namespace).get(claim.name, ()))
            if target.replicas:
                finding = _of_later_pods(target, claim, position, users, each.path)
            elif any(map(_has_pods, users)):
                finding = None
            else:
                later = next(_later(claim, position, manifests, facts.namespace), None)
                finding = None if later is None else _without_pods(target, claim, position, later, each.path)
            if finding is not None:
                yield finding
                return


def _blocks(claim: PersistentVolumeClaim, manifests: WholeObjects, facts: Facts) -> bool:
    """Whether Argo CD waits for a claim that waits for its pods."""
    if not claim.is_manifest or _IGNORED in claim.metadata.annotations or not waits_for_a_pod(claim, facts):
        return False
    return not manifests.cache.once(_has_own_health, manifests)


def _has_own_health(manifests: WholeObjects) -> bool:
    return any(_OWN_HEALTH in mapping(each, "data") for each in manifests.every(CONFIG_MAP, None))


def _of_later_pods(
    target: Target, claim: Object, position: Position, users: list[Json], path: str
) -> Finding | None:
    """About the first of the workloads that mount a claim, if all of them are deployed after it."""
    own = argo_position(target.read(Object))
    ranks = [None if each is None else each.rank for each in map(_position, filter(_has_pods, users))]
    if own is None or not ranks or None in ranks or own.rank != min(filter(None, ranks)):
        return None
    if own.rank <= position.rank or not orders_with_argo(target.read(Object), claim):
        return None
    return Finding(
        path,
        f"The StorageClass of claim {claim.name} waits for the first pod, and Argo CD, which deploys the "
        f"claim {position.description}, waits until it is bound before it deploys this {target.kind.kind} "
        f"({own.description}). The first sync never completes.",
        _HINT,
        Certainty.LIKELY,
    )


def _without_pods(target: Target, claim: Object, position: Position, later: str, path: str) -> Finding:
    """About a workload with 0 replicas, while nothing else mounts a claim."""
    return Finding(
        path,
        f"The StorageClass of claim {claim.name} waits for the first pod, but this {target.kind.kind} has 0 "
        f"replicas. Argo CD, which deploys the claim {position.description}, waits until it is bound before "
        f"it deploys {later}.",
        "Deploy the claim in the last wave, or with a replica, or remove both until they are needed.",
        Certainty.LIKELY,
    )


def _later(claim: Object, position: Position, manifests: WholeObjects, namespace: str) -> Iterator[str]:
    """What Argo CD deploys after a claim."""
    for kind in (SERVICE, POD, *workloads_by_kind()):
        for each in manifests.every(kind, namespace):
            obj = readable(each, Object)
            other = None if obj is None or not orders_with_argo(claim, obj) else argo_position(obj)
            if obj is not None and other is not None and other.rank > position.rank:
                yield f"{kind.kind} {obj.name} ({other.description})"


def _position(obj: Json) -> Position | None:
    found = readable(obj, Object)
    return None if found is None else argo_position(found)


def _has_pods(obj: Json) -> bool:
    return integer(obj, "spec", "replicas", default=1) > 0


def _users(manifests: WholeObjects, namespace: str) -> Mapping[str, list[Json]]:
    """What mounts each claim of a namespace."""
    return manifests.cache.once_for(namespace, _find_users, manifests, namespace)


def _find_users(manifests: WholeObjects, namespace: str) -> Mapping[str, list[Json]]:
    found: defaultdict[str, list[Json]] = defaultdict(list)
    kinds = workloads_by_kind()
    for kind in (POD, *kinds):
        for obj in manifests.every(kind, namespace):
            for template in pod_templates(obj, kinds):
                for volume in maps(template.spec, "volumes"):
                    found[text(volume, "persistentVolumeClaim", "claimName")].append(obj)
    return found
