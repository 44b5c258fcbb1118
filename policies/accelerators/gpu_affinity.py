"""The mutator gpu-affinity, which gpu-affinity.md documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from policies.accelerators.annotations import (
    MemoryBound,
    Resolution,
    requested_memory,
    requested_products,
    resolve_memory,
    resolve_product,
)
from policies.accelerators.fit import fits_some
from policies.accelerators.gpu_affinity_settings import GpuAffinity, Strength
from policies.accelerators.inventory import MAX_HOSTNAMES, Fleet, Inventory
from policies.accelerators.node_affinity import (
    PREFERRED,
    REQUIRED,
    Alternative,
    Expression,
    prefer,
    require,
)
from policies.accelerators.placement import kept_apart
from policies.accelerators.requests import asks_for_devices, inventory_of, served_by_claims
from policies.accelerators.unrequested import may_use_accelerators
from policies.accelerators.vendors import NodeLabel, Vendor
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT, TOPOLOGY
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.groups import LWS_NAME
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.reasons import NO_REASONS, Reasons
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import POD
from policies.kube.json import Json, appended, mapping, maps, text
from policies.kube.metadata import applied
from policies.kube.names import is_label_key, listed
from policies.kube.objects.metadata import ObjectMeta
from policies.kube.objects.nodes import HOSTNAME, Node
from policies.kube.objects.placement import Toleration
from policies.kube.objects.pods import Pod, PodSpec
from policies.kube.scheduling import admits, is_within_limits, required_keys, tolerates

_TOPOLOGY_KEYS: Final = {"same-node": HOSTNAME, "same-zone": "topology.kubernetes.io/zone"}
TOLERATIONS: Final = ("spec", "tolerations")
_POD_AFFINITY: Final = ("spec", "affinity", "podAffinity")
_MAX_ALTERNATIVES: Final = 3
"""Alternative labels, each of which multiplies the terms."""

_LEADER_WORKER_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-key"
GROUPS: Final = (
    (_LEADER_WORKER_GROUP,),
    ("jobset.sigs.k8s.io/jobset-name",),
    ("training.kubeflow.org/job-name",),
    ("ray.io/cluster", "ray.io/group"),
    ("volcano.sh/job-name",),
    ("batch.kubernetes.io/job-name",),
    ("pod-template-hash",),
    ("controller-revision-hash",),
)
"""The labels of controllers for the pods of one group, the widest group of a kind first."""


def mutate(pod: Json, settings: GpuAffinity, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    view = facts.view(pod)
    spec, owner = view.typed.spec, view.owner
    if spec.node_name or (owner is not None and owner.kind == "DaemonSet"):
        return pod
    if not is_within_limits(spec):
        return pod  # `advise` reports it
    view = _with_topology(view, settings, facts, reasons)
    requests = settings.catalogue.requests(spec)
    if requests:
        return _placed(view, requests, settings, facts, reasons).json
    if asks_for_devices(view.typed) or not spec.containers:
        return view.json  # another object, such as a ServingRuntime, writes the containers
    return _off_accelerators(view, settings, facts, reasons)


# --- accelerator pods ------------------------------------------------------------------------------


def _placed(
    view: PodView, requests: Mapping[str, int], settings: GpuAffinity, facts: Facts, reasons: Reasons
) -> PodView:
    inventory = inventory_of(settings, facts)
    by_claims = served_by_claims(requests, facts)
    for name, requested in _vendors(requests, settings).items():
        fleet = inventory.fleets.get(name)
        view = _tolerating(view, settings.catalogue.vendors[name], fleet, requested, facts, reasons)
        if fleet is not None:
            view = _with_annotations(view, fleet, facts, reasons)
        if fleet is not None and not by_claims:
            view = _with_memory(view, fleet, settings, facts, reasons)
            view = _with_affinity(view, fleet, settings, requested, facts, reasons)
    return view


def _vendors(requests: Mapping[str, int], settings: GpuAffinity) -> Mapping[str, str]:
    """The first requested resource of each vendor."""
    found: dict[str, str] = {}
    for resource in requests:
        if (name := settings.catalogue.vendor_of(resource)) is not None:
            found.setdefault(name, resource)
    return found


def _tolerating(
    view: PodView, vendor: Vendor, fleet: Fleet | None, requested: str, facts: Facts, reasons: Reasons
) -> PodView:
    """The pod with tolerations of the vendor's taints: key and effect, with any value."""
    spec = view.typed.spec
    if _is_applied(view, *TOLERATIONS):
        return view
    known = {(taint.key, taint.effect) for taint in (fleet.taints if fleet else ())}
    missing = [
        (taint.key, taint.effect) for taint in (fleet.taints if fleet else ()) if not tolerates(spec, taint)
    ]
    missing += [
        (taint.key, taint.effect.value)
        for taint in vendor.taints
        if not any(_covers(toleration, taint.key, taint.effect) for toleration in spec.tolerations)
    ]
    tolerations = [
        {"key": key, "operator": "Exists", "effect": effect} for key, effect in dict.fromkeys(missing)
    ]
    for each in tolerations:
        have = "have" if (each["key"], each["effect"]) in known else "usually have"
        reasons.give(
            f"spec.tolerations[{each['key']}]",
            f"requests {requested}, whose nodes {have} the taint {each['key']}:{each['effect']}",
            setting="vendors",
        )
    return facts.view(appended(view.json, TOLERATIONS, *tolerations)) if tolerations else view


