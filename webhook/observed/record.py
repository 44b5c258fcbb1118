"""The record of observed starts and ends: what the ConfigMap `mlchassis-observed` holds.

Law: the record is bounded in any cluster, and after any edit. Each namespace has its own key and at most
`MOST_ENTRIES` entries. If the whole is too large, the namespace with the most bytes gives up its oldest
entry, so one namespace cannot push out the entries of another. Values are clamped; an entry that does not
have the right shape is dropped, and the others stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError

from policies.core.annotations import OBSERVED_UNTIL
from policies.core.settings import Model
from policies.kube.json import Json
from policies.probes.observed import LEAST_STARTS, LONGEST

MOST_BYTES: Final = 700 * 1024
"""Of all keys and values. A ConfigMap may hold 1 MiB."""
MOST_ENTRIES: Final = 200
"""Of one namespace."""
MOST_STARTS: Final = 32
"""The latest starts of which the load time is kept, for each node type."""
MOST_OTHERS: Final = 8
"""The latest times of image pulls, and until ready."""
MOST_NODE_TYPES: Final = 4
MOST_PLACES: Final = 32
MOST_REASONS: Final = 12
OTHER: Final = "other"
"""The node type, or the reason, beyond the first few."""
KEPT_SECONDS: Final = 60 * 24 * 3600
"""An entry without an observation for so long is dropped."""
_CHANGED: Final = 0.25
"""The part by which the slowest start must differ before budgets follow it."""
_LONGEST_TEXT: Final = 120
_KEY: Final = re.compile(r"[A-Za-z]{1,63}/[a-z0-9.-]{1,253}/[a-z0-9-]{1,63}@[0-9a-f]{12}")


def _clamped(value: object) -> object:
    return min(max(value, 0), LONGEST) if type(value) is int else value


def _short(value: object) -> object:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value


Seconds: TypeAlias = Annotated[int, BeforeValidator(_clamped)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=10**12)]
Text: TypeAlias = Annotated[str, BeforeValidator(_short)]


class Times(Model):
    """Seconds that the latest starts took on nodes of one type, the newest last."""

    load: tuple[Seconds, ...] = Field((), max_length=MOST_STARTS)
    """From the start of the container until it was ready."""
    pull: tuple[Seconds, ...] = Field((), max_length=MOST_OTHERS)
    """From the end of the init containers until the container started: volumes and image."""
    ready: tuple[Seconds, ...] = Field((), max_length=MOST_OTHERS)
    """From scheduling until the pod was ready."""


class Ends(Model):
    """How often runs ended in one way."""

    count: Count
    first: Count
    """Seconds since the epoch."""
    last: Count
    nodes: Annotated[dict[Text, Count], Field(max_length=MOST_NODE_TYPES + 1)] = Field(default_factory=dict)
    """How often on nodes of each type, where it is known."""


class Entry(Model):
    """One container of one workload, as long as it runs the same."""

    seen: Count = 0
    """When something was last seen of it, in seconds since the epoch."""
    starts: Count = 0
    fresh: Count = 0
    """Of these, the first start of a pod that found no download of an earlier one."""
    basis: tuple[Seconds, Count] | None = None
    """What budgets follow from: the slowest start, and how many fresh ones there were."""
    killed: Seconds = 0
    """The longest start that a probe ended."""
    nodes: Annotated[dict[Text, Times], Field(max_length=MOST_NODE_TYPES + 1)] = Field(default_factory=dict)
    places: tuple[Annotated[str, Field(max_length=8)], ...] = Field((), max_length=MOST_PLACES)
    """Digests of where the container has started: a start in another place is a fresh one."""
    ends: Annotated[dict[Text, Ends], Field(max_length=MOST_REASONS + 1)] = Field(default_factory=dict)
    memory: Annotated[int, Field(ge=0, le=2**60)] = 0
    """Bytes: the highest memory limit with which a run ended OOMKilled."""

    @property
    def slowest(self) -> int:
        """Seconds of the slowest start that is kept; 0 if there is none."""
        return max((seconds for times in self.nodes.values() for seconds in times.load), default=0)

    @property
    def loads(self) -> list[int]:
        """The load times that are kept, in order of length."""
        return sorted(seconds for times in self.nodes.values() for seconds in times.load)


@dataclass(frozen=True, slots=True)
class Observation:
    """The observations of one container."""

    namespace: str
    key: str
    """`Deployment/llm/server@3fa9c1d2ab34`: the workload, the container, and what it runs."""
    at: int
    """Seconds since the epoch."""
    node_type: str


@dataclass(frozen=True, slots=True)
class Started(Observation):
    """A start that became ready."""

    load: int
    pull: int | None
    """None if it is unknown, as for a restart."""
    ready: int | None
    first: bool
    """Whether it is the first start of its pod."""
    place: str
    """Where an earlier start may have left a download; empty if it cannot have."""


@dataclass(frozen=True, slots=True)
class Ended(Observation):
    """A run that ended."""

    reason: str
    """`OOMKilled`, `Evicted`, `StartupProbe`, `Error 1` and so on."""
    after: int = 0
    """Seconds that a start took which a probe ended; 0 for other ends."""
    memory: int = 0
    """Bytes of the memory limit, if that ended it."""


class Record:
    """All entries by namespace and key."""

    def __init__(self, namespaces: Mapping[str, Mapping[str, Entry]] | None = None) -> None:
        self.namespaces: dict[str, dict[str, Entry]] = {
            name: dict(entries) for name, entries in (namespaces or {}).items()
        }

    @classmethod
    def load(cls, data: Mapping[str, object], before: Record | None = None) -> Record:
        """The record in a ConfigMap's data. A namespace that is no JSON object is taken from `before`."""
        record = cls()
        for namespace, value in data.items():
            try:
                found = json.loads(value) if isinstance(value, str) else None
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                entries = {key: _entry(each) for key, each in found.items() if _KEY.fullmatch(key)}
                sound = {key: each for key, each in entries.items() if each is not None}
            else:
                sound = dict(before.namespaces.get(namespace, {})) if before else {}
            if sound:
                record.namespaces[namespace] = sound
        return record

    def dump(self) -> dict[str, str]:
        """The data of the ConfigMap: the same for the same entries."""
        return {
            namespace: "{"
            + ",".join(f"{json.dumps(key)}:{_dumped(entries[key])}" for key in sorted(entries))
            + "}"
            for namespace, entries in sorted(self.namespaces.items())
            if entries
        }

    def add(self, observations: Iterable[Observation], now: int) -> None:
        """Take observations in, and drop old or surplus ones."""
        for each in observations:
            if not _KEY.fullmatch(each.key):
                continue
            entries = self.namespaces.setdefault(each.namespace, {})
            entry = entries.get(each.key, Entry()).model_copy(update={"seen": min(max(each.at, 0), now)})
            if isinstance(each, Started):
                entry = _with_start(entry, each)
            elif isinstance(each, Ended):
                entry = _with_end(entry, each, now)
            entries[each.key] = entry
        self._forget(now)

    def _forget(self, now: int) -> None:
        for namespace, entries in list(self.namespaces.items()):
            # A clock that jumped may have left times that are not yet there.
            kept = {key: each for key, each in entries.items() if now - each.seen < KEPT_SECONDS}
            for key in sorted(kept, key=lambda key: (kept[key].seen, key))[
                : max(len(kept) - MOST_ENTRIES, 0)
            ]:
                del kept[key]
            self.namespaces[namespace] = kept
            if not kept:
                del self.namespaces[namespace]
        sizes = {
            namespace: {key: len(key) + 4 + len(_dumped(each)) for key, each in entries.items()}
            for namespace, entries in self.namespaces.items()
        }
        totals = {namespace: sum(each.values()) + len(namespace) for namespace, each in sizes.items()}
        while sum(totals.values()) > MOST_BYTES:
            largest = max(totals, key=lambda name: (totals[name], name))
            entries = self.namespaces[largest]
            oldest = min(entries, key=lambda key: (entries[key].seen, key))
            totals[largest] -= sizes[largest].pop(oldest)
            del entries[oldest]
            if not entries:
                del self.namespaces[largest], totals[largest]


