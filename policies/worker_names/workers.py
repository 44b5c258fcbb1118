"""A group of workers: the pod that is asked for, how many are wanted, which exist, which are promised.

Pure reading of JSON into the few values that `policies.worker_names.worker_names` decides on. Times are
seconds since the epoch by the API server's clock and always passed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from policies.core.annotations import WORKER_GROUP
from policies.kube.json import Json, dig, integer, maps, strings, text
from policies.kube.metadata import controller, labels_of
from policies.kube.names import is_api_version, is_kind, is_label_value, is_path_segment

IS_RAY_NODE: Final = "ray.io/is-ray-node"
RAY_CLUSTER: Final = "ray.io/cluster"
RAY_GROUP: Final = "ray.io/group"
RAY_NODE_TYPE: Final = "ray.io/node-type"
REPLICA_INDEX: Final = "ray.io/worker-group-replica-index"
HOST_INDEX: Final = "ray.io/replica-host-index"
REPLICA_NAME: Final = "ray.io/worker-group-replica-name"

_MAX_INT32 = 2**31 - 1
LONGEST_EPOCH: Final = 32


# --- the pod that is asked for -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Owner:
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
        """Whether apiVersion, kind and name are what the API server lets an object have."""
        sound = is_api_version(self.api_version) and is_kind(self.kind) and is_path_segment(self.name)
        return sound and bool(self.uid)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Worker:
    """A pod about to be created without a name, as one member of a group of interchangeable pods.

    `selector` finds the group's pods by their labels, as the owner's controller does. `replica` is
    KubeRay's own name for the multi-host replica that the pod is host number `host` of, else empty.
    """

    namespace: str
    owner: Owner
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
    """What a pod to be created is in its group; None for a pod to be left alone.

    Left alone is every pod that has its name already (the second pass of a review, a StatefulSet's
    pod, KubeRay's head where its name is fixed), that has no controller, that is no member of a
    group, and Ray's redis-cleanup pods. So is one whose labels the API server will refuse, and one
    whose owner nothing can be: it would be looked up by what a person wrote.
    """
    reference, labels = controller(pod), labels_of(pod)
    if reference is None or text(pod, "metadata", "name"):
        return None
    owner = Owner(*(text(reference, key) for key in ("apiVersion", "kind", "name", "uid")))
    if not owner.is_sound:
        return None
    if not owner.is_ray or labels.get(IS_RAY_NODE) != "yes":
        group = _selectable(labels, WORKER_GROUP)
        return Worker(namespace, owner, group, {WORKER_GROUP: group}) if group else None
    cluster, group = _selectable(labels, RAY_CLUSTER), _selectable(labels, RAY_GROUP)
    if not cluster or not group:
        return None
    match labels.get(RAY_NODE_TYPE):
        case "head":
            selector = {RAY_CLUSTER: cluster, RAY_NODE_TYPE: "head"}
            return Worker(namespace, owner, group, selector, head=True)
        case "worker":
            replica = labels.get(REPLICA_NAME, "")
            return Worker(
                namespace,
                owner,
                group,
                {RAY_CLUSTER: cluster, RAY_GROUP: group},
                replica=replica,
                replica_index=_number(labels.get(REPLICA_INDEX)),
                host=(_number(labels.get(HOST_INDEX)) or 0) if replica else 0,
            )
    return None


def _selectable(labels: Mapping[str, str], key: str) -> str:
    """The value of a label; empty where it is none that the API server lets a pod carry."""
    value = labels.get(key, "")
    return value if is_label_value(value) else ""


def _number(label: str | None) -> int | None:
    return int(label) if label and label.isascii() and label.isdigit() and len(label) < 10 else None


# --- how many are wanted -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Want:
    """What the live owner wants of a group.

    `pods` counts every host of every replica; `barred` are the names in `workersToDelete`, which
    KubeRay deletes by name however young the pod is; `note` is the reason if no pod is wanted.
    """

    pods: int
    hosts: int = 1
    barred: frozenset[str] = frozenset()
    note: str = ""


class Untrusted(Exception):
    """The owner that the pod names is not the one that lives."""


def wanted(owner: Json | None, worker: Worker) -> Want:
    """What the live owner wants: a RayCluster, or the Scale of any other controller.

    Raises Untrusted when it is gone or another object has taken its name. The arithmetic is
    KubeRay's own: clamp(replicas, minReplicas, maxReplicas) x numOfHosts, 0 if suspended.
    """
    if owner is None or text(owner, "metadata", "uid") != worker.owner.uid:
        # One sentence for both: the caller may not be allowed to see the existing pod.
        raise Untrusted(f"{worker.owner} is gone, or another one has its name now.")
    if not worker.owner.is_ray:
        return Want(integer(owner, "spec", "replicas", default=0))
    groups = maps(owner, "spec", "workerGroupSpecs")
    barred = frozenset(name for spec in groups for name in strings(spec, "scaleStrategy", "workersToDelete"))
    if dig(owner, "metadata", "deletionTimestamp"):
        return Want(0, barred=barred, note="it is being deleted")
    if dig(owner, "spec", "suspend") is True:
        return Want(0, barred=barred, note="it is suspended")
    if worker.head:
        return Want(1, barred=barred)
    for spec in groups:
        if text(spec, "groupName") == worker.group:
            return _wanted_of_group(spec, barred)
    return Want(0, barred=barred, note="it has no such group")


def _wanted_of_group(spec: Json, barred: frozenset[str]) -> Want:
    hosts = max(1, integer(spec, "numOfHosts", default=1))
    if spec.get("suspend") is True:
        return Want(0, hosts, barred, "the group is suspended")
    low = integer(spec, "minReplicas", default=0)
    high = integer(spec, "maxReplicas", default=_MAX_INT32)
    replicas = min(max(integer(spec, "replicas", default=low), low), high)
    return Want(max(0, replicas) * hosts, hosts, barred)


# --- which exist -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Existing:
    """A pod of the group in a consistent list. `ends` is its deletionTimestamp, the end of its grace."""

    name: str
    owner_uid: str = ""
    replica: str = ""
    replica_index: int | None = None
    ends: float | None = None
    finished: bool = False

    @property
    def terminating(self) -> bool:
        return self.ends is not None


def existing(pod: Json) -> Existing:
    """A listed pod, reduced to what decides; without a status it counts as not finished."""
    labels, deleted = labels_of(pod), text(pod, "metadata", "deletionTimestamp")
    return Existing(
        name=text(pod, "metadata", "name"),
        owner_uid=text(controller(pod), "uid"),
        replica=labels.get(REPLICA_NAME, ""),
        replica_index=_number(labels.get(REPLICA_INDEX)),
        ends=datetime.fromisoformat(deleted).timestamp() if deleted else None,
        finished=text(pod, "status", "phase") in ("Succeeded", "Failed"),
    )


def counts(pod: Existing, worker: Worker, want: Want, now: float, patience: float) -> bool:
    """Whether the owner's controller takes this pod for one of those it wants.

    KubeRay counts every pod with the group's labels, failed and terminating ones too, until they
    are gone; what it excepts is what it deletes in the same pass: the pods in `workersToDelete`
    and whole multi-host replicas. Counting likewise refuses nothing that it rightly asks for, and
    keeps it from finding one pod too many, of which it would delete any one. A terminating pod
    counts until `patience` seconds after its grace ended: a lost node must not hold a place
    forever. Other controllers, such as ReplicaSet's, count neither kind.
    """
    if not worker.owner.is_ray:
        return pod.owner_uid == worker.owner.uid and not pod.terminating and not pod.finished
    if pod.ends is None:
        return True
    return not pod.replica and pod.name not in want.barred and now < pod.ends + patience


# --- which are promised ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reservation:
    """Names given to a pod, or to all hosts of a replica, which no list has shown yet.

    `at` is when they were given, `seen_from` the resourceVersion of the pod list before: pods with these
    names were created after it; `index` the operator's own, where it labels one.
    """

    names: tuple[str, ...]
    at: float
    seen_from: str = ""
    replica: str = ""
    index: int | None = None


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """What the Lease of a group holds: the highest number ever given, and the open reservations.

    `epoch` is drawn when the record is begun and goes into every name with a number that only goes up.
    A record that is lost and begun again cannot give a name twice, with any numbers.
    """

    highest: int = -1
    reservations: tuple[Reservation, ...] = ()
    epoch: str = ""

    def dump(self) -> str:
        """As JSON text, the value of one annotation."""
        entries = [
            {"names": list(r.names), "at": round(r.at, 3), "from": r.seen_from}
            | ({"replica": r.replica} if r.replica else {})
            | ({} if r.index is None else {"index": r.index})
            for r in self.reservations
        ]
        record = {"highest": self.highest, "reservations": entries}
        return json.dumps(record | ({"epoch": self.epoch} if self.epoch else {}), separators=(",", ":"))

    @classmethod
    def load(cls, dumped: str | None) -> AllocationRecord:
        """From an annotation; empty when there is none or somebody has spoilt it.

        An empty record is safe to go on from, once it has a new epoch. Only the open reservations are lost.
        """
        try:
            read: Any = json.loads(dumped or "{}")
            highest = int(read.get("highest", -1))
            reservations = tuple(map(_reservation, read.get("reservations", ())))
            epoch = str(read.get("epoch", ""))[:LONGEST_EPOCH]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return cls()
        return cls(highest, reservations, epoch) if -1 <= highest <= _MAX_INT32 else cls()

    def without(self, seen: frozenset[str], now: float, lifetime: float) -> AllocationRecord:
        """Without the names that have been seen to exist and those older than `lifetime` seconds.

        So is a time that far in the future: it was not written by this cluster's clocks.
        """
        kept = (
            replace(r, names=tuple(name for name in r.names if name not in seen))
            for r in self.reservations
            if abs(now - r.at) < lifetime
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


def occupied(
    pods: Iterable[Existing],
    record: AllocationRecord,
    worker: Worker,
    want: Want,
    now: float,
    patience: float,
) -> int:
    """How many of the wanted pods exist or are promised.

    A multi-host replica counts whole from its first host on, so that the others find their place.
    """
    units: dict[tuple[str, str], int] = {}
    for pod in pods:
        if counts(pod, worker, want, now, patience):
            units[_unit(pod.replica, pod.name)] = want.hosts if pod.replica else 1
    for reservation in record.reservations:
        units[_unit(reservation.replica, reservation.names[0])] = want.hosts if reservation.replica else 1
    return sum(units.values())


def _unit(replica: str, name: str) -> tuple[str, str]:
    return ("replica", replica) if replica else ("pod", name)