def _is_applied(view: PodView, *path: str) -> bool:
    """Whether a list must stay as it is, since somebody applies the pod itself: the next apply would remove
    elements that were added, and the API server refuses that for a running pod."""
    return view.owner is None and bool(applied(view.json, *path))


def _covers(toleration: Toleration, key: str, effect: str) -> bool:
    return toleration.key in ("", key) and toleration.effect in ("", effect)


def _with_annotations(view: PodView, fleet: Fleet, facts: Facts, reasons: Reasons) -> PodView:
    pod, annotations = view.json, view.typed.metadata.annotations
    globs = requested_products(annotations)
    if globs:
        resolution = resolve_product(fleet, globs)
        pod = _requiring(pod, resolution, GPU_PRODUCT, annotations[GPU_PRODUCT], reasons)
    try:
        bound = requested_memory(annotations)
    except ValueError:
        bound = None  # `advise` reports it
    if bound is not None:
        pod = _requiring(pod, resolve_memory(fleet, bound), GPU_MEMORY, annotations[GPU_MEMORY], reasons)
    return view if pod is view.json else facts.view(pod)


def _requiring(pod: Json, resolution: Resolution, annotation: str, written: str, reasons: Reasons) -> Json:
    changed = require(pod, resolution.alternatives, unless=resolution.keys)
    if changed is not pod:
        reasons.give(
            field_path(REQUIRED),
            lambda: f"requested by {annotation}: {written}; the nodes have {listed(resolution.present)}",
            annotation=f"{annotation}={written}",
        )
    return changed


def _with_memory(
    view: PodView, fleet: Fleet, settings: GpuAffinity, facts: Facts, reasons: Reasons
) -> PodView:
    """The pod on nodes whose accelerators have memory for the weights of its model, if only some have."""
    typed = view.typed
    requested = typed.metadata.annotations.keys() & {GPU_PRODUCT, GPU_MEMORY}
    if (
        settings.weights is Strength.OFF
        or requested
        or not required_keys(typed.spec).isdisjoint(fleet.vendor.variant_keys)
    ):
        return view
    found = fits_some(view, facts)
    if found is None:
        return view
    load, enough = found
    resolution = resolve_memory(fleet, MemoryBound(">=", enough))
    if settings.weights is Strength.REQUIRED and fleet.requirable:
        changed, path = require(view.json, resolution.alternatives, unless=resolution.keys), REQUIRED
    elif len(resolution.alternatives) == 1:
        changed, path = prefer(view.json, settings.weight, resolution.alternatives[0].expressions), PREFERRED
    else:
        return view
    if _is_applied(view, *path):
        return view
    if changed is not view.json:
        each = f" on each of {load.accelerators} accelerators" if load.accelerators > 1 else ""
        reasons.give(
            field_path(path),
            f"{load.model.rpartition('/')[2][:60]} needs {load.least / 10**9:.0f} GB or more{each}, and "
            "only some nodes have that",
            setting="weights",
        )
    return facts.view(changed)