def _entry(value: object) -> Entry | None:
    try:
        return Entry.model_validate_json(json.dumps(value))
    except (ValidationError, ValueError):
        return None


def _dumped(entry: Entry) -> str:
    return entry.model_dump_json(exclude_defaults=True)


def _with_start(entry: Entry, start: Started) -> Entry:
    load = min(start.load, LONGEST)
    name = _node_type(start.node_type, entry.nodes)
    times = entry.nodes.get(name, Times())
    fresh = start.first and start.place not in entry.places
    loads = times.load
    if fresh or load > max(loads, default=0):
        # Restarts find the fetched files: only a slower one is evidence for a new pod.
        loads = (*loads, load)[-MOST_STARTS:]
    times = Times(
        load=loads,
        pull=times.pull if start.pull is None else _latest(times.pull, start.pull),
        ready=times.ready if start.ready is None else _latest(times.ready, start.ready),
    )
    places = entry.places
    if start.place and start.place not in places:
        places = (*places, start.place)[-MOST_PLACES:]
    grown = entry.model_copy(
        update={
            "starts": entry.starts + 1,
            "fresh": entry.fresh + fresh,
            "nodes": {**entry.nodes, name: times},
            "places": places,
        }
    )
    killed = 0 if grown.slowest >= grown.killed else grown.killed
    return grown.model_copy(update={"basis": _basis(grown), "killed": killed})


