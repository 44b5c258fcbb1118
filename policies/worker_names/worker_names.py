"""The mutator worker-names, which worker-names.md documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.contracts import Mutator
from policies.core.reasons import NO_REASONS, Reasons
from policies.kube.group_kinds import POD
from policies.kube.json import Json, replaced
from policies.worker_names.worker_names_settings import WorkerNames
from policies.worker_names.workers import (
    AllocationRecord,
    DesiredWorkers,
    ExistingPod,
    Reservation,
    Worker,
    allocated,
)

MAX_NAME_LENGTH: Final = 63
"""A pod's name is its hostname, a DNS label (RFC 1123)."""
NAMES_SHOWN: Final = 8
MAX_HOSTS: Final = 1024
"""Hosts of a replica whose names are reserved in advance, so that a Lease stays small with any numOfHosts.
Further hosts are reserved one by one."""


MUTATOR: Final = Mutator("worker-names", WorkerNames, kinds=(POD,))
"""It changes no object: the endpoint /name gives the names (`webhook.worker_names.endpoint`)."""


# --- answers -----------------------------------------------------------------------------------


class RefusalReason(StrEnum):
    """Why a pod is refused."""

    EXISTS = "exists"
    """The desired pods exist: a double creation."""
    PROMISED = "promised"
    """The names of the missing pods are reserved; these pods may be created at any moment."""
    UNTRUSTED = "untrusted"
    """Its owner is gone, or another object has the owner's name."""
    UNAVAILABLE = "unavailable"
    """The API server did not answer in time."""


class GivenName(Struct, frozen=True):
    """The pod's name, which is valid only after `record` has replaced the Lease's record."""

    name: str
    record: AllocationRecord


class Refused(Struct, frozen=True):
    """The refusal of a pod. Without the reservations in `blocking` the pod would get a name: it gets one if
    their pods were created and are already deleted."""

    reason: RefusalReason
    message: str
    blocking: tuple[Reservation, ...] = ()


Naming = GivenName | Refused


class WorkerGroup(Struct, frozen=True):
    """The group as it was read: first `now`, then the record, then the list of pods.

    The proof depends on this order: if the record no longer contains a name, a replica of the webhook has
    listed its pod before, so the pod is in this later list or deleted. `created` are names of pods that were
    certainly created before the list.
    """

    desired: DesiredWorkers
    pods: Sequence[ExistingPod]
    record: AllocationRecord
    now: float
    version: str = ""
    created: frozenset[str] = frozenset()


# --- names -------------------------------------------------------------------------------------

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' own for generated names: no vowels, so that no word appears."""


def _tag(worker: Worker, epoch: str) -> str:
    """Five characters that distinguish names with the same readable part.

    Such names are those of cluster `a`, group `b-c` and cluster `a-b`, group `c`; long names, which are cut;
    and numbers that are given again after the record was lost or the cluster was created again.
    """
    role = "head" if worker.head else "worker"
    # "sequence" is part of the hash for the sake of names from earlier releases.
    return _hashed("sequence", worker.owner.name, role, worker.group, *filter(None, (epoch,)))


@lru_cache(maxsize=1024)
def _hashed(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:5])


def name_of(worker: Worker, number: int, host: int | None = None, epoch: str = "") -> str:
    """`<cluster>-<group>-worker-<tag>-<number>[-<host>]` or `<cluster>-head-<tag>-<number>`.

    The cluster and the group are cut so that it has at most 63 characters. `epoch` is the record's.
    """
    role = "-head" if worker.head else "-worker" if worker.owner.is_ray else ""
    end = f"{role}-{_tag(worker, epoch)}-{number}" + ("" if host is None else f"-{host}")
    stem = worker.owner.name if worker.head else f"{worker.owner.name}-{worker.group}"
    stem = re.sub(r"[^a-z0-9-]", "-", stem.lower()).lstrip("-")
    return (stem[: MAX_NAME_LENGTH - len(end)].rstrip("-") + end).lstrip("-")


def _numbers(names: Iterable[str], worker: Worker, epoch: str) -> list[int]:
    """The numbers in the names that this group was given in this epoch."""
    ours = re.compile(rf"-{_tag(worker, epoch)}-(\d{{1,9}})(?:-\d+)?$")
    return [int(found[1]) for name in names if (found := ours.search(name))]


def _names(worker: Worker, number: int, desired: DesiredWorkers, epoch: str) -> tuple[str, ...]:
    """The names of one number: the pod's own, or those of all hosts of its replica."""
    if not worker.replica:
        return (name_of(worker, number, epoch=epoch),)
    hosts = dict.fromkeys((*range(min(desired.hosts, MAX_HOSTS)), worker.host))
    return tuple(name_of(worker, number, host, epoch) for host in hosts)


# --- the decision ------------------------------------------------------------------------------


