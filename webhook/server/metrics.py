"""The metrics of the webhook. Their names begin with `chassis_`.

Law: every label has a bounded set of values. The label "other" stands for kinds outside the table of
workloads, and for namespaces with findings and unread kinds beyond the first hundred. Object names are in the
log, never in a label.
"""

from __future__ import annotations

import operator
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from sys import getsizeof
from typing import Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from webhook.version import version

disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series and are not needed

OTHER = "other"
"""The label of a kind that is not in the table of workloads, and of requests without a kind."""
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
MAX_NAMESPACES: Final = 100
MAX_UNREAD_KINDS: Final = 100
MAX_PENDING: Final = 256
"""Tallies with counts that are not yet in the counters."""


class Tally:
    """Counters that are incremented together whenever the memo repeats an answer.

    One number collects the increments until the metrics are read or many tallies are pending. If several
    processes share the counters, each increment is written at once: any process may be asked for the sum.
    """

    __slots__ = ("_counters", "_pending", "_shared", "_times")

    def __init__(self, counters: Sequence[Counter], pending: list[Tally]) -> None:
        self._counters, self._pending, self._times = counters, pending, 0
        self._shared = _multiprocess()

    def increment(self) -> None:
        self._times += 1
        if self._shared:
            self.flush()
        elif self._times == 1:
            self._pending.append(self)
            if len(self._pending) >= MAX_PENDING:
                flush(self._pending)

    def flush(self) -> None:
        """Add the increments to the counters."""
        for counter in self._counters:
            counter.inc(self._times)
        self._times = 0

    def __sizeof__(self) -> int:
        """Includes the list of counters, but not the counters, which are shared."""
        return object.__sizeof__(self) + getsizeof(self._counters)


def flush(pending: list[Tally]) -> None:
    """Flush the tallies and empty the list."""
    while pending:
        pending.pop().flush()


M = TypeVar("M")


class _Made(Generic[M]):
    """A row of the table in `Metrics`. Each instance has the metric itself as its attribute of that name."""

    def __init__(
        self, kind: Callable[..., M], name: str, text: str, labels: Sequence[str] = (), **options: object
    ) -> None:
        self.make = partial(kind, name, text, labels, **options)

    def __get__(self, metrics: Metrics, owner: type[Metrics]) -> M:
        # For the type checker: an instance has an attribute of this name, which is found first.
        raise AttributeError("only an instance of Metrics has metrics")


