"""volume-out-of-reach: pods with accelerators whose volume no node with these accelerators can mount."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from policies.accelerators.inventory import Node
from policies.accelerators.node_affinity import REQUIRED, TERMS, admits, is_within_limits, required_keys
from policies.accelerators.placement import placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.facts import find_by_name
from policies.core.listing import Index
from policies.core.resources import Resource
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.json import Json, dig, indexed_maps, mapping, maps, replaced, strings, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.names import listed

_MAX_NODES: Final = 2_000
"""A pod that can run on more nodes is not judged."""
_MAX_VOLUMES: Final = 8
_SHOWN: Final = 4
_ZONE: Final = "topology.kubernetes.io/zone"
_ZONAL: Final = frozenset(
    {
        *("ebs.csi.aws.com", "kubernetes.io/aws-ebs", "pd.csi.storage.gke.io", "kubernetes.io/gce-pd"),
        *("disk.csi.azure.com", "kubernetes.io/azure-disk"),
    }
)
"""Provisioners whose volumes belong to one zone, from the documentation of each CSI driver."""
_SPANNING: Final = ("regional", "zrs")
"""Parts of parameters of volumes in several zones: `replication-type: regional-pd`, `skuName: Premium_ZRS`"""
_IS_DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"


def check(target: Target, facts: Facts) -> Findings:
    if target.has_controller:
        return
    settings = facts.settings(GpuAffinity)
    for template in target.templates:
        found = placement(template.pod, facts)
        if found is None or not 0 < len(found.nodes) <= _MAX_NODES:
            continue
        fixed = settings.pools or settings.fixed_size
        certainty = Certainty.CERTAIN if fixed else Certainty.LIKELY
        yield from _of_claims(template, found.nodes, facts, certainty)
        if target.kind == STATEFUL_SET:
            for index, claim in indexed_maps(target.spec, "volumeClaimTemplates"):
                path = f"spec.volumeClaimTemplates[{index}].spec.storageClassName"
                yield from _unbound(claim, path, found.nodes, facts)


def _of_claims(template: PodTemplate, nodes: Sequence[Node], facts: Facts, certainty: Certainty) -> Findings:
    claims = facts.listing(Resource.CLAIMS)
    for index, volume in indexed_maps(template.spec, "volumes")[:_MAX_VOLUMES]:
        name = text(volume, "persistentVolumeClaim", "claimName")
        claim = find_by_name(claims, name) if name else None
        if claim is None:
            continue
        path = f"{template.spec_path}.volumes[{index}].persistentVolumeClaim.claimName"
        bound = text(claim, "spec", "volumeName")
        if bound:
            yield from _bound(name, bound, path, nodes, facts, certainty)
        else:
            yield from _unbound(claim, path, nodes, facts)


def _bound(
    claim: str, bound: str, path: str, nodes: Sequence[Node], facts: Facts, certainty: Certainty
) -> Findings:
    volume = find_by_name(facts.cluster.listing(Resource.VOLUMES), bound)
    required = dig(volume, "spec", "nodeAffinity", "required") if volume is not None else None
    if not isinstance(required, dict):
        return
    pod: Json = replaced({}, REQUIRED, required)  # it has the semantics of a pod's affinity
    if not is_within_limits(pod):
        return
    different = _different_nodes(pod, nodes)
    if any(admits(pod, node.name, node.described, partial=node.pool is not None) for node in different):
        return
    yield Finding(
        path,
        f"Claim {claim} is bound to PersistentVolume {bound}, which only nodes with {_labels(required)} can "
        f"mount. The nodes that can run this pod ({_names(nodes)}) are none of these: it stays Pending.",
        "Copy the data to a volume where the accelerators are, or run the pod on nodes where the volume is.",
        certainty,
    )


def _different_nodes(pod: Json, nodes: Sequence[Node]) -> Iterator[Node]:
    """One node of each set that an affinity cannot tell apart: thousands of nodes are in a few zones."""
    keys = sorted(required_keys(pod))
    by_name = any(maps(term, "matchFields") for term in maps(pod, *TERMS))
    seen: set[tuple[object, ...]] = set()
    for node in nodes:
        key = (node.pool is None, by_name and node.name, *map(node.described.get, keys))
        if key not in seen:
            seen.add(key)
            yield node


def _labels(required: Json) -> str:
    terms = [each for term in maps(required, "nodeSelectorTerms") for each in maps(term, "matchExpressions")]
    labels = [f"{text(each, 'key')} {','.join(strings(each, 'values'))}" for each in terms]
    return " or ".join(labels[:_SHOWN]) or "other labels"


def _names(nodes: Sequence[Node]) -> str:
    names = [node.name for node in nodes[:_SHOWN]]
    more = len(nodes) - len(names)
    return f"{', '.join(names)} and {more} more" if more else listed(names)


def _unbound(claim: Json, path: str, nodes: Sequence[Node], facts: Facts) -> Findings:
    """A finding if the claim gets a volume in any zone before its pod is scheduled."""
    all_nodes = facts.nodes()
    storage = _class_of(claim, facts)
    if storage is None or not all_nodes or text(storage, "volumeBindingMode") not in ("", "Immediate"):
        return
    parameters = [str(each).lower() for each in mapping(storage, "parameters").values()]
    if text(storage, "provisioner") not in _ZONAL or any(p in each for p in _SPANNING for each in parameters):
        return
    zones = {node.described.get(_ZONE, "") for node in nodes}
    if "" in zones:
        return
    others = sorted((_allowed_zones(storage) or set(all_nodes.by(_BY_ZONE))) - zones)
    if not others:
        return
    yield Finding(
        path,
        f"StorageClass {text(storage, 'metadata', 'name')} makes the volume at once (Immediate), in any "
        f"zone. The nodes that can run this pod are in {listed(sorted(zones)[:_SHOWN])}; with a volume in "
        f"{listed(others[:_SHOWN])} the pod stays Pending.",
        "Use a StorageClass with volumeBindingMode: WaitForFirstConsumer, or set its allowedTopologies.",
        Certainty.UNDECIDED,
    )


def _class_of(claim: Json, facts: Facts) -> Json | None:
    classes = facts.cluster.listing(Resource.STORAGE_CLASSES)
    if not classes:
        return None
    name = dig(claim, "spec", "storageClassName")
    if isinstance(name, str):
        return find_by_name(classes, name)
    defaults = [each for each in classes if annotations_of(each).get(_IS_DEFAULT) == "true"]
    return defaults[0] if len(defaults) == 1 else None


def _allowed_zones(storage: Json) -> set[str]:
    """The zones of a class; empty without a limit."""
    return {
        value
        for term in maps(storage, "allowedTopologies")
        for each in maps(term, "matchLabelExpressions")
        if text(each, "key").endswith("/zone")
        for value in strings(each, "values")
    }


_BY_ZONE: Final = Index(lambda node: filter(None, (labels_of(node).get(_ZONE),)))


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
