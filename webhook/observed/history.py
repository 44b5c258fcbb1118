"""What a Prometheus keeps of pods: starts of those that are gone, and what kubelet's liveness probes took.

Sources: kube-state-metrics (docs/metrics/workload/pod-metrics.md) and kubelet's /metrics/probes
(pkg/kubelet/prober/prober_manager.go), both scraped with `honor_labels: true`. Kubelet measures the probes
that succeed; one that times out is counted as failed only.

Law: a start counts only if the whole of it is in the window, its container was never restarted, and it ran
the image that runs now. A pod that was unready for a while can lengthen a start; nothing can shorten one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from policies.kube.json import Json
from webhook.observed.pods import workload_of

DAYS: Final = 7
"""The window."""
_BOUNDS: Final = (0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of kubelet's buckets, in seconds."""

Query = Callable[[str], Awaitable[list[tuple[Mapping[str, str], float]]]]
"""Asks in PromQL for an instant vector: labels and value of each series."""


@dataclass(slots=True)
class Liveness:
    """The liveness probes of one container of a workload, of all its pods."""

    failed: float = 0.0
    succeeded: float = 0.0
    within: defaultdict[float, float] = field(default_factory=lambda: defaultdict(float))
    """How many of those that succeeded took no longer, by seconds."""

    @property
    def asked(self) -> float:
        return self.failed + self.succeeded

    def slow(self, timeout: int) -> tuple[float, float] | None:
        """The share of answers that took longer than a time of half the timeout or more, and that time.

        None if no bucket ends there.
        """
        bound = max((each for each in _BOUNDS if timeout / 2 <= each < timeout), default=None)
        every = self.within.get(math.inf, 0.0)
        if bound is None or bound not in self.within or not every:
            return None
        return 1 - self.within[bound] / every, bound


@dataclass(slots=True)
class History:
    """Starts and probes, by (namespace, `Deployment/llm`, container)."""

    starts: defaultdict[tuple[str, str, str, str], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Seconds from a container's start until its pod was ready; the last part of the key is the image."""
    liveness: defaultdict[tuple[str, str, str], Liveness] = field(
        default_factory=lambda: defaultdict(Liveness)
    )


async def history(ask: Query, namespace: str) -> History:
    """The history of a namespace's workloads, or with "" of all; errors are those of `ask`."""
    where = f"namespace={json.dumps(namespace)}," if namespace else ""
    owners = {
        (labels["namespace"], labels["pod"]): (labels["owner_kind"], labels["owner_name"])
        for labels, _ in await ask(
            f"group by (namespace, pod, owner_kind, owner_name) (last_over_time(kube_pod_owner{{{where}"
            f'owner_is_controller="true"}}[{DAYS}d]))'
        )
    }
    sets = {
        (labels["namespace"], labels["replicaset"]): f"{labels['owner_kind']}/{labels['owner_name']}"
        for labels, _ in await ask(
            "group by (namespace, replicaset, owner_kind, owner_name) (last_over_time("
            f'kube_replicaset_owner{{{where}owner_is_controller="true"}}[{DAYS}d]))'
        )
    }

    def workload(labels: Mapping[str, str]) -> str:
        kind, name = owners.get((labels["namespace"], labels["pod"]), ("", ""))
        if kind == "ReplicaSet" and (labels["namespace"], name) in sets:
            return sets[labels["namespace"], name]
        metadata: Json = {"name": labels["pod"]}
        if kind:
            metadata["ownerReferences"] = [{"controller": True, "kind": kind, "name": name}]
        return workload_of({"metadata": metadata})

    found = History()
    images = {
        (labels["namespace"], labels["pod"], labels["container"]): labels.get("image_spec", "")
        for labels, _ in await ask(
            "group by (namespace, pod, container, image_spec) (last_over_time("
            f"kube_pod_container_info{{{where}}}[{DAYS}d]))"
        )
    }
    for labels, seconds in await ask(_starts(where)):
        key = labels["namespace"], labels["pod"], labels["container"]
        if seconds >= 0:
            found.starts[key[0], workload(labels), key[2], images.get(key, "")].append(round(seconds))
    total, buckets = "prober_probe_total", "prober_probe_duration_seconds_bucket"
    probe = f'{where}probe_type="Liveness"'
    for labels, count in await ask(_summed(total, probe, "result")):
        of = found.liveness[labels["namespace"], workload(labels), labels["container"]]
        of.failed += count if labels["result"] == "failed" else 0
        of.succeeded += count if labels["result"] == "successful" else 0
    for labels, count in await ask(_summed(buckets, probe, "le")):
        of = found.liveness[labels["namespace"], workload(labels), labels["container"]]
        of.within[float(labels["le"])] += count
    return found


def _starts(where: str) -> str:
    """Seconds from the start to the first readiness of containers that were never restarted."""
    pod, container = "namespace, pod, uid", "namespace, pod, uid, container"

    def over(function: str, metric: str, by: str) -> str:  # several exporters may show one object
        return f"{function} by ({by}) ({function}_over_time({metric}{{{where}}}[{DAYS}d]))"

    began = over("min", "kube_pod_container_state_started", container)
    ready = over("min", "kube_pod_status_ready_time", pod)
    restarts = over("max", "kube_pod_container_status_restarts_total", container)
    return (
        f"-({began} - on ({pod}) group_left () {ready}) "
        f"and on ({container}) {restarts} == 0 "
        f"and on ({container}) {began} > time() - {DAYS * 86_400}"
    )


def _summed(metric: str, selector: str, by: str) -> str:
    return f"sum by (namespace, pod, container, {by}) (increase({metric}{{{selector}}}[{DAYS}d]))"
