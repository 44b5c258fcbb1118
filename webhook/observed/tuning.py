"""Verdicts on the probes and limits of running workloads, by their observed starts and ends.

Law: no proposal without evidence. A budget is wrong only if probes ended starts, if the slowest observed
start is close to it, or if it is many times the slowest of at least five.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, field

from policies.core.annotations import CHECKPOINT, EXPECTED_START
from policies.core.facts import Cluster
from policies.core.reasons import in_words
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.names import is_label_key
from policies.kube.objects.metadata import Part
from policies.kube.objects.pods import PodState, PodStatus
from policies.kube.objects.reading import readable
from policies.kube.pods import Container
from policies.probes.observed import MIN_STARTS, workload_of
from webhook.admission.changed_annotation import Changed
from webhook.admission.configuration import Config
from webhook.admission.printable import printable
from webhook.admission.review import Context
from webhook.observed.pods import (
    KILLED,
    STARTUP_PROBE,
    counted_containers,
    first_ready,
    needs_answer,
    readiness_ends_start,
    record_key,
    start_limit,
)
from webhook.observed.record import Ends, Entry, Record

FINE: Final = "fine"
NOTHING_KNOWN: Final = "no start is known yet"
EXCESS: Final = 10
"""A budget is too long if it is more than so many times the slowest start, and at least an hour."""
_HOUR: Final = 3600
_MARGIN: Final = 1.5
"""A budget is too short if it is less than so many times the slowest start."""
_MIN_EXPECTED: Final = 200
"""The minimum of the annotation in seconds: three times that is 10 minutes."""
_EVICTIONS: Final = 3
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
_FAILED: Final = re.compile(r"Container (?P<name>\S+) failed (?P<probe>startup|liveness) probe")
"""The message of kubelet's Events with the reason Killing."""


class Row(Struct, frozen=True):
    """One container of one workload."""

    namespace: str
    workload: str
    """`Deployment/llm`."""
    container: str
    budget: int
    """The maximum of a start in seconds; 0 if no probe ends one."""
    injected: bool
    loads: tuple[int, ...]
    """Seconds of the known starts, ascending."""
    starts: int
    kills: Mapping[str, int]
    """Restarts by probe: `startup`, `liveness`."""
    ends: Mapping[str, int]
    places: Mapping[str, Mapping[str, int]]
    """Ends by reason and node type, as far as it is known."""
    memory: int
    """Bytes: the highest limit with which a run ended OOMKilled."""
    verdicts: tuple[str, ...]
    annotation: tuple[str, str] | None = None
    """The proposed annotation of the pod template, if any."""
    startup_failures: int | None = None
    """The proposed failureThreshold of a startupProbe that the author set, if any."""

    @property
    def slowest(self) -> int | None:
        return self.loads[-1] if self.loads else None

    @property
    def proposal(self) -> str:
        """The proposed change of the pod template in words; empty if there is none."""
        if self.annotation:
            key, value = self.annotation
            return f"annotation {key}: {value}"
        if self.startup_failures:
            return f"startupProbe.failureThreshold: {self.startup_failures}"
        return ""

    def percentile(self, part: float) -> int | None:
        """A percentile of the load times; `part` is 0.5 for the median."""
        return self.loads[min(int(part * len(self.loads)), len(self.loads) - 1)] if self.loads else None

    def as_json(self) -> Json:
        return {
            "namespace": self.namespace,
            "workload": self.workload,
            "container": self.container,
            "budgetSeconds": self.budget or None,
            "budgetBy": ("mlchassis" if self.injected else "author") if self.budget else None,
            "observed": {
                "starts": self.starts,
                "p50": self.percentile(0.5),
                "p99": self.percentile(0.99),
                "max": self.slowest,
            },
            "restartsByProbe": dict(self.kills),
            "ends": dict(self.ends),
            "endsByNodeType": {reason: dict(places) for reason, places in self.places.items()},
            "memoryLimitBytes": self.memory or None,
            "verdicts": list(self.verdicts),
            "annotation": dict([self.annotation]) if self.annotation else None,
            "failureThreshold": self.startup_failures,
        }