def decide(worker: Worker, group: WorkerGroup, settings: WorkerNames) -> Naming:
    """The pod's name with the record that reserves it, or a refusal.

    The name is valid only after a compare-and-swap of the record that was read with the new one.
    """
    seen = frozenset(pod.name for pod in group.pods) | group.created
    group = replace(group, record=group.record.without(seen, group.now, settings.reservation))
    siblings = _siblings(worker, group) if worker.host else []
    refused = None if worker.host else _refused_index(worker, group, settings)
    if refused:
        return refused
    # KubeRay deletes a broken replica and creates it again, for as long as one of its hosts is refused.
    if not siblings and _is_full(worker, group, settings):
        return _full(worker, group, settings)
    epoch = group.record.epoch
    number = max(_numbers(siblings, worker, epoch), default=None)
    if number is None:
        number = _next_number(worker, group)
    names = _names(worker, number, group.desired, epoch)
    others = tuple(r for r in group.record.reservations if not worker.replica or r.replica != worker.replica)
    added = Reservation(names, group.now, group.version, worker.replica, worker.replica_index)
    record = AllocationRecord(max(group.record.highest, number), (*others, added), epoch)
    return GivenName(name_of(worker, number, worker.host if worker.replica else None, epoch), record)


def _refused_index(worker: Worker, group: WorkerGroup, settings: WorkerNames) -> Refused | None:
    """The refusal of a second pod for the index of a replica."""
    index = worker.replica_index
    if index is None:
        return None
    live = [pod.name for pod in group.pods if pod.replica_index == index and not pod.terminating]
    if live:
        return Refused(
            RefusalReason.EXISTS, f"{worker}: replica {index} already exists{_listed(live)}. {_STALE}"
        )
    reservations = tuple(r for r in group.record.reservations if r.index == index)
    if not reservations:
        return None
    return Refused(
        RefusalReason.PROMISED,
        f"{worker}: replica {index} is being created{_listed(_names_of(reservations))}. {_STALE} "
        f"{_EXPIRY.format(settings.reservation)}",
        reservations,
    )


def _names_of(reservations: Iterable[Reservation]) -> list[str]:
    return [name for reservation in reservations for name in reservation.names]


def _is_full(worker: Worker, group: WorkerGroup, settings: WorkerNames) -> bool:
    taken = allocated(group.pods, group.record, worker, group.desired, group.now, settings.reservation)
    return taken + (group.desired.hosts if worker.replica else 1) > group.desired.pods


def _siblings(worker: Worker, group: WorkerGroup) -> list[str]:
    """The names of the hosts of the pod's replica that live or are reserved.

    The name of a later host has the same number. A second request for a host gets the same name, and the API
    server admits one of them.
    """
    live = [pod.name for pod in group.pods if pod.replica == worker.replica and not pod.terminating]
    return live + _names_of(r for r in group.record.reservations if r.replica == worker.replica)


def _next_number(worker: Worker, group: WorkerGroup) -> int:
    """The lowest number above all given ones whose names are not in `workersToDelete`."""
    listed, epoch = [pod.name for pod in group.pods], group.record.epoch
    number = 1 + max((group.record.highest, *_numbers(listed, worker, epoch)))
    while not group.desired.to_delete.isdisjoint(_names(worker, number, group.desired, epoch)):
        number += 1
    return number


# --- refusals ------------------------------------------------------------------------------------


def untrusted(sentence: str) -> Refused:
    """The refusal of a pod whose owner is gone."""
    return Refused(
        RefusalReason.UNTRUSTED,
        f"{sentence[0].upper()}{sentence[1:]} The garbage collector would only delete a pod for it. The "
        "controller acts on a stale cache, and no action is needed.",
    )


_STALE: Final = "A controller that creates it again acts on a stale cache, and no action is needed."
_EXPIRY: Final = "A name whose pod was never created is free again after {} s."


def _full(worker: Worker, group: WorkerGroup, settings: WorkerNames) -> Refused:
    desired, reservations = group.desired, group.record.reservations
    names = [pod.name for pod in group.pods]
    reserved = _names_of(reservations)
    counted = f"{desired.pods} wanted" + (f" because {desired.note}" if desired.note else "")
    counted += f", {len(names)} existing{_listed(names)}"
    hint = "A controller that requests one more acts on a stale cache, and no action is needed."
    if reserved:
        counted += f", {len(reserved)} being created{_listed(reserved)}"
        hint += f" {_EXPIRY.format(settings.reservation)}"
    if not worker.head and not desired.note:
        hint += " To run more workers, raise replicas."
    is_blocked = not _is_full(worker, replace(group, record=AllocationRecord()), settings)
    return Refused(
        RefusalReason.PROMISED if is_blocked else RefusalReason.EXISTS,
        f"{worker}: {counted}. {hint}",
        reservations if is_blocked else (),
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f" ({', '.join(sorted(names)[:NAMES_SHOWN])}{more})"


# --- the change ----------------------------------------------------------------------------------


def with_name(pod: Json, name: str, reasons: Reasons = NO_REASONS) -> Json:
    """A copy of the pod with its name and without `generateName`.

    With `generateName`, the API server's 409 for an existing name would be a message about generated names.
    """
    metadata = {key: value for key, value in pod["metadata"].items() if key != "generateName"}
    reasons.give("metadata.name", "one name for each worker that is wanted, so that a surplus pod is refused")
    return replaced(pod, ("metadata",), {**metadata, "name": name})
