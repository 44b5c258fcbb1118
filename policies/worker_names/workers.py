"""A group of workers: the pod to be created, the desired number, the existing pods, and the reservations.

Pure functions. Times are seconds since the epoch by the API server's clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.annotations import WORKER_GROUP
from policies.core.groups import RAY_CLUSTER_NAME, RAY_GROUP, RAY_NODE_TYPE
from policies.kube.json import Json
from policies.kube.names import is_api_version, is_kind, is_label_value, is_path_segment
from policies.kube.objects.metadata import Object
from policies.kube.objects.pods import PodState
from policies.kube.objects.ray import RayCluster, WorkerGroupSpec
from policies.kube.objects.reading import WrongTypeError, read
from policies.kube.objects.scaling import Scale
from policies.kube.quantities import whole_number

IS_RAY_NODE: Final = "ray.io/is-ray-node"
REPLICA_INDEX: Final = "ray.io/worker-group-replica-index"
HOST_INDEX: Final = "ray.io/replica-host-index"
REPLICA_NAME: Final = "ray.io/worker-group-replica-name"

_MAX_INT32 = 2**31 - 1
MAX_EPOCH_LENGTH: Final = 32


# --- the pod to be created ---------------------------------------------------------------------


class WorkerOwner(Struct, frozen=True):
    """The controller that a pod names in its ownerReferences."""

    api_version: str
    kind: str
    name: str
    uid: str

    @property
    def is_ray(self) -> bool:
        return self.kind == "RayCluster" and self.api_version.startswith("ray.io/")

    @property
    def is_sound(self) -> bool:
        """Whether the API server accepts apiVersion, kind and name."""
        sound = is_api_version(self.api_version) and is_kind(self.kind) and is_path_segment(self.name)
        return sound and bool(self.uid)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Worker(Struct, frozen=True):
    """A pod to be created without a name, as a member of a group of interchangeable pods.

    `selector` selects the group's pods by their labels, as the owner's controller does. Of a multi-host
    replica, `replica` is KubeRay's name and `host` the number of the pod's host.
    """

    namespace: str
    owner: WorkerOwner
    group: str
    selector: Mapping[str, str]
    head: bool = False
    replica: str = ""
    replica_index: int | None = None
    host: int = 0

    def __str__(self) -> str:
        place = "the head" if self.head else f"worker group {self.group}"
        return f"{self.owner}, {place}"


def worker_of(pod: Json, namespace: str) -> Worker | None:
    """The worker that a pod becomes; None if the policy does not name the pod.

    The policy does not name pods with a name (in the second pass of a review, of a StatefulSet, KubeRay's
    head with a fixed name), without a controller, outside of a group, and Ray's redis-cleanup pods. Nor pods
    with labels or an owner that the API server refuses: the owner is looked up by this text.
    """
    try:
        metadata = read(pod, Object).metadata
    except WrongTypeError:
        return None
    reference, labels = metadata.controller, metadata.labels
    if reference is None or metadata.name:
        return None
    owner = WorkerOwner(reference.api_version, reference.kind, reference.name, reference.uid)
    if not owner.is_sound:
        return None
    if not owner.is_ray or labels.get(IS_RAY_NODE) != "yes":
        group = _selectable(labels, WORKER_GROUP)
        return Worker(namespace, owner, group, {WORKER_GROUP: group}) if group else None
    cluster, group = _selectable(labels, RAY_CLUSTER_NAME), _selectable(labels, RAY_GROUP)
    if not cluster or not group:
        return None
    match labels.get(RAY_NODE_TYPE):
        case "head":
            selector = {RAY_CLUSTER_NAME: cluster, RAY_NODE_TYPE: "head"}
            return Worker(namespace, owner, group, selector, head=True)
        case "worker":
            replica = labels.get(REPLICA_NAME, "")
            return Worker(
                namespace,
                owner,
                group,
                {RAY_CLUSTER_NAME: cluster, RAY_GROUP: group},
                replica=replica,
                replica_index=_number(labels.get(REPLICA_INDEX)),
                host=(_number(labels.get(HOST_INDEX)) or 0) if replica else 0,
            )
    return None


def _selectable(labels: Mapping[str, str], key: str) -> str:
    """The value of a label; empty if the API server refuses it."""
    value = labels.get(key, "")
    return value if is_label_value(value) else ""


def _number(label: str | None) -> int | None:
    return whole_number(label)


# --- the desired number ------------------------------------------------------------------------


class DesiredWorkers(Struct, frozen=True):
    """The desired workers of a group.

    `pods` counts every host of every replica. `to_delete` are the names in `workersToDelete`: KubeRay also
    deletes new pods with these names. `note` is the reason if no pod is desired.
    """

    pods: int
    hosts: int = 1
    to_delete: frozenset[str] = frozenset()
    note: str = ""


class OwnerMismatch(Exception):
    """The pod's owner does not exist, or another object has its name."""


