"""The mutator worker-names, which worker-names.md documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Final

from pydantic import Field

from policies.core.contracts import Mutator
from policies.core.reasons import UNREAD, Reasons
from policies.core.settings import Duration, Retired, Settings
from policies.kube.group_kinds import POD
from policies.kube.json import Json, replaced
from policies.worker_names.workers import AllocationRecord, Existing, Reservation, Want, Worker, occupied

LONGEST_NAME: Final = 63
"""A pod's name is its hostname, a DNS label (RFC 1123)."""
NAMES_SHOWN: Final = 8
MOST_HOSTS: Final = 1024
"""Hosts of a replica that are promised by name ahead of being asked for: a Lease must stay small,
even with more in numOfHosts. Those beyond are promised one by one."""


class OnUnavailable(StrEnum):
    """What becomes of a pod when the API server can't be asked in time."""

    REFUSE = "refuse"
    ALLOW = "allow"


class WorkerNames(Settings):
    """Key `worker-names.yaml`."""

    retired: ClassVar[Mapping[str, Retired]] = {
        "strategy": Retired(
            "the setting strategy was removed and has no effect: names have numbers that only go up. "
            "Remove it"
        )
    }

    reservation: Duration = Field(
        75,
        ge=1,
        description="seconds for which an allocated name stays reserved although no such pod is listed. It "
        "must be longer than the longest request of the API server (its --request-timeout, 60 s by default) "
        "plus the clock difference between API servers",
    )
    on_unavailable: OnUnavailable = Field(
        OnUnavailable.REFUSE,
        description="when the API server can't be asked in time: refuse (the operator tries again) or allow "
        "(the pod keeps its random name, and a double creation goes through)",
    )


MUTATOR: Final = Mutator("worker-names", WorkerNames, kinds=(POD,))
"""No change of an object: only the endpoint /name decides (`webhook.worker_names.endpoint`)."""


# --- answers -----------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a pod is refused."""

    EXISTS = "exists"
    """As many pods as are wanted exist: a double creation."""
    PROMISED = "promised"
    """Fewer exist, but names have been given for the rest; their pods may come at any moment."""
    UNTRUSTED = "untrusted"
    """Its owner is gone, or another object has taken the owner's name."""
    UNAVAILABLE = "unavailable"
    """The API server could not be asked in time."""


@dataclass(frozen=True, slots=True)
class Give:
    """The name the pod gets once `record` has been swapped in."""

    name: str
    record: AllocationRecord


@dataclass(frozen=True, slots=True)
class Refuse:
    """Why the pod is refused. `ambiguous` are reservations that are the only obstacle: if their
    pods were created and are gone again, the answer would be another."""

    reason: Reason
    message: str
    ambiguous: tuple[Reservation, ...] = ()


Answer = Give | Refuse


@dataclass(frozen=True, slots=True)
class Group:
    """The group as it was read: first the record, then the list, and `now` no later than either.

    The order carries the proof: a name that the record no longer reserves was listed by someone
    before the record was read, so its pod is in this later list or gone for good. `created` are
    names known to have been created before the list was made.
    """

    want: Want
    pods: Sequence[Existing]
    record: AllocationRecord
    now: float
    version: str = ""
    created: frozenset[str] = frozenset()


# --- names -------------------------------------------------------------------------------------

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' own for generated names: no vowels, so that no word appears."""


def _tag(worker: Worker, epoch: str) -> str:
    """Five characters that distinguish names with the same readable part.

    Cluster `a`, group `b-c` and cluster `a-b`, group `c` would share their names otherwise, and so
    would long names that are cut; and so would a number that is counted up again because its record
    was lost, or its cluster made again.
    """
    role = "head" if worker.head else "worker"
    begun = (epoch,) if epoch else ()
    # The first part is in the names that earlier releases gave.
    return _hashed("sequence", worker.owner.name, role, worker.group, *begun)


@lru_cache(maxsize=1024)
def _hashed(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:5])


def name_of(worker: Worker, number: int, host: int | None = None, epoch: str = "") -> str:
    """`<cluster>-<group>-worker-<tag>-<number>[-<host>]`, `<cluster>-head-<tag>-<number>`; at most 63.

    Only the cluster and the group are ever cut. `epoch` is the record's.
    """
    role = "-head" if worker.head else "-worker" if worker.owner.is_ray else ""
    end = f"{role}-{_tag(worker, epoch)}-{number}" + ("" if host is None else f"-{host}")
    stem = worker.owner.name if worker.head else f"{worker.owner.name}-{worker.group}"
    stem = re.sub(r"[^a-z0-9-]", "-", stem.lower()).lstrip("-")
    return (stem[: LONGEST_NAME - len(end)].rstrip("-") + end).lstrip("-")


def _numbers(names: Iterable[str], worker: Worker, epoch: str) -> list[int]:
    """The numbers in those of the names that were given to this group in this epoch."""
    ours = re.compile(rf"-{_tag(worker, epoch)}-(\d{{1,9}})(?:-\d+)?$")
    return [int(found[1]) for name in names if (found := ours.search(name))]


def _names(worker: Worker, number: int, want: Want, epoch: str) -> tuple[str, ...]:
    """The names of one number: the pod's own, or those of all hosts of its replica."""
    if not worker.replica:
        return (name_of(worker, number, epoch=epoch),)
    hosts = dict.fromkeys((*range(min(want.hosts, MOST_HOSTS)), worker.host))
    return tuple(name_of(worker, number, host, epoch) for host in hosts)


# --- the decision ------------------------------------------------------------------------------


