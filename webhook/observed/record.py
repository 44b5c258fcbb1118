"""The record of observed starts and ends: the content of the ConfigMap `mlchassis-observed`.

Law: the size of the record is limited in any cluster, and after any edit. Each namespace has its own key and
at most `MAX_ENTRIES` entries. If the record is too large, the namespace with the most bytes loses its oldest
entry, so one namespace cannot displace the entries of another. Values are clamped; malformed entries are
dropped, and the others stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from policies.core.annotations import OBSERVED_UNTIL
from policies.core.pydantic_models import from_json
from policies.core.settings import Before, Field, Model
from policies.kube.json import Json
from policies.probes.observed import MAX_LENGTH, MIN_STARTS

MAX_BYTES: Final = 700 * 1024
"""Of all keys and values. The limit of a ConfigMap is 1 MiB."""
MAX_ENTRIES: Final = 200
"""For each namespace."""
MAX_STARTS: Final = 32
"""The latest load times that are kept for each node type."""
MAX_OTHERS: Final = 8
"""The latest `pull` and `ready` times that are kept for each node type."""
MAX_NODE_TYPES: Final = 4
MAX_PLACES: Final = 32
MAX_REASONS: Final = 12
OTHER: Final = "other"
"""The node type or reason of all beyond the maximum number."""
KEPT_SECONDS: Final = 60 * 24 * 3600
"""Entries without an observation for so long are dropped."""
_CHANGED: Final = 0.25
"""Budgets follow the slowest start only if it changes by more than this part."""
_MAX_TEXT_LENGTH: Final = 120
_KEY: Final = re.compile(r"[A-Za-z]{1,63}/[a-z0-9.-]{1,253}/[a-z0-9-]{1,63}@[0-9a-f]{12}")


def _clamped(value: object) -> object:
    return min(max(value, 0), MAX_LENGTH) if type(value) is int else value


def _short(value: object) -> object:
    return value[:_MAX_TEXT_LENGTH] if isinstance(value, str) else value


Seconds: TypeAlias = Annotated[int, Before(_clamped)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=10**12)]
Text: TypeAlias = Annotated[str, Before(_short)]


class Times(Model, omit_defaults=True):
    """The latest times in seconds on nodes of one type, the newest last."""

    load: tuple[Seconds, ...] = Field((), max_length=MAX_STARTS)
    """From the start of the container until it was ready."""
    pull: tuple[Seconds, ...] = Field((), max_length=MAX_OTHERS)
    """From the end of the init containers until the container started: volumes and image."""
    ready: tuple[Seconds, ...] = Field((), max_length=MAX_OTHERS)
    """From scheduling until the pod was ready."""


class Ends(Model, omit_defaults=True):
    """The ends of runs with one reason."""

    count: Count
    first: Count
    """Seconds since the epoch."""
    last: Count
    nodes: Annotated[dict[Text, Count], Field(max_length=MAX_NODE_TYPES + 1)] = Field(default_factory=dict)
    """The number of ends by node type, if known."""


class Entry(Model, omit_defaults=True):
    """One container of one workload, with one program and configuration."""

    seen: Count = 0
    """The time of the last observation, in seconds since the epoch."""
    starts: Count = 0
    fresh: Count = 0
    """First starts of pods that found no download of an earlier pod."""
    basis: tuple[Seconds, Count] | None = None
    """The basis of budgets: the slowest start, and the number of fresh starts."""
    killed: Seconds = 0
    """The longest start that a probe ended."""
    nodes: Annotated[dict[Text, Times], Field(max_length=MAX_NODE_TYPES + 1)] = Field(default_factory=dict)
    places: tuple[Annotated[str, Field(max_length=8)], ...] = Field((), max_length=MAX_PLACES)
    """Digests of the places where the container has started: a start in another place is fresh."""
    ends: Annotated[dict[Text, Ends], Field(max_length=MAX_REASONS + 1)] = Field(default_factory=dict)
    memory: Annotated[int, Field(ge=0, le=2**60)] = 0
    """Bytes: the highest memory limit with which a run ended OOMKilled."""

    @property
    def loads(self) -> list[int]:
        """The load times of all node types, ascending."""
        return sorted(seconds for times in self.nodes.values() for seconds in times.load)

    @property
    def slowest(self) -> int:
        """The longest load time; 0 if there is none."""
        return max(self.loads, default=0)


class Observation(Struct, frozen=True):
    namespace: str
    key: str
    """`Deployment/llm/server@3fa9c1d2ab34`: workload, container, and a digest of its configuration."""
    at: int
    """Seconds since the epoch."""
    node_type: str


class ObservedStart(Observation, frozen=True):
    """A start that became ready."""

    load: int
    pull: int | None
    """None if unknown, as for a restart."""
    ready: int | None
    first: bool
    """Whether it is the first start of its pod."""
    place: str
    """The place of a download that an earlier start may have left; empty if there is none."""


class Ended(Observation, frozen=True):
    """A run that ended."""

    reason: str
    """`OOMKilled`, `Evicted`, `StartupProbe`, `Error 1` and so on."""
    after: int = 0
    """Seconds after which a probe ended the start; 0 for other ends."""
    memory: int = 0
    """Bytes of the memory limit, if the run exceeded it."""


class Record:
    """All entries by namespace and key."""

    def __init__(self, namespaces: Mapping[str, Mapping[str, Entry]] | None = None) -> None:
        self.namespaces: dict[str, dict[str, Entry]] = {
            name: dict(entries) for name, entries in (namespaces or {}).items()
        }

    @classmethod
    def load(cls, data: Mapping[str, object], before: Record | None = None) -> Record:
        """The record in a ConfigMap's data. Malformed namespaces are taken from `before`."""
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
        """The data of the ConfigMap; equal for equal records."""
        return {
            namespace: "{"
            + ",".join(f"{json.dumps(key)}:{_dumped(entries[key])}" for key in sorted(entries))
            + "}"
            for namespace, entries in sorted(self.namespaces.items())
            if entries
        }

    def add(self, observations: Iterable[Observation], now: int) -> None:
        """Add observations, and drop old and surplus entries."""
        for each in observations:
            if not _KEY.fullmatch(each.key):
                continue
            entries = self.namespaces.setdefault(each.namespace, {})
            entry = replace(entries.get(each.key, Entry()), seen=min(max(each.at, 0), now))
            if isinstance(each, ObservedStart):
                entry = _with_start(entry, each)
            elif isinstance(each, Ended):
                entry = _with_end(entry, each, now)
            entries[each.key] = entry
        self._prune(now)

    def _prune(self, now: int) -> None:
        for namespace, entries in list(self.namespaces.items()):
            recent = [key for key, each in entries.items() if now - each.seen < KEPT_SECONDS]
            recent.sort(key=lambda key: (entries[key].seen, key))
            if recent:
                self.namespaces[namespace] = {key: entries[key] for key in recent[-MAX_ENTRIES:]}
            else:
                del self.namespaces[namespace]
        sizes = {
            namespace: {key: len(key) + 4 + len(_dumped(each)) for key, each in entries.items()}
            for namespace, entries in self.namespaces.items()
        }
        totals = {namespace: sum(each.values()) + len(namespace) for namespace, each in sizes.items()}
        while sum(totals.values()) > MAX_BYTES:
            largest = max(totals, key=lambda name: (totals[name], name))
            entries = self.namespaces[largest]
            oldest = min(entries, key=lambda key: (entries[key].seen, key))
            totals[largest] -= sizes[largest].pop(oldest)
            del entries[oldest]
            if not entries:
                del self.namespaces[largest], totals[largest]


