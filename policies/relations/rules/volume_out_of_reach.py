"""volume-out-of-reach: pods whose volume only nodes can mount that cannot run them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.inventory import AcceleratorNode
from policies.accelerators.placement import placement
from policies.core.contracts import (
    Certainty,
    Facts,
    Finding,
    Findings,
    PodFeature,
    PodTemplate,
    Target,
    rule,
)
from policies.core.lifecycles import lifecycle_of
from policies.core.listing import TypedIndex
from policies.core.volumes import (
    class_of,
    disk_of,
    keeps_others_waiting,
    known_claims,
    volume_of,
    waits_for_a_pod,
)
from policies.kube.group_kinds import CRON_JOB, DEPLOYMENT, POD, ROLLOUT, STATEFUL_SET
from policies.kube.names import listed
from policies.kube.objects.jobs import CronJob
from policies.kube.objects.metadata import Object
from policies.kube.objects.nodes import HOSTNAME, only_node, pinned_to_one_node
from policies.kube.objects.nodes import Node as ClusterNode
from policies.kube.objects.placement import Affinity, NodeAffinity, NodeSelector
from policies.kube.objects.pods import PodSpec
from policies.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from policies.kube.objects.workloads import StatefulSet
from policies.kube.scheduling import admits, is_within_limits, required_keys, required_terms, untolerated
from policies.relations.domains import MAX_NODES
from policies.rollouts.held_claims import (
    claims_mounted,
    is_together,
    server_elsewhere,
    user_elsewhere,
    users_elsewhere,
)
from policies.rollouts.rollouts import (
    made_rollouts,
    minimum_replicas,
    pods_in_group,
    pods_per_replica,
    running_update,
)

_MAX_VOLUMES: Final = 8
_ONE_NODE: Final = "ReadWriteOnce"
_HELD_HINT: Final = (
    "Run both on one node, by an affinity of one pod to the other, or use a ReadWriteMany claim."
)
_SHOWN: Final = 4
_ZONE: Final = "topology.kubernetes.io/zone"
_MANY: Final = "ReadWriteMany"
_SPANNING: Final = ("regional", "zrs")
"""Parts of parameters of volumes in several zones: `replication-type: regional-pd`, `skuName: Premium_ZRS`"""


def check(target: Target, facts: Facts) -> Findings:
    settings = facts.settings(GpuAffinity)
    held = [each for template in target.templates for each in _held_elsewhere(target, template, facts)]
    yield from held
    paths = {each.path for each in held}
    yield from (each for each in _shared(target, facts) if each.path not in paths)
    for template in target.templates:
        yield from _never_bound(target, template, facts)
        found = placement(template.view, facts)
        if found is None:
            yield from _of_other_pods(template, facts)
            continue
        if not 0 < len(found.nodes) <= MAX_NODES:
            continue
        fixed = settings.pools or settings.fixed_size
        certainty = Certainty.CERTAIN if fixed else Certainty.LIKELY
        yield from _of_claims(template, found.nodes, facts, certainty)
        if target.kind == STATEFUL_SET:
            for index, claim in enumerate(target.read(StatefulSet).spec.volume_claim_templates):
                path = f"spec.volumeClaimTemplates[{index}].spec.storageClassName"
                yield from _unbound(claim, path, found.nodes, facts)


def _claims_of(template: PodTemplate, facts: Facts) -> Iterator[tuple[str, PersistentVolumeClaim]]:
    """The known claims that a pod mounts, each with the field path of its name."""
    for index, claim in known_claims(template.typed.spec.volumes[:_MAX_VOLUMES], facts):
        yield f"{template.spec_path}.volumes[{index}].persistentVolumeClaim.claimName", claim


def _never_bound(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """Findings about claims that get no volume, because none has what they want."""
    claims = list(_claims_of(template, facts))
    if target.kind == STATEFUL_SET:
        made = target.read(StatefulSet).spec.volume_claim_templates
        claims += ((f"spec.volumeClaimTemplates[{i}].spec.accessModes", each) for i, each in enumerate(made))
    # The scheduler writes nodeName into pods that it has placed.
    placed = target.kind == POD and target.read(Object).exists
    if template.typed.spec.node_name and not placed:
        yield from _passes_the_scheduler(template, [claim for _, claim in claims], facts)
    for path, claim in claims:
        why = _unlike_its_volume(claim, facts) if claim.spec.volume_name else _too_many(claim, facts)
        if why:
            yield Finding(
                path,
                f"Claim {claim.name} {why}, so it stays unbound and the pod Pending.",
                "Use the storage class and access mode of a volume that there is.",
                Certainty.LIKELY,
            )


def _passes_the_scheduler(
    template: PodTemplate, claims: Sequence[PersistentVolumeClaim], facts: Facts
) -> Findings:
    """A finding about a pod that no scheduler sees, and a claim that waits for its choice of a node.

    Source: https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode
    """
    for claim in claims:
        if waits_for_a_pod(claim, facts):
            yield Finding(
                f"{template.spec_path}.nodeName",
                f"The volume of claim {claim.name} is made on the node that the scheduler chooses "
                "(WaitForFirstConsumer), and a pod with nodeName never passes the scheduler. The claim stays "
                "unbound until another pod uses it, and the pod does not start.",
                f"Select the node with nodeSelector: {{{HOSTNAME}: …}}.",
                Certainty.LIKELY,
            )
            return


def _unlike_its_volume(claim: PersistentVolumeClaim, facts: Facts) -> str:
    """Why a claim isn't bound to the volume that it names, unless that is reserved for a claim."""
    spec, volume = claim.spec, volume_of(claim, facts)
    if volume is None or volume.spec.claim_ref.name:
        return ""
    wanted, given = spec.storage_class_name, volume.spec.storage_class_name
    modes = set(spec.access_modes) - set(volume.spec.access_modes or spec.access_modes)
    if wanted is not None and wanted != given:
        has = f"has the class {given}" if given else "has no storage class"
        why = f"has the storage class {wanted or '(none)'}, and its volume {volume.name} {has}"
    else:
        why = f"wants {listed(sorted(modes))}, which its volume {volume.name} doesn't offer" if modes else ""
    # Two examples among the files may each have a volume of that name.
    volumes = facts.cluster_objects(PersistentVolume) if why else None
    return why if volumes is not None and len(list(volumes.all_named(volume.name))) == 1 else ""