def _with_affinity(
    view: PodView, fleet: Fleet, settings: GpuAffinity, requested: str, facts: Facts, reasons: Reasons
) -> PodView:
    """The pod on the vendor's nodes, unless its own terms contain labels of the vendor."""
    own, pod = fleet.vendor.own_keys, view.json
    required = settings.affinity is Strength.REQUIRED and bool(fleet.cover)
    if settings.affinity is Strength.OFF or _is_applied(view, *(REQUIRED if required else PREFERRED)):
        return view
    if required:
        if fleet.requirable and len(fleet.cover) <= _MAX_ALTERNATIVES:
            changed = require(pod, [Alternative((label.required,)) for label in fleet.cover], unless=own)
            if changed is not pod:
                reasons.give(
                    field_path(REQUIRED),
                    lambda: (
                        f"requests {requested}, and every node with it has the label {_any_of(fleet.cover)}"
                    ),
                    setting="affinity",
                )
            return facts.view(changed)
        return view  # every node has a label: a preference would have no effect
    if required_keys(view.typed.spec).isdisjoint(own):
        for label in fleet.cover or fleet.known_labels[:1]:
            changed = prefer(pod, settings.weight, [label.required])
            if changed is not pod:
                reasons.give(
                    field_path(PREFERRED),
                    f"requests {requested}, and nodes with the label {label.key} have it",
                    setting="affinity",
                )
            pod = changed
    return view if pod is view.json else facts.view(pod)


def _any_of(labels: Iterable[NodeLabel]) -> str:
    return " or ".join(dict.fromkeys(label.key for label in labels))


# --- other pods --------------------------------------------------------------------------------------


def _off_accelerators(view: PodView, settings: GpuAffinity, facts: Facts, reasons: Reasons) -> Json:
    pod, spec = view.json, view.typed.spec
    if settings.cpu_pods is Strength.OFF or any(
        fnmatchcase(facts.namespace, glob) for glob in settings.system_namespaces
    ):
        return pod
    inventory = inventory_of(settings, facts)
    expressions = _avoiding(spec, inventory)
    if not expressions or _seeks_accelerators(spec, settings) or may_use_accelerators(view, facts):
        return pod
    said = "requests no accelerator, so it leaves nodes with accelerators to pods that do"
    if settings.cpu_pods is Strength.REQUIRED:
        if not _finds_cpu_node(spec, inventory, facts):
            return pod
        keys = {text(expression, "key") for expression in expressions}
        changed, path = require(pod, [Alternative(tuple(expressions))], unless=keys), REQUIRED
    else:
        changed, path = prefer(pod, settings.weight, expressions), PREFERRED
    if _is_applied(view, *path):
        return pod
    if changed is not pod:
        reasons.give(field_path(path), said, setting="cpuPods")
    return changed


def _avoiding(pod: PodSpec, inventory: Inventory) -> list[Expression]:
    """Expressions that exclude the accelerator nodes whose taints the pod tolerates."""
    reachable = [
        exposure for exposure in inventory.exposed if all(tolerates(pod, taint) for taint in exposure.taints)
    ]
    labels = dict.fromkeys(label for exposure in reachable for label in exposure.labels)
    bare = sorted({name for exposure in reachable for name in exposure.hostnames})[:MAX_HOSTNAMES]
    by_name = [{"key": HOSTNAME, "operator": "NotIn", "values": bare}] if bare else []
    return [*(label.absent for label in labels), *by_name]