def _entry(value: object) -> Entry | None:
    try:
        return from_json(Entry, json.dumps(value))
    except ValueError:
        return None


def _dumped(entry: Entry) -> str:
    return msgspec.json.encode(entry).decode()


def _with_start(entry: Entry, start: ObservedStart) -> Entry:
    load = min(start.load, MAX_LENGTH)
    name = _node_type(start.node_type, entry.nodes)
    times = entry.nodes.get(name, Times())
    fresh = start.first and start.place not in entry.places
    loads = times.load
    if fresh or load > max(loads, default=0):
        # Restarts find the downloaded files: only a slower one is evidence for a new pod.
        loads = (*loads, load)[-MAX_STARTS:]
    times = Times(
        load=loads,
        pull=times.pull if start.pull is None else _latest(times.pull, start.pull),
        ready=times.ready if start.ready is None else _latest(times.ready, start.ready),
    )
    places = entry.places
    if start.place and start.place not in places:
        places = (*places, start.place)[-MAX_PLACES:]
    grown = replace(
        entry,
        starts=entry.starts + 1,
        fresh=entry.fresh + fresh,
        nodes={**entry.nodes, name: times},
        places=places,
    )
    killed = 0 if grown.slowest >= grown.killed else grown.killed
    return replace(grown, basis=_basis(grown), killed=killed)


def _node_type(name: str, known: Mapping[str, object]) -> str:
    """The name under which a node type is recorded: `OTHER` if there are too many."""
    name = name[:_MAX_TEXT_LENGTH]
    return name if name in known or len(known) < MAX_NODE_TYPES else OTHER


def _latest(known: tuple[int, ...], seconds: int) -> tuple[int, ...]:
    return (*known, min(seconds, MAX_LENGTH))[-MAX_OTHERS:]


def _basis(entry: Entry) -> tuple[int, int]:
    """The basis of budgets. It changes only if the slowest start differs by more than 25 %, or after twice as
    many starts were seen."""
    slowest, fresh = max(entry.slowest, 1), entry.fresh
    if entry.basis is None:
        return slowest, fresh
    seconds, starts = entry.basis
    if abs(slowest - seconds) > _CHANGED * seconds:
        return slowest, fresh
    return seconds, fresh if fresh >= 2 * starts or starts < MIN_STARTS <= fresh else starts


def _with_end(entry: Entry, end: Ended, now: int) -> Entry:
    reason = end.reason if end.reason in entry.ends or len(entry.ends) < MAX_REASONS else OTHER
    before = entry.ends.get(reason)
    at = min(max(end.at, 0), now)
    nodes = dict(before.nodes) if before else {}
    if end.node_type:
        name = _node_type(end.node_type, nodes)
        nodes[name] = nodes.get(name, 0) + 1
    count, first = (before.count, before.first) if before else (0, at)
    ends = Ends(count=count + 1, first=first, last=at, nodes=nodes)
    return replace(
        entry,
        ends={**entry.ends, reason: ends},
        killed=max(entry.killed, min(end.after, MAX_LENGTH)),
        memory=max(entry.memory, min(end.memory, 2**60)),
    )


def as_config_map(record: Record, namespace: str, name: str, until: int, before: Json | None) -> Json:
    """The ConfigMap with a record; other metadata of `before`, the ConfigMap that it replaces, stays."""
    metadata = dict((before or {}).get("metadata") or {"name": name, "namespace": namespace})
    annotations = dict(metadata.get("annotations") or {})
    metadata["annotations"] = {**annotations, OBSERVED_UNTIL: str(until)}
    labels = {"app.kubernetes.io/name": "mlchassis", "app.kubernetes.io/managed-by": "mlchassis"}
    metadata["labels"] = {**labels, **(metadata.get("labels") or {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": record.dump()}