def _node_type(name: str, known: Mapping[str, object]) -> str:
    """The name under which a node type is kept, next to those that are."""
    name = name[:_LONGEST_TEXT]
    return name if name in known or len(known) < MOST_NODE_TYPES else OTHER


def _latest(known: tuple[int, ...], seconds: int) -> tuple[int, ...]:
    return (*known, min(seconds, LONGEST))[-MOST_OTHERS:]


def _basis(entry: Entry) -> tuple[int, int]:
    """What budgets follow from: it stays until the slowest start differs by more than 25 %, or twice as many
    starts were seen."""
    slowest, fresh = max(entry.slowest, 1), entry.fresh
    if entry.basis is None:
        return slowest, fresh
    seconds, starts = entry.basis
    if abs(slowest - seconds) > _CHANGED * seconds:
        return slowest, fresh
    return seconds, fresh if fresh >= 2 * starts or starts < LEAST_STARTS <= fresh else starts


def _with_end(entry: Entry, end: Ended, now: int) -> Entry:
    reason = end.reason if end.reason in entry.ends or len(entry.ends) < MOST_REASONS else OTHER
    before = entry.ends.get(reason)
    at = min(max(end.at, 0), now)
    nodes = dict(before.nodes) if before else {}
    if end.node_type:
        name = _node_type(end.node_type, nodes)
        nodes[name] = nodes.get(name, 0) + 1
    count, first = (before.count, before.first) if before else (0, at)
    ends = Ends(count=count + 1, first=first, last=at, nodes=nodes)
    return entry.model_copy(
        update={
            "ends": {**entry.ends, reason: ends},
            "killed": max(entry.killed, min(end.after, LONGEST)),
            "memory": max(entry.memory, min(end.memory, 2**60)),
        }
    )


def as_config_map(record: Record, namespace: str, name: str, until: int, before: Json | None) -> Json:
    """The ConfigMap with a record; `before` is the one that it replaces, whose own metadata stays."""
    metadata = dict((before or {}).get("metadata") or {"name": name, "namespace": namespace})
    annotations = dict(metadata.get("annotations") or {})
    metadata["annotations"] = {**annotations, OBSERVED_UNTIL: str(until)}
    labels = {"app.kubernetes.io/name": "mlchassis", "app.kubernetes.io/managed-by": "mlchassis"}
    metadata["labels"] = {**labels, **(metadata.get("labels") or {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": record.dump()}