def _too_many(claim: PersistentVolumeClaim, facts: Facts) -> str:
    """Why no volume of several nodes is made for a claim."""
    spec = claim.spec
    if _MANY not in spec.access_modes or spec.volume_mode == "Block" or volume_of(claim, facts) is not None:
        return ""
    disk, storage = disk_of(claim, facts), class_of(claim, facts)
    name = "" if storage is None else storage.name
    if disk is None or any(
        each.spec.storage_class_name == name and _MANY in each.spec.access_modes
        for each in facts.cluster_objects(PersistentVolume) or ()
    ):
        return ""
    return f"is {_MANY}, and {disk.provisioner} of its storage class {name} makes disks for one node"


def _of_claims(
    template: PodTemplate, nodes: Sequence[AcceleratorNode], facts: Facts, certainty: Certainty
) -> Findings:
    for path, claim in _claims_of(template, facts):
        if claim.spec.volume_name or volume_of(claim, facts) is not None:
            yield from _bound(claim, path, nodes, facts, certainty)
        else:
            yield from _unbound(claim, path, nodes, facts)


def _held_elsewhere(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """A finding about ReadWriteOnce claims that other workloads mount, too, maybe on another node. One edit
    is right for all of them, so the first one by name has the finding; of a manifest and a workload in the
    cluster, the manifest."""
    pod = template.typed.spec
    if template.completes:
        yield from _held_by_a_server(target, template, facts)
        return
    if not minimum_replicas(target, facts):
        return
    own, here = (target.read(Object).exists, f"{target.kind.kind} {target.name}"), only_node(pod)
    paths: dict[str, str] = {}
    users: dict[str, None] = {}
    for path, claim in _claims_of(template, facts):
        others = list(users_elsewhere(target, pod, claim, facts))
        if not others or not facts.is_first(own, ((other.exists, other.name) for other in others)):
            continue
        who, there = others[0].name, only_node(others[0].pod)
        if here and there:
            yield Finding(
                path,
                f"Claim {claim.name} is {_ONE_NODE}. {who} uses it on {there}, but this pod runs on {here}. "
                "The volume is attached to one of them, and one pod waits.",
                _HELD_HINT,
                Certainty.LIKELY,
            )
            return
        paths.setdefault(claim.name, path)
        users.update(dict.fromkeys(other.name for other in others))
    if paths:
        several = len(paths) > 1
        them, volume = ("them", "volumes") if several else ("it", "volume")
        yield Finding(
            next(iter(paths.values())),
            f"Claim{'s' if several else ''} {listed(list(paths))} {'are' if several else 'is'} {_ONE_NODE}. "
            f"{listed(list(users))} also mount{'' if len(users) > 1 else 's'} {them}. If they're on two "
            f"nodes, one pod waits for the {volume} as long as the other runs.",
            _HELD_HINT,
            Certainty.LIKELY,
        )


def _held_by_a_server(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """A finding about a ReadWriteOnce claim that a Job fills on other nodes than those of its servers, or
    that each run of a CronJob shares with a server, which is there whenever a run starts."""
    pod = template.typed.spec
    life = lifecycle_of(target.obj)  # not that of each of its pods: there may be many
    scheduled = life is not None and life.schedule is not None
    for path, claim in _claims_of(template, facts) if pod.node_selector or scheduled else ():
        user = server_elsewhere(target, pod, claim, facts)
        if user is not None:
            yield Finding(
                path,
                f"Claim {claim.name} is {_ONE_NODE}, and {user.name} mounts it on other nodes than this pod "
                "selects. If its volume is attached there first, this pod waits as long as the other runs.",
                "Select the same nodes, run it as an init container, or use a ReadWriteMany claim.",
                Certainty.LIKELY,
            )
            return
        user = user_elsewhere(target, pod, claim, facts) if scheduled else None
        if user is not None and not _has_earlier(target, claim, facts):
            yield Finding(
                path,
                f"Claim {claim.name} is {_ONE_NODE}, and {user.name} mounts it all the time. A run of this "
                f"{target.kind.kind} on another node waits for the volume, without an end if it has no "
                "deadline.",
                "Keep the runs on its node by a podAffinity, or give them a volume of their own or a "
                "ReadWriteMany claim.",
                Certainty.LIKELY,
            )
            return


def _has_earlier(target: Target, claim: PersistentVolumeClaim, facts: Facts) -> bool:
    """Whether another CronJob has the finding: one edit of the claim is right for all. It is the first one by
    name; of a manifest and a CronJob in the cluster, the manifest."""
    if facts.whole is None or target.kind != CRON_JOB:
        return False
    own = target.read(Object).rank
    others = facts.whole.typed(CRON_JOB, facts.namespace, CronJob)
    earlier = (each for each in others if each.rank < own)
    pods = (each.spec.job_template.spec.template.spec for each in earlier)
    return any(
        claim.name in claims_mounted(pod) and user_elsewhere(target, pod, claim, facts) is not None
        for pod in pods
    )


def _shared(target: Target, facts: Facts) -> Findings:
    """A finding about a ReadWriteOnce claim that several pods of the workload need at the same time."""
    if not facts.objects(PersistentVolumeClaim):
        return
    update = running_update(target, facts)
    group = pods_in_group(target)
    replicas = 1 if group else minimum_replicas(target, facts)
    if target.kind in (DEPLOYMENT, ROLLOUT) and update is not None and update.surge and replicas == 1:
        return  # rollout-volume-deadlock is about those that add pods first
    made = {each.template.path: each.update.replicas for each in made_rollouts(target)}
    mounts: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for template, count in pods_per_replica(target):
        spec = template.typed.spec
        in_turn = template.completes and not group  # the steps of a workflow may follow one another
        apart = not in_turn and not pinned_to_one_node(spec) and not is_together(spec)
        mounted = list(_claims_of(template, facts)) if apart else []
        for path, claim in {claim.name: (path, claim) for path, claim in reversed(mounted)}.values():
            if claim.spec.access_modes != (_ONE_NODE,) or not keeps_others_waiting(claim, facts):
                continue
            pods = made.get(template.path, group.get(template.path, count) * replicas)
            mounts[claim.name].append((pods, path))
    for name, found in mounts.items():
        pods = sum(count for count, _ in found)
        if pods > 1:
            yield Finding(
                max(found)[1],
                f"Claim {name} is {_ONE_NODE}, but {pods} pods mount it. Pods on a different node than the "
                "first one wait for the volume as long as it runs.",
                "Use a ReadWriteMany claim, a claim for each pod, or an affinity that keeps the pods on one "
                "node.",
                Certainty.LIKELY,
            )
            return


def _of_other_pods(template: PodTemplate, facts: Facts) -> Findings:
    """Findings about a pod without accelerators: the few nodes that can mount a local volume are compared."""
    spec, nodes = template.typed.spec, facts.cluster_objects(ClusterNode)
    if not nodes or len(nodes) > MAX_NODES or not is_within_limits(spec):
        return
    if facts.settings(GpuAffinity).catalogue.requests(spec) or spec.node_name:
        return
    for path, claim in _claims_of(template, facts):
        required = _required(claim, facts)
        if required is None or not is_within_limits(required):
            continue
        reach = [node for node in nodes if admits(required, node.name, node.metadata.labels)]
        why = [_why_not(spec, node) for node in reach]
        if reach and all(why):
            yield Finding(
                path,
                f"Only {listed([node.name for node in reach[:_SHOWN]])} can mount the volume of claim "
                f"{claim.name}, and {why[0]}. The pod stays Pending.",
                "Tolerate the taint, or correct the node selector or affinity.",
                Certainty.LIKELY,
            )


def _why_not(pod: PodSpec, node: ClusterNode) -> str:
    """Why a node cannot run a pod, as a clause; empty if it can."""
    taint = untolerated(pod, node.spec.taints)
    if taint is not None:
        return f"{node.name} has the taint {taint.key}, which the pod doesn't tolerate"
    return "" if admits(pod, node.name, node.metadata.labels) else f"the pod doesn't select {node.name}"


def _required(claim: PersistentVolumeClaim, facts: Facts) -> PodSpec | None:
    """The nodes of a claim's volume as the affinity of a pod, which has the same semantics."""
    volume = volume_of(claim, facts)
    required = None if volume is None else volume.spec.node_affinity.required
    return (
        None
        if required is None
        else PodSpec(affinity=Affinity(node_affinity=NodeAffinity(required=required)))
    )


def _bound(
    claim: PersistentVolumeClaim,
    path: str,
    nodes: Sequence[AcceleratorNode],
    facts: Facts,
    certainty: Certainty,
) -> Findings:
    volume, pod = volume_of(claim, facts), _required(claim, facts)
    required = None if pod is None else pod.affinity.node_affinity.required
    if volume is None or pod is None or required is None or not is_within_limits(pod):
        return
    different = _different_nodes(pod, nodes)
    if any(admits(pod, node.name, node.described, partial=node.pool is not None) for node in different):
        return
    yield Finding(
        path,
        f"Claim {claim.name} is bound to PersistentVolume {volume.name}, which only nodes with "
        f"{_labels(required)} can mount. The nodes that can run this pod ({_names(nodes)}) aren't among "
        "them, so the pod stays Pending.",
        "Copy the data to a volume where the accelerators are, or run the pod on nodes where the volume is.",
        certainty,
    )


def _different_nodes(pod: PodSpec, nodes: Sequence[AcceleratorNode]) -> Iterator[AcceleratorNode]:
    """One node of each set that an affinity cannot tell apart: thousands of nodes are in a few zones."""
    keys = sorted(required_keys(pod))
    by_name = any(term.match_fields for term in required_terms(pod))
    seen: set[tuple[object, ...]] = set()
    for node in nodes:
        key = (node.pool is None, by_name and node.name, *map(node.described.get, keys))
        if key not in seen:
            seen.add(key)
            yield node


def _labels(required: NodeSelector) -> str:
    terms = [each for term in required.node_selector_terms for each in term.match_expressions]
    labels = [f"{each.key} {','.join(each.values)}" for each in terms]
    return " or ".join(labels[:_SHOWN]) or "other labels"


def _names(nodes: Sequence[AcceleratorNode]) -> str:
    names = [node.name for node in nodes[:_SHOWN]]
    more = len(nodes) - len(names)
    return f"{', '.join(names)} and {more} more" if more else listed(names)


def _unbound(
    claim: PersistentVolumeClaim, path: str, nodes: Sequence[AcceleratorNode], facts: Facts
) -> Findings:
    """A finding if the claim gets a volume in any zone before its pod is scheduled."""
    all_nodes = facts.nodes()
    storage = class_of(claim, facts)
    if storage is None or not all_nodes or storage.volume_binding_mode not in ("", "Immediate"):
        return
    parameters = [each.lower() for each in storage.parameters.values()]
    disk = disk_of(claim, facts)
    if disk is None or not disk.zonal or any(p in each for p in _SPANNING for each in parameters):
        return
    zones = {node.described.get(_ZONE, "") for node in nodes}
    if "" in zones:
        return
    others = sorted((_allowed_zones(storage) or set(all_nodes.by(_BY_ZONE))) - zones)
    if not others:
        return
    yield Finding(
        path,
        f"StorageClass {storage.name} creates the volume immediately (Immediate), in any zone. The nodes "
        f"that can run this pod are in {listed(sorted(zones)[:_SHOWN])}. With a volume in "
        f"{listed(others[:_SHOWN])}, the pod stays Pending.",
        "Use a StorageClass with volumeBindingMode: WaitForFirstConsumer, or set its allowedTopologies.",
        Certainty.UNDECIDED,
    )


def _allowed_zones(storage: StorageClass) -> set[str]:
    """The zones of a class; empty without a limit."""
    return {
        value
        for term in storage.allowed_topologies
        for each in term.match_label_expressions
        if each.key.endswith("/zone")
        for value in each.values
    }


_BY_ZONE: Final = TypedIndex(ClusterNode, lambda node: filter(None, (node.metadata.labels.get(_ZONE),)))


RULE = rule(
    __name__,
    check,
    requires=(PodFeature.CLAIM,),
    also=(STATEFUL_SET,),  # its own claims are no volumes of its template
    unowned=True,
    at_once=True,
)