def _seeks_accelerators(pod: PodSpec, settings: GpuAffinity) -> bool:
    """Whether the pod selects labels of accelerator nodes or tolerates their taints, although it requests no
    accelerator."""
    named = required_keys(pod)
    for each in pod.affinity.node_affinity.preferred:
        named.update(expression.key for expression in each.preference.match_expressions)
    tolerated = {toleration.key for toleration in pod.tolerations}
    return any(
        not vendor.own_keys.isdisjoint(named) or any(taint.key in tolerated for taint in vendor.taints)
        for vendor in settings.catalogue.vendors.values()
    )


def _finds_cpu_node(pod: PodSpec, inventory: Inventory, facts: Facts) -> bool:
    nodes = facts.cluster_objects(Node) or ()
    return any(_may_run_on(pod, node) for node in nodes if node.name not in inventory.names)


def _may_run_on(pod: PodSpec, node: Node) -> bool:
    """Whether the pod's own terms and tolerations admit a node; its requests are not compared."""
    if node.spec.unschedulable:
        return False
    taints = (taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule")
    return all(tolerates(pod, taint) for taint in taints) and admits(pod, node.name, node.metadata.labels)


# --- topology ----------------------------------------------------------------------------------------


class Topology(Struct, frozen=True):
    """The annotation `mlchassis.dev/topology`."""

    key: str
    required: bool


def _topology(metadata: ObjectMeta, settings: GpuAffinity) -> Topology | None:
    words = metadata.annotations.get(TOPOLOGY, "").replace(",", " ").split()
    if not words or len(words) > 2:
        return None
    strength = words[1] if len(words) == 2 else settings.topology.value
    key = _TOPOLOGY_KEYS.get(words[0], words[0])
    if strength not in (Strength.REQUIRED, Strength.PREFERRED) or not is_label_key(key):
        return None
    return Topology(key, strength == Strength.REQUIRED)


def _with_topology(view: PodView, settings: GpuAffinity, facts: Facts, reasons: Reasons) -> PodView:
    pod, typed = view.json, view.typed
    topology = _topology(typed.metadata, settings)
    group = _group(typed.metadata.labels) if topology is not None else {}
    if topology is None or not group or kept_apart(typed, topology.key):
        return view
    added: Json
    term = {"labelSelector": {"matchLabels": group}, "topologyKey": topology.key}
    if topology.required and _is_present(topology.key, facts):
        path = (*_POD_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution")
        added, present = term, maps(pod, *path)
    else:
        path = (*_POD_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
        added = {"weight": settings.weight, "podAffinityTerm": term}
        present = [mapping(each, "podAffinityTerm") for each in maps(pod, *path)]
    if term in present:
        return view
    reasons.give(
        field_path(path),
        lambda: f"requested by {TOPOLOGY}: pods with {_as_text(group)} run in the same {topology.key}",
        setting="topology",
        annotation=f"{TOPOLOGY}={typed.metadata.annotations[TOPOLOGY]}",
    )
    return facts.view(appended(pod, path, added))


def _as_text(labels: Mapping[str, str]) -> str:
    return listed(f"{key}={value}" for key, value in labels.items())


def _group(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that select exactly the pods of a pod's group; empty if there are none."""
    if labels.get(LWS_NAME) and not labels.get(_LEADER_WORKER_GROUP):
        return {}  # a leader, before its set's own webhook added the label
    return next(
        ({key: labels[key] for key in keys} for keys in GROUPS if all(labels.get(k) for k in keys)), {}
    )


def _is_present(key: str, facts: Facts) -> bool:
    """Whether a node has the label: without one, a required affinity excludes every node."""
    nodes = facts.nodes()
    return nodes is not None and key in nodes.derive(_label_keys)


def _label_keys(nodes: Listing) -> frozenset[str]:
    return frozenset().union(*(node.metadata.labels for node in nodes.objects(Node)))


# --- advice ------------------------------------------------------------------------------------------


_UNKNOWN_NODES_HINT: Final = (
    "Create the pod again later. For a review without a cluster, add the nodes to its input."
)


def advise(pod: Json, settings: GpuAffinity, facts: Facts) -> Iterator[Finding]:
    """Findings about annotations that have no effect."""
    typed = facts.view(pod).typed
    if not is_within_limits(typed.spec):
        yield Finding(
            "spec.affinity",
            "The pod already requires so many node conditions (affinity, selector, tolerations) that the "
            "webhook adds none.",
            "Select nodes by a few labels instead of many terms.",
            Certainty.UNDECIDED,
        )
        return
    yield from _advise_topology(typed, settings, facts)
    annotations = typed.metadata.annotations
    present = [key for key in (GPU_PRODUCT, GPU_MEMORY) if key in annotations]
    if not present:
        return
    try:
        requested_memory(annotations)
    except ValueError as error:
        yield _note(GPU_MEMORY, f"was not applied: {error}", "Use a bound such as >=40Gi or <24G.")
    requests = settings.catalogue.requests(typed.spec)
    inventory = inventory_of(settings, facts)
    if not requests:
        for key in present:
            yield _note(
                key, "has no effect, because no container requests an accelerator", "Request one in limits."
            )
    elif not inventory.nodes_known and not inventory.fleets:
        for key in present:
            yield _note(key, "was not applied, because the nodes aren't known", _UNKNOWN_NODES_HINT)
    for name in _vendors(requests, settings):
        fleet = inventory.fleets.get(name)
        if fleet is not None:
            yield from _advise_labels(name, fleet, present)


def _advise_labels(vendor: str, fleet: Fleet, present: list[str]) -> Iterator[Finding]:
    keys = {
        GPU_PRODUCT: fleet.vendor.product_labels,
        GPU_MEMORY: fleet.vendor.memory_keys,
    }
    carried = {key for variant in fleet.variants for key in variant}
    for annotation in present:
        if carried.isdisjoint(keys[annotation]):
            yield _note(
                annotation,
                f"was not applied, because no {vendor} node has such a label",
                "Run the vendor's feature discovery, or declare the pool in gpu-affinity.yaml.",
            )


def _advise_topology(typed: Pod, settings: GpuAffinity, facts: Facts) -> Iterator[Finding]:
    if TOPOLOGY not in typed.metadata.annotations:
        return
    topology = _topology(typed.metadata, settings)
    if topology is None:
        yield _note(
            TOPOLOGY,
            "can't be read",
            "Use same-node, same-zone or a label key, followed by required or preferred.",
        )
    elif not _group(typed.metadata.labels) and typed.metadata.controller is None:
        # A controller labels the pods of a template later.
        yield _note(
            TOPOLOGY,
            "has no effect, because no label shows which pods belong together",
            "Use it on the pods of a Job, JobSet, Ray cluster or another group that its controller labels.",
        )
    elif kept_apart(typed, topology.key):
        yield _note(
            TOPOLOGY,
            "has no effect, because the pod's own anti-affinity forbids it",
            "Remove one of the two.",
        )
    elif topology.required and facts.nodes() is None:
        yield _note(TOPOLOGY, "is only preferred, because the nodes aren't known", _UNKNOWN_NODES_HINT)
    elif topology.required and not _is_present(topology.key, facts):
        yield _note(
            TOPOLOGY,
            f"is only preferred, because no node is known to carry {topology.key}",
            "Label the nodes.",
        )


def _note(annotation: str, message: str, hint: str) -> Finding:
    path = f"metadata.annotations[{annotation}]"
    return Finding(path, f"The annotation {annotation} {message}.", hint, Certainty.UNDECIDED)


MUTATOR = Mutator("gpu-affinity", GpuAffinity, mutate=mutate, advise=advise, kinds=(POD,))