class Metrics:
    """The metrics of one process, in a registry of their own."""

    requests = _Made(
        Counter,
        "chassis_admission_requests",
        "Admission reviews answered; outcome is allowed, changed, warned, denied, failed, rejected or "
        "undecidable (rejected: not a review that can be answered, see the HTTP status; undecidable: "
        "admitted without being read, because it has ended a worker before or has too many values)",
        ("endpoint", "outcome", "kind"),
    )
    seconds = _Made(
        Histogram,
        "chassis_admission_seconds",
        "Time from the first byte of a review to its answer",
        ("endpoint",),
        buckets=LATENCY_BUCKETS,
    )
    in_flight = _Made(
        Gauge, "chassis_admission_in_flight", "Reviews being answered", multiprocess_mode="livesum"
    )
    refused = _Made(
        Counter,
        "chassis_refused",
        "Connections and bodies refused before they became a review: no-handshake, no-http, slow-head, "
        "slow-body, no-room (other bodies took the memory), too-many-connections, answer-not-taken, "
        "not-accepted (no descriptor was free)",
        ("reason",),
    )
    mutations = _Made(
        Counter,
        "chassis_mutations",
        "Objects that a policy changed (mode enforce), or would change (warn, audit)",
        ("policy", "mode"),
    )
    findings = _Made(
        Counter,
        "chassis_findings",
        "Findings of a rule or policy by the mode in which they were answered",
        ("rule", "mode"),
    )
    namespaces = _Made(
        Counter,
        "chassis_namespace_findings",
        "Findings by the namespace of the object; namespaces after the first hundred count as other",
        ("namespace", "mode"),
    )
    not_read = _Made(
        Counter,
        "chassis_not_reviewed",
        "Objects whose pods may not have been read, by how much was read: partly reviewed or not "
        "reviewed; unknown kinds after the first hundred count as other",
        ("kind", "reading"),
    )
    exemptions = _Made(Counter, "chassis_exemptions", "Findings that an exemption let pass", ("rule",))
    errors = _Made(
        Counter,
        "chassis_policy_errors",
        "Policies and rules that raised an error and were left out of a decision",
        ("policy",),
    )
    _memo = _Made(
        Counter,
        "chassis_memo",
        "Reviews answered from the memo of decisions (hit) and decided by the engine (miss); "
        "answers removed to make room (evicted)",
        ("outcome",),
    )
    policy_valid = _Made(
        Gauge,
        "chassis_policy_valid",
        "1 while the policy that was read last is in force, 0 after an invalid edit",
        multiprocess_mode="livemin",
    )
    policy_loaded = _Made(
        Gauge,
        "chassis_policy_loaded_timestamp_seconds",
        "When the policy in force was loaded",
        multiprocess_mode="livemax",
    )
    policy_info = _Made(
        Gauge,
        "chassis_policy_info",
        "1 for the policy in force; equal digests mean that replicas agree",
        ("digest", "profile"),
        multiprocess_mode="livemax",
    )
    certificate_expiry = _Made(
        Gauge,
        "chassis_certificate_expiry_timestamp_seconds",
        "When the serving certificate expires",
        multiprocess_mode="livemin",
    )
    facts_synced = _Made(
        Gauge,
        "chassis_facts_synced",
        "1 while policies and rules know a resource of the cluster",
        ("resource",),
        multiprocess_mode="livemin",
    )
    facts_skipped = _Made(
        Counter,
        "chassis_facts_skipped_total",
        "Objects of the cluster that were left out because a value has the wrong type",
        ("resource",),
    )
    oldest_kubelet = _Made(
        Gauge,
        "chassis_oldest_kubelet_minor",
        "Minor version of the oldest kubelet, 0 while unknown; features that it lacks aren't injected",
        multiprocess_mode="livemostrecent",
    )

    def __init__(
        self,
        kinds: Iterable[str] = (),
        restarts: Callable[[], Mapping[str, int]] = dict,
        processes: Callable[[], Iterable[int]] = lambda: [os.getpid()],
        fast_path: Callable[[], bool] = lambda: False,
    ) -> None:
        """`restarts`: worker restarts by reason. `processes`: ids of the supervisor and its workers.
        `fast_path`: whether it is on."""
        self.registry = CollectorRegistry()
        self._kinds = frozenset(kinds)
        self._pending: list[Tally] = []
        # Equal in all workers, so they are not summed up.
        self._common = (
            _Collected(_build),
            _Collected(partial(_restarts, restarts)),
            _Collected(partial(_processes, processes)),
            _Collected(partial(_fast_path, fast_path)),
        )
        # The first one has no metrics of its own: it brings the counters up to date before they are read.
        for collector in (_Collected(self._flush), *self._common):
            self.registry.register(collector)
        for attribute, row in vars(Metrics).items():
            if isinstance(row, _Made):
                vars(self)[attribute] = row.make(registry=self.registry)
        self._children: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        self._namespaces: set[str] = set()
        self._unread_kinds: set[str] = set()
        self._memo_tallies = {
            each: self.tally([self._memo.labels(each)]) for each in ("hit", "miss", "evicted")
        }

    def request(self, endpoint: str, outcome: str, kind: str) -> None:
        """Count an answered review."""
        self.of_request(endpoint, outcome, kind).inc()

    def of_request(self, endpoint: str, outcome: str, kind: str) -> Counter:
        return self._counter(self.requests, endpoint, outcome, kind if kind in self._kinds else OTHER)

    def of_mutation(self, policy: str, mode: str) -> Counter:
        return self._counter(self.mutations, policy, mode)

    def of_finding(self, rule: str, mode: str, namespace: str) -> Sequence[Counter]:
        """The two counters of a finding."""
        label = _bounded(namespace, self._namespaces, MAX_NAMESPACES)
        return self._counter(self.findings, rule, mode), self._counter(self.namespaces, label, mode)

    def of_not_read(self, kind: str, reading: str) -> Counter:
        """The counter of objects that were not read completely; `kind` includes the group."""
        return self._counter(self.not_read, _bounded(kind, self._unread_kinds, MAX_UNREAD_KINDS), reading)

    def of_exemption(self, rule: str) -> Counter:
        return self._counter(self.exemptions, rule)

    def _counter(self, counter: Counter, *labels: str) -> Counter:
        # Calling `labels` costs more than counting.
        child = self._children.get((counter, labels))
        if child is None:
            child = self._children[counter, labels] = counter.labels(*labels)
        return child

    def tally(self, counters: Sequence[Counter]) -> Tally:
        return Tally(counters, self._pending)

    def _flush(self) -> Iterator[Metric]:
        flush(self._pending)
        yield from ()

    def memo(self, outcome: str) -> None:
        """Count a hit, miss or eviction of the memo."""
        self._memo_tallies[outcome].increment()

    def policy_in_force(self, digest: str, profile: str) -> None:
        """Record that a policy was loaded."""
        for labels in [sample.labels for family in self.policy_info.collect() for sample in family.samples]:
            self.policy_info.labels(**labels).set(0)
            if not _multiprocess():  # in this mode prometheus_client can't remove a series
                self.policy_info.remove(*labels.values())
        self.policy_info.labels(digest, profile).set(1)
        self.policy_loaded.set(time.time())
        self.policy_valid.set(1)

    def policy_refused(self) -> None:
        """Record that the policy read last is not in force."""
        self.policy_valid.set(0)

    def render(self) -> bytes:
        """Prometheus' text format, of all workers together."""
        if not _multiprocess():
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        for collector in self._common:
            together.register(collector)
        return generate_latest(together)