def desired(owner: Json | None, worker: Worker) -> DesiredWorkers:
    """The desired workers by the live owner: a RayCluster, or the Scale of any other controller.

    The arithmetic is KubeRay's: clamp(replicas, minReplicas, maxReplicas) x numOfHosts, 0 if suspended.
    Raises OwnerMismatch, and WrongTypeError for an owner that this version cannot read.
    """
    live: RayCluster | Scale | None = None
    if owner is not None:
        live = read(owner, RayCluster) if worker.owner.is_ray else read(owner, Scale)
    if live is None or live.metadata.uid != worker.owner.uid:
        # One sentence for both: the caller may not be allowed to see the existing pod.
        raise OwnerMismatch(f"{worker.owner} is gone, or another one has its name now.")
    return (
        _desired_by_ray(live, worker) if isinstance(live, RayCluster) else DesiredWorkers(live.spec.replicas)
    )


def _desired_by_ray(cluster: RayCluster, worker: Worker) -> DesiredWorkers:
    groups = cluster.spec.worker_group_specs
    to_delete = frozenset(name for each in groups for name in each.scale_strategy.workers_to_delete)
    if cluster.metadata.deletion_timestamp:
        return DesiredWorkers(0, to_delete=to_delete, note="it is being deleted")
    if cluster.spec.suspend:
        return DesiredWorkers(0, to_delete=to_delete, note="it is suspended")
    if worker.head:
        return DesiredWorkers(1, to_delete=to_delete)
    for each in groups:
        if each.group_name == worker.group:
            return _desired_of_group(each, to_delete)
    return DesiredWorkers(0, to_delete=to_delete, note="it has no such group")


def _desired_of_group(spec: WorkerGroupSpec, to_delete: frozenset[str]) -> DesiredWorkers:
    hosts = max(1, spec.num_of_hosts)
    if spec.suspend:
        return DesiredWorkers(0, hosts, to_delete, "the group is suspended")
    low = spec.min_replicas
    high = _MAX_INT32 if spec.max_replicas is None else spec.max_replicas
    replicas = min(max(low if spec.replicas is None else spec.replicas, low), high)
    return DesiredWorkers(max(0, replicas) * hosts, hosts, to_delete)


# --- existing pods -----------------------------------------------------------------------------


class ExistingPod(Struct, frozen=True):
    """A pod of the group in a consistent list. `ends` is its deletionTimestamp."""

    name: str
    owner_uid: str = ""
    replica: str = ""
    replica_index: int | None = None
    ends: float | None = None
    finished: bool = False

    @property
    def terminating(self) -> bool:
        return self.ends is not None


def existing_pod(pod: Json) -> ExistingPod:
    """A listed pod; without a status it is not finished."""
    found = read(pod, PodState)
    metadata = found.metadata
    owner, labels, deleted = metadata.controller, metadata.labels, metadata.deletion_timestamp
    return ExistingPod(
        name=metadata.name,
        owner_uid="" if owner is None else owner.uid,
        replica=labels.get(REPLICA_NAME, ""),
        replica_index=_number(labels.get(REPLICA_INDEX)),
        ends=datetime.fromisoformat(deleted).timestamp() if deleted else None,
        finished=found.status.phase in ("Succeeded", "Failed"),
    )