def decide(worker: Worker, group: Group, settings: WorkerNames) -> Answer:
    """The next number, with the record that promises it. Pure.

    The name may be given only after that record has replaced the one that was read, by
    compare-and-swap.
    """
    seen = frozenset(pod.name for pod in group.pods) | group.created
    group = replace(group, record=group.record.without(seen, group.now, settings.reservation))
    siblings = _siblings(worker, group) if worker.host else []
    taken = None if worker.host else _index_taken(worker, group, settings)
    if taken:
        return taken
    # KubeRay deletes a broken replica and creates it again, for as long as one of its hosts is refused.
    if not siblings and _is_full(worker, group, settings):
        return _full(worker, group, settings)
    epoch = group.record.epoch
    number = max(_numbers(siblings, worker, epoch), default=None)
    if number is None:
        number = _next_number(worker, group)
    names = _names(worker, number, group.want, epoch)
    others = tuple(r for r in group.record.reservations if not worker.replica or r.replica != worker.replica)
    promise = Reservation(names, group.now, group.version, worker.replica, worker.replica_index)
    record = AllocationRecord(max(group.record.highest, number), (*others, promise), epoch)
    return Give(name_of(worker, number, worker.host if worker.replica else None, epoch), record)


def _index_taken(worker: Worker, group: Group, settings: WorkerNames) -> Refuse | None:
    """The refusal of a second pod for an index that the operator labels."""
    live = [pod.name for pod in group.pods if _has_index(pod, worker) and not pod.terminating]
    if live:
        return _index_lives(worker, live)
    index = worker.replica_index
    promises = tuple(r for r in group.record.reservations if index is not None and r.index == index)
    if not promises:
        return None
    names = [name for promise in promises for name in promise.names]
    return Refuse(
        Reason.PROMISED,
        f"{worker}: replica {index} is being created{_shown(names)}. {_STALE} "
        f"{_LAPSES.format(settings.reservation)}",
        promises,
    )


def _has_index(pod: Existing, worker: Worker) -> bool:
    return worker.replica_index is not None and pod.replica_index == worker.replica_index


def _is_full(worker: Worker, group: Group, settings: WorkerNames) -> bool:
    taken = occupied(group.pods, group.record, worker, group.want, group.now, settings.reservation)
    return taken + _size(worker, group.want) > group.want.pods


def _size(worker: Worker, want: Want) -> int:
    return want.hosts if worker.replica else 1


def _siblings(worker: Worker, group: Group) -> list[str]:
    """The names of the hosts of the pod's own replica that live or are promised.

    A later host gets its name from them. A second request for the same host gets the same name, and the
    API server lets in one.
    """
    siblings = [pod.name for pod in group.pods if pod.replica == worker.replica and not pod.terminating]
    return siblings + [n for r in group.record.reservations if r.replica == worker.replica for n in r.names]


def _next_number(worker: Worker, group: Group) -> int:
    """The lowest number above every one that was given, whose names nothing orders deleted."""
    listed, epoch = [pod.name for pod in group.pods], group.record.epoch
    number = 1 + max((group.record.highest, *_numbers(listed, worker, epoch)))
    while not group.want.barred.isdisjoint(_names(worker, number, group.want, epoch)):
        number += 1
    return number


# --- refusals, each in words that a person can act on --------------------------------------------


def untrusted(worker: Worker, sentence: str) -> Refuse:
    """The owner is not the one that lives."""
    return Refuse(
        Reason.UNTRUSTED,
        f"{sentence[0].upper()}{sentence[1:]} A pod for it would only be garbage collected. "
        "The controller works from a stale cache; no action is needed.",
    )


_STALE: Final = "A controller that creates it again works from a stale cache; no action is needed."
_LAPSES: Final = "A name whose pod never came is free again after {} s."


def _full(worker: Worker, group: Group, settings: WorkerNames) -> Refuse:
    want, promises = group.want, group.record.reservations
    names = [pod.name for pod in group.pods]
    promised = [name for promise in promises for name in promise.names]
    counted = f"{want.pods} wanted" + (f" because {want.note}" if want.note else "")
    counted += f", {len(names)} existing{_shown(names)}"
    hint = "A controller that asks for one more works from a stale cache; no action is needed."
    if promised:
        counted += f", {len(promised)} being created{_shown(promised)}"
        hint += f" {_LAPSES.format(settings.reservation)}"
    if not worker.head and not want.note:
        hint += " For more workers raise replicas."
    exist = occupied(group.pods, AllocationRecord(), worker, want, group.now, settings.reservation)
    ambiguous = exist + _size(worker, want) <= want.pods
    return Refuse(
        Reason.PROMISED if ambiguous else Reason.EXISTS,
        f"{worker}: {counted}. {hint}",
        promises if ambiguous else (),
    )


def _index_lives(worker: Worker, live: Sequence[str]) -> Refuse:
    which = "it" if worker.head else f"replica {worker.replica_index}"
    return Refuse(Reason.EXISTS, f"{worker}: {which} exists already{_shown(live)}. {_STALE}")


def _shown(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f" ({', '.join(sorted(names)[:NAMES_SHOWN])}{more})"


# --- the change ----------------------------------------------------------------------------------


def named(pod: Json, name: str, why: Reasons = UNREAD) -> Json:
    """A copy of the pod under its name.

    `generateName` goes with it: left in place it turns the API server's 409 for a name that is
    taken into a message about a generated name.
    """
    metadata = {key: value for key, value in pod["metadata"].items() if key != "generateName"}
    why.give("metadata.name", "one name for each worker that is wanted: a pod too many is refused")
    return replaced(pod, ("metadata",), {**metadata, "name": name})