class _Group(Struct):
    """The pods of one workload with one of their containers."""

    pod: Json
    container: Container
    entry: Entry
    completes: bool
    loads: list[int] = field(default_factory=list)
    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)


class _Regarding(Part):
    namespace: str = ""
    name: str = ""


class _Series(Part):
    count: int = 1


class _Event(Part):
    """An Event about a pod."""

    message: str = ""
    involved_object: _Regarding = _Regarding()
    count: int = 1
    series: _Series = _Series()

    @property
    def times(self) -> int:
        """How often it happened."""
        return max(self.count, self.series.count)


def rows(
    pods: Iterable[Json],
    events: Iterable[Json],
    record: Record,
    config: Config,
    cluster: Cluster,
) -> list[Row]:
    """A row for each main container that serves or runs to completion, worst first."""
    groups: dict[tuple[str, str, str], _Group] = {}
    workloads: dict[tuple[str, str], str] = {}
    # The newest pod of a workload comes first: it has the budget in force.
    for pod, state in sorted(_states(pods), key=_created, reverse=True):
        namespace = state.metadata.namespace
        if not config.webhook.namespaces.covers(namespace):
            continue
        workload = workloads[namespace, state.name] = workload_of(state.metadata)
        facts = Context.of(pod, namespace, config, cluster).facts
        for container in counted_containers(pod, facts):
            key = namespace, workload, container.name
            if key not in groups:
                entry = record.namespaces.get(namespace, {}).get(record_key(pod, container, facts), Entry())
                groups[key] = _Group(pod, container, entry, facts.view(pod).completes)
            groups[key].starts += _has_started(state.status, container)
            if needs_answer(container.typed.readiness_probe) or readiness_ends_start(container):
                load = first_ready(state.status, container)
                if load is not None:
                    groups[key].loads.append(load)
    for event in events:
        failure = readable(event, _Event)
        found = None if failure is None else _FAILED.search(failure.message)
        if failure is None or found is None:
            continue
        namespace = failure.involved_object.namespace
        workload = workloads.get((namespace, failure.involved_object.name), "")
        if (group := groups.get((namespace, workload, found["name"]))) is not None:
            group.kills[found["probe"]] += failure.times
    made = [_row(key, group) for key, group in groups.items()]
    return sorted(
        made,
        key=lambda row: (
            row.verdicts in ((FINE,), (NOTHING_KNOWN,)),
            row.namespace,
            row.workload,
            row.container,
        ),
    )