def is_counted(pod: ExistingPod, worker: Worker, desired: DesiredWorkers, now: float, timeout: float) -> bool:
    """Whether the owner's controller counts this pod as one of the desired pods.

    KubeRay counts every pod with the group's labels until it is gone, also failed and terminating pods,
    except those that it deletes in the same pass: the pods in `workersToDelete` and whole multi-host
    replicas. Another count would refuse pods that KubeRay needs, or admit one too many, and KubeRay would
    then delete any one of them. A terminating pod counts until `timeout` seconds after the end of its grace
    period, so that a lost node does not block its place forever. Other controllers, such as the ReplicaSet's,
    count neither failed nor terminating pods.
    """
    if not worker.owner.is_ray:
        return pod.owner_uid == worker.owner.uid and not pod.terminating and not pod.finished
    if pod.ends is None:
        return True
    return not pod.replica and pod.name not in desired.to_delete and now < pod.ends + timeout


# --- reservations ------------------------------------------------------------------------------


class Reservation(Struct, frozen=True):
    """Names of a pod, or of all hosts of a replica, that have been given and are in no list yet.

    `time` is when they were given, and `version` the resourceVersion of the pod list before: pods with these
    names were created after it. `index` is the operator's label, if there is one.
    """

    names: tuple[str, ...]
    time: float
    version: str = ""
    replica: str = ""
    index: int | None = None


class AllocationRecord(Struct, frozen=True):
    """The content of a group's Lease: the highest number ever given, and the reservations.

    `epoch` is a random text in every name. A record that is lost and begun again has another one, so it
    cannot give a name twice.
    """

    highest: int = -1
    reservations: tuple[Reservation, ...] = ()
    epoch: str = ""

    def dump(self) -> str:
        """As JSON text, the value of one annotation."""
        entries = [
            {"names": list(r.names), "at": round(r.time, 3), "from": r.version}
            | ({"replica": r.replica} if r.replica else {})
            | ({} if r.index is None else {"index": r.index})
            for r in self.reservations
        ]
        record = {"highest": self.highest, "reservations": entries}
        return json.dumps(record | ({"epoch": self.epoch} if self.epoch else {}), separators=(",", ":"))

    @classmethod
    def load(cls, dumped: str | None) -> AllocationRecord:
        """From an annotation; empty if there is none or it is invalid.

        An empty record with a new epoch is safe: only the reservations are lost.
        """
        try:
            read: Any = json.loads(dumped or "{}")
            highest = int(read.get("highest", -1))
            reservations = tuple(map(_reservation, read.get("reservations", ())))
            epoch = str(read.get("epoch", ""))[:MAX_EPOCH_LENGTH]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return cls()
        return cls(highest, reservations, epoch) if -1 <= highest <= _MAX_INT32 else cls()

    def without(self, seen: frozenset[str], now: float, lifetime: float) -> AllocationRecord:
        """The record without the names of pods that were seen, and without reservations older than `lifetime`
        seconds or as far in the future: this cluster's clocks did not write them."""
        kept = (
            replace(r, names=tuple(name for name in r.names if name not in seen))
            for r in self.reservations
            if abs(now - r.time) < lifetime
        )
        return replace(self, reservations=tuple(r for r in kept if r.names))


def _reservation(entry: Mapping[str, Any]) -> Reservation:
    index = entry.get("index")
    return Reservation(
        tuple(map(str, entry["names"])),
        float(entry["at"]),
        str(entry["from"]),
        str(entry.get("replica", "")),
        index if isinstance(index, int) else None,
    )


def allocated(
    pods: Iterable[ExistingPod],
    record: AllocationRecord,
    worker: Worker,
    desired: DesiredWorkers,
    now: float,
    timeout: float,
) -> int:
    """How many of the desired pods exist or are reserved. A multi-host replica counts with all its hosts."""
    counted = [(pod.replica, pod.name) for pod in pods if is_counted(pod, worker, desired, now, timeout)]
    counted += [(reservation.replica, reservation.names[0]) for reservation in record.reservations]
    units = {("replica", replica) if replica else ("pod", name) for replica, name in counted}
    return sum(desired.hosts if kind == "replica" else 1 for kind, _ in units)