def _bounded(value: str, known: set[str], most: int) -> str:
    """The value as a label: itself if it is one of the first `most` values, else "other"."""
    if len(known) < most:
        known.add(value)
    return value if value in known else OTHER


class _Collected(Collector):
    """A collector made of a function."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()


def _restarts(counts: Callable[[], Mapping[str, int]]) -> Iterator[Metric]:
    """The supervisor counts these and serves no metrics."""
    family = CounterMetricFamily(
        "chassis_worker_restarts",
        "Worker processes restarted; reason is hung (a review took too long), stalled (its event loop "
        "stopped) or died",
        labels=("reason",),
    )
    for reason, count in counts().items():
        family.add_metric((reason,), count)
    yield family


def _build() -> Iterator[Metric]:
    labels = {"version": version(), "python": platform.python_version()}
    yield InfoMetricFamily("chassis_build", "The running version", value=labels)


def _fast_path(on: Callable[[], bool]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "chassis_fast_path",
        "1 while answers may come from the fast path, 0 while aiohttp and the engine give all of them",
        on(),
    )


def _processes(ids: Callable[[], Iterable[int]]) -> Iterator[Metric]:
    """Memory, CPU and descriptors of the supervisor and its workers together, under the usual names."""
    found: dict[str, Metric] = {}
    for process in ids():
        for family in ProcessCollector(pid=partial(int, process), registry=None).collect():
            total = found.setdefault(family.name, family)
            if total is not family:
                combine = _COMBINE.get(family.name, operator.add)
                value = combine(total.samples[0].value, family.samples[0].value)
                total.samples[0] = total.samples[0]._replace(value=value)
    yield from found.values()


_COMBINE: Final = {"process_start_time_seconds": min, "process_max_fds": min}
"""How values of several processes are combined if not by addition."""


def remove_gauges(pid: int) -> None:
    """Remove the gauges of a worker that has exited. Its counters stay."""
    if _multiprocess():
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _multiprocess() -> bool:
    """Whether several workers share their counters (see `webhook.server.main`)."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ
