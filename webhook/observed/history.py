"""The history of pods in a Prometheus: starts of pods that no longer exist, and results of liveness probes.

Sources: Prometheus' HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api/),
kube-state-metrics (docs/metrics/workload/pod-metrics.md) and the kubelet's /metrics/probes
(pkg/kubelet/prober/prober_manager.go), both scraped with `honor_labels: true`. The kubelet measures the
duration of successful probes only; a probe that times out counts as failed.

Law: a start counts only if all of it is in the window, its container was never restarted, and it ran the
image that runs now. A pod that was unready for a while can lengthen a start; nothing can shorten one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp
from msgspec import Struct, field
from yarl import URL

from policies.kube.objects.metadata import ObjectMeta, OwnerReference
from policies.probes.observed import workload_of
from webhook.errors import UserError, message_of

DAYS: Final = 7
"""The window."""
_BOUNDS: Final = (0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the kubelet's buckets, in seconds."""

Query = Callable[[str], Awaitable[list[tuple[Mapping[str, str], float]]]]
"""Evaluates PromQL to an instant vector: labels and value of each series."""
Key = tuple[str, str, str]
"""Namespace, workload (`Deployment/llm`), container."""


class LivenessResults(Struct):
    """The results of the liveness probes of one container, in all pods of its workload."""

    failed: float = 0.0
    succeeded: float = 0.0
    buckets: defaultdict[float, float] = field(default_factory=lambda: defaultdict(float))
    """The number of successful probes by the upper bound of their duration in seconds, cumulative."""

    @property
    def total(self) -> float:
        return self.failed + self.succeeded

    def slow(self, timeout: int) -> tuple[float, float] | None:
        """The share of successful probes that took longer than a bound, and that bound.

        The bound is the largest bucket between half the timeout and the timeout; None if there is none.
        """
        bound = max((each for each in _BOUNDS if timeout / 2 <= each < timeout), default=None)
        total = self.buckets.get(math.inf, 0.0)
        if bound is None or bound not in self.buckets or not total:
            return None
        return 1 - self.buckets[bound] / total, bound


class ObservedHistory(Struct):
    """Starts and probes by container."""

    starts: defaultdict[tuple[Key, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Seconds from a container's start until its pod was ready, by key and image."""
    liveness: defaultdict[Key, LivenessResults] = field(default_factory=lambda: defaultdict(LivenessResults))


async def history(query: Query, namespace: str) -> ObservedHistory:
    """The history of a namespace's workloads, or of all if it is empty. Raises the errors of `query`."""
    where = f"namespace={json.dumps(namespace)}," if namespace else ""
    controlled = f'{where}owner_is_controller="true"'
    owners = {
        (labels["namespace"], labels["pod"]): (labels["owner_kind"], labels["owner_name"])
        for labels, _ in await query(_last("kube_pod_owner", "pod, owner_kind, owner_name", controlled))
    }
    replica_sets = {
        (labels["namespace"], labels["replicaset"]): f"{labels['owner_kind']}/{labels['owner_name']}"
        for labels, _ in await query(
            _last("kube_replicaset_owner", "replicaset, owner_kind, owner_name", controlled)
        )
    }
    images = {
        (labels["namespace"], labels["pod"], labels["container"]): labels.get("image_spec", "")
        for labels, _ in await query(_last("kube_pod_container_info", "pod, container, image_spec", where))
    }

    def workload(labels: Mapping[str, str]) -> str:
        kind, name = owners.get((labels["namespace"], labels["pod"]), ("", ""))
        if kind == "ReplicaSet" and (labels["namespace"], name) in replica_sets:
            return replica_sets[labels["namespace"], name]
        owners_of_pod = (OwnerReference(controller=True, kind=kind, name=name),) if kind else ()
        return workload_of(ObjectMeta(name=labels["pod"], owner_references=owners_of_pod))

    def key(labels: Mapping[str, str]) -> Key:
        return labels["namespace"], workload(labels), labels["container"]

    found = ObservedHistory()
    for labels, seconds in await query(_starts(where)):
        image = images.get((labels["namespace"], labels["pod"], labels["container"]), "")
        if seconds >= 0:
            found.starts[key(labels), image].append(round(seconds))
    probe = f'{where}probe_type="Liveness"'
    for labels, count in await query(_increase("prober_probe_total", probe, "result")):
        liveness = found.liveness[key(labels)]
        liveness.failed += count if labels["result"] == "failed" else 0
        liveness.succeeded += count if labels["result"] == "successful" else 0
    for labels, count in await query(_increase("prober_probe_duration_seconds_bucket", probe, "le")):
        found.liveness[key(labels)].buckets[float(labels["le"])] += count
    return found


def _last(metric: str, by: str, selector: str) -> str:
    return f"group by (namespace, {by}) (last_over_time({metric}{{{selector}}}[{DAYS}d]))"


def _starts(where: str) -> str:
    """Seconds from the start to readiness of containers that were never restarted."""
    pod, container = "namespace, pod, uid", "namespace, pod, uid, container"

    def over(function: str, metric: str, by: str) -> str:  # several exporters may report one object
        return f"{function} by ({by}) ({function}_over_time({metric}{{{where}}}[{DAYS}d]))"

    began = over("min", "kube_pod_container_state_started", container)
    ready = over("min", "kube_pod_status_ready_time", pod)
    restarts = over("max", "kube_pod_container_status_restarts_total", container)
    return (
        f"-({began} - on ({pod}) group_left () {ready}) "
        f"and on ({container}) {restarts} == 0 "
        f"and on ({container}) {began} > time() - {DAYS * 86_400}"
    )


def _increase(metric: str, selector: str, by: str) -> str:
    return f"sum by (namespace, pod, container, {by}) (increase({metric}{{{selector}}}[{DAYS}d]))"


_TIMEOUT: Final = aiohttp.ClientTimeout(total=120)


async def query_history(url: str, namespace: str) -> ObservedHistory:
    """The history of a namespace's workloads; of all namespaces if empty.

    Raises:
        UserError: the URL is invalid, or no Prometheus answers.
    """
    try:
        base = URL(url)
    except ValueError:
        base = URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise UserError("--prometheus must be an http or https URL, such as http://127.0.0.1:9090")
    where = base.with_user(None)  # keeps the password out of messages

    async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session:

        async def post(query: str) -> list[tuple[Mapping[str, str], float]]:
            try:
                async with session.post(base / "api/v1/query", data={"query": query}) as answer:
                    return _vector(await answer.json(content_type=None))
            except _QueryError as error:
                raise UserError(f"{where}: Prometheus refuses the query: {error}") from None
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise UserError(f"{where} doesn't answer: {message_of(error)}") from None
            except (ValueError, LookupError, TypeError, AttributeError):
                raise UserError(f"{where} doesn't answer like Prometheus") from None

        return await history(post, namespace)


class _QueryError(Exception):
    pass


def _vector(answer: Any) -> list[tuple[Mapping[str, str], float]]:
    if answer["status"] != "success":
        raise _QueryError(answer["error"])
    return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]