class _Starts(Struct, frozen=True):
    """What is known about the starts of a group."""

    budget: int
    injected: bool
    loads: tuple[int, ...]
    count: int
    kills: Mapping[str, int]
    """Restarts by probe."""

    @classmethod
    def of(cls, group: _Group) -> _Starts:
        entry, container = group.entry, group.container
        known = entry.loads or group.loads
        ends = {reason: each.count for reason, each in entry.ends.items()}
        kills = {
            "startup": max(group.kills["startup"], ends.get(STARTUP_PROBE, 0)),
            "liveness": max(group.kills["liveness"], ends.get(KILLED, 0)),
        }
        recorded = max(entry.starts, sum(ends.values())) if group.completes else entry.starts
        return cls(
            start_limit(container),
            _is_injected(group.pod, container),
            tuple(sorted(known)),
            max(recorded, group.starts) + kills["startup"],
            kills,
        )

    def judged(self, longest_killed: int) -> tuple[str, int]:
        """What is wrong with the budget, and the start in seconds that it should be made for; an empty text
        and 0 if it fits."""
        budget, slowest = self.budget, self.loads[-1] if self.loads else 0
        if self.kills["startup"]:
            wanted = max(slowest, longest_killed, budget // 3 if self.injected else budget)
            return f"the startup probe killed {self.kills['startup']} of {self.count} starts", wanted
        if budget and slowest and budget < _MARGIN * slowest:
            return f"the slowest start took {slowest} s of {budget} s", slowest
        if budget >= _HOUR and len(self.loads) >= MIN_STARTS and budget > EXCESS * slowest:
            return f"a hung start would last {in_words(budget)}", max(slowest, 1)
        return "", 0


def _row(key: tuple[str, str, str], group: _Group) -> Row:
    """`key`: namespace, workload, container."""
    entry, container = group.entry, group.container
    starts = _Starts.of(group)
    wrong, wanted = starts.judged(entry.killed)
    verdicts = [wrong] if wrong else []
    if starts.kills["liveness"]:
        verdicts.append(f"the liveness probe restarted it {starts.kills['liveness']} times")
    if not group.completes and not any(map(container.spec.get, _PROBES)):
        verdicts.append("it has no probes, so a hang isn't noticed")
    verdicts += _end_verdicts(group)
    known = starts.count or starts.loads or entry.ends
    expected = max(wanted, _MIN_EXPECTED) if wanted else 0
    startup = container.typed.startup_probe
    return Row(
        *key,
        starts.budget,
        starts.injected,
        starts.loads,
        starts.count,
        {probe: count for probe, count in starts.kills.items() if count},
        {reason: each.count for reason, each in entry.ends.items()},
        {reason: each.nodes for reason, each in entry.ends.items() if each.nodes},
        entry.memory,
        tuple(verdicts) or (FINE if known else NOTHING_KNOWN,),
        (_annotation_key(container.name), f"{expected}s") if expected and starts.injected else None,
        -(-3 * expected // startup.period) if expected and startup and not starts.injected else None,
    )


def _end_verdicts(group: _Group) -> Iterator[str]:
    entry = group.entry
    runs = sum(each.count for each in entry.ends.values()) if group.completes else entry.starts
    killed = entry.ends.get("OOMKilled")
    if killed is not None:
        at = f" at {entry.memory / 2**30:.3g} GiB" if entry.memory else ""
        share = f"{killed.count} of {max(runs, killed.count)} runs"
        yield f"{share} ended OOMKilled{at}{_node_types(killed)}: raise the memory limit"
    for reason in ("Evicted", "Preempted", "NodeLost"):
        ends = entry.ends.get(reason)
        if ends is not None and ends.count >= _EVICTIONS and group.completes:
            since = datetime.fromtimestamp(ends.first, UTC).date()
            advice = f", and {CHECKPOINT} names no checkpoint: write checkpoints and name them"
            shown = "" if CHECKPOINT in annotations_of(group.pod) else advice
            yield f"{reason} {ends.count} times since {since}{_node_types(ends)}{shown}"


def _node_types(ends: Ends) -> str:
    """The node types of ends, the most frequent first: ` (A100 11, T4 1)`."""
    found = sorted(ends.nodes.items(), key=lambda each: (-each[1], each[0]))
    return f" ({', '.join(f'{printable(name)} {count}' for name, count in found)})" if found else ""


def _states(pods: Iterable[Json]) -> Iterator[tuple[Json, PodState]]:
    """The pods that can be read, each with its state."""
    for pod in pods:
        state = readable(pod, PodState)
        if state is not None:
            yield pod, state


def _created(pod: tuple[Json, PodState]) -> str:
    return pod[1].metadata.creation_timestamp


def _has_started(pod: PodStatus, container: Container) -> bool:
    """Whether the pod shows a run of the container."""
    return any(status.has_run for status in pod.container_statuses if status.name == container.name)


def _is_injected(pod: Json, container: Container) -> bool:
    """Whether the webhook set the probe that ends a start.

    The liveness probe ends one only if there is no startupProbe.
    """
    changed = Changed.of(pod)
    probe = "livenessProbe" if container.spec.get("startupProbe") is None else "startupProbe"
    return changed is not None and f"{container.path}.{probe}" in {each.path for each in changed.entries}


def _annotation_key(container: str) -> str:
    """The annotation's key for one container, or for all if that one is too long for the API server."""
    own = f"{EXPECTED_START}.{container}"
    return own if is_label_key(own) else EXPECTED_START
