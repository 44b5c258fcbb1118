"""Starts and ends of containers, from the statuses of pods.

Law: ambiguous times are not recorded. A condition of a pod contains its last change only, which is not its
first readiness if it was unready in between. So a container that was already started or ready when its pod
was first observed is skipped, unless it started after the last complete observation. Both ends of a load time
come from one node's clock; a clock that jumped back gives a negative time, which is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from policies.core.facts import Cluster, Facts, find_by_name
from policies.core.resources import Resource
from policies.jobs.jobs import DISRUPTION_TARGET
from policies.kube import quantities as units
from policies.kube.json import Json, dig, integer, mapping, maps, text
from policies.kube.metadata import labels_of
from policies.kube.pods import Container, Role, port_number
from policies.probes.endpoints import server_port
from policies.probes.liveness_program import watched_start
from policies.probes.observed import place_of, run_of, workload_of
from policies.probes.serving import serving_containers
from policies.probes.standard_probes_settings import Learning, StandardProbes
from policies.probes.startup_budget import declared_size
from webhook.admission.configuration import Config
from webhook.admission.review import of_running
from webhook.kube.times import seconds_of
from webhook.observed.record import Ended, Observation, ObservedStart

NODE_TYPE_LABELS: Final = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "node.kubernetes.io/instance-type",
)
"""Labels of nodes; the first that exists is the node type."""
_READY: Final = "ContainersReady"
STARTUP_PROBE: Final = "StartupProbe"
KILLED: Final = "Killed"
"""A signal ended a ready container of a pod that stayed, usually because of its livenessProbe."""
_SIGNALS: Final = (137, 143)
_DISRUPTIONS: Final[Mapping[str, str]] = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
}
"""Reasons of the condition DisruptionTarget."""
_SLACK_SECONDS: Final = 60
"""Kubelet's delays: a start that a probe ends may last so much longer than its budget and grace period."""


class _Pod(Struct):
    """The observations that were made of one pod."""

    started: dict[str, str] = field(default_factory=dict)
    """By container: the run whose start was recorded or skipped."""
    ended: dict[str, str] = field(default_factory=dict)
    """By container: the time of its last recorded end."""
    disrupted: bool = False


class PodTracker:
    """Finds new starts and ends in the statuses of a cluster's pods."""

    def __init__(self, config: Callable[[], Config], cluster: Cluster, since: float) -> None:
        """`since`: everything before is recorded, in seconds since the epoch."""
        self._config, self._cluster, self._since = config, cluster, since
        self._pods: dict[str, _Pod] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def forget(self, uid: str) -> None:
        """The pod is deleted."""
        self._pods.pop(uid, None)

    def keep_only(self, uids: set[str]) -> None:
        """All other pods are deleted."""
        self._pods = {uid: pod for uid, pod in self._pods.items() if uid in uids}

    def observe(self, pod: Json) -> UnreadPod | None:
        """The starts and ends of a pod that were not yet recorded, if there are any. Only its status is
        read."""
        uid, namespace = text(pod, "metadata", "uid"), text(pod, "metadata", "namespace")
        if not uid or not namespace or not self._config().webhook.namespaces.covers(namespace):
            return None
        first = uid not in self._pods
        known = self._pods.setdefault(uid, _Pod())
        started: list[tuple[str, Json, float]] = []
        ended: list[tuple[str, Json]] = []
        disruption = _disruption(pod)
        deleted = bool(dig(pod, "metadata", "deletionTimestamp"))
        leaving = bool(disruption) or deleted
        for status in maps(pod, "status", "containerStatuses"):
            name = text(status, "name")
            ended += [(name, each) for each in self._ends(known, first, status) if not leaving]
            at = self._start(known, first, pod, status)
            if at is not None and not deleted:  # pods with a forged owner are deleted soon
                started.append((name, status, at))
        disrupted = bool(disruption) and not known.disrupted
        known.disrupted = known.disrupted or bool(disruption)
        if first and disrupted and (_ended_at(pod) or 0) < self._since:
            disrupted = False
        if not (started or ended or disrupted):
            return None
        reason = disruption if disrupted else ""
        return UnreadPod(pod, namespace, self._config(), self._cluster, started, ended, reason)

    def _start(self, known: _Pod, first: bool, pod: Json, status: Json) -> float | None:
        """When a container became ready, if that start was not yet recorded."""
        name = text(status, "name")
        run = _run_id(status, mapping(status, "state", "running"))
        began = seconds_of(text(status, "state", "running", "startedAt"))
        if began is None or known.started.get(name) == run:
            return None
        ready = status.get("ready") is True
        if first and began < self._since and (ready or status.get("started") is True):
            known.started[name] = run  # it may have been ready before
            return None
        at = _true_since(pod, _READY)
        if not ready or at is None:
            return None
        known.started[name] = run
        return at if at >= began else None

    def _ends(self, known: _Pod, first: bool, status: Json) -> Iterator[Json]:
        """The ends of a container that were not yet recorded, the older one first."""
        name = text(status, "name")
        for state in ("lastState", "state"):
            end = mapping(status, state, "terminated")
            finished = text(end, "finishedAt")
            at = seconds_of(finished)
            if at is None or finished <= known.ended.get(name, ""):
                continue
            known.ended[name] = finished
            if not first or at >= self._since:
                yield {**end, "wasReady": known.started.get(name) == _run_id(end, end)}


class UnreadPod(Struct, frozen=True):
    """New starts and ends of a pod whose containers were not read yet."""

    pod: Json
    namespace: str
    config: Config
    cluster: Cluster
    started: list[tuple[str, Json, float]]
    ended: list[tuple[str, Json]]
    disruption: str

    def observations(self) -> list[Observation]:
        """What they mean. One budget pays for the whole pod, as in a review; a pod that exceeds it, or that
        has a value of a wrong type, has no observations."""
        read = of_running(self.pod, self.config, self.cluster)
        if read is None:
            return []
        template, facts = read
        found = _Observations(template.pod, self.namespace, facts)
        return list(found.all(self.started, self.ended, self.disruption))


class _Observations:
    def __init__(self, pod: Json, namespace: str, facts: Facts) -> None:
        self._pod, self._namespace, self._facts = pod, namespace, facts
        self._view = facts.view(pod)
        self._node_type = node_type(text(pod, "spec", "nodeName"), facts.cluster)

    def all(
        self, started: list[tuple[str, Json, float]], ended: list[tuple[str, Json]], disruption: str
    ) -> Iterator[Observation]:
        if self._facts.settings(StandardProbes).learning is Learning.OFF:
            return
        counted = {each.name: each for each in counted_containers(self._pod, self._facts)}
        mains = {each.name: each for each in self._view.containers if each.role is Role.MAIN}
        for name, end in ended:
            if name in counted:
                yield self._ended(counted[name], end)
        for name, status, at in started:
            if name in mains and readiness_ends_start(mains[name]) and self._asks_itself(mains[name]):
                yield self._started(mains[name], status, at)
        if disruption and counted:
            container, at = next(iter(counted.values())), int(_ended_at(self._pod) or 0)
            yield Ended(self._namespace, self._key(container), at, self._node_type, disruption)

    def _asks_itself(self, container: Container) -> bool:
        """Whether the probe that ends its start asks the container's own server, as far as ports show it: a
        probe may ask every port of the pod."""
        probe = start_probe(container)
        action = next((mapping(probe, kind) for kind in ("httpGet", "grpc") if kind in (probe or {})), {})
        port = port_number(container.typed, action.get("port"))
        server = self._facts.settings(StandardProbes).recogniser.server(container)
        known = server_port(container, server) if server is not None else None
        others = (each.tcp_ports for each in self._view.containers if each.name != container.name)
        if any(port in ports for ports in others):
            return False
        return known in (None, port) or port in container.tcp_ports

    def _key(self, container: Container) -> str:
        return record_key(self._pod, container, self._facts)

    def _started(self, container: Container, status: Json, at: float) -> ObservedStart:
        began = seconds_of(text(status, "state", "running", "startedAt")) or at
        first = integer(status, "restartCount", default=0) == 0
        initialised = _true_since(self._pod, "Initialized") if first else None
        scheduled = _true_since(self._pod, "PodScheduled") if first else None
        return ObservedStart(
            self._namespace,
            self._key(container),
            int(at),
            self._node_type,
            load=round(at - began),
            pull=_between(initialised, began),
            ready=_between(scheduled, at),
            first=first,
            place=place_of(self._pod, container),
        )

    def _ended(self, container: Container, end: Json) -> Ended:
        reason, code = text(end, "reason"), integer(end, "exitCode", default=-1)
        began, finished = seconds_of(text(end, "startedAt")), seconds_of(text(end, "finishedAt"))
        lasted = (finished or 0) - (began or finished or 0)
        budget = start_limit(container)
        after = memory = 0
        if reason == "OOMKilled":
            memory = units.bytes_or_zero(mapping(container.spec, "resources", "limits").get("memory"))
        elif reason not in ("Completed", "DeadlineExceeded") or code:
            slack = _SLACK_SECONDS + integer(self._pod, "spec", "terminationGracePeriodSeconds", default=30)
            if not end["wasReady"] and budget and budget <= lasted <= budget + slack:
                reason, after = STARTUP_PROBE, round(lasted)
            elif end["wasReady"] and code in _SIGNALS and not self._view.completes:
                reason = KILLED
            else:
                reason = f"Error {code}"
        return Ended(
            self._namespace,
            self._key(container),
            int(finished or 0),
            self._node_type,
            reason,
            after=after,
            memory=memory,
        )


def counted_containers(pod: Json, facts: Facts) -> list[Container]:
    """The main containers whose runs are recorded: those that serve or run to completion."""
    view = facts.view(pod)
    serving = {each.name for each in serving_containers(view, facts)}
    return [
        each
        for each in view.containers
        if each.role is Role.MAIN and (view.completes or each.name in serving)
    ]


def record_key(pod: Json, container: Container, facts: Facts) -> str:
    """The key of a container's entry in the record."""
    size = declared_size(facts.view(pod), container, facts)[0] or 0
    return f"{workload_of(pod)}/{container.name}@{run_of(pod, container, size)}"


def readiness_ends_start(container: Container) -> bool:
    """Whether the container is ready only after its start: a probe needs an answer from the server.

    An open port or a successful command may come long before.
    """
    return needs_answer(start_probe(container))


def start_probe(container: Container) -> Json | None:
    """The probe that ends a container's start: the startupProbe, or readiness if liveness watches the
    start."""
    probe = container.spec.get("startupProbe")
    if probe is None and watched_start(container.spec.get("livenessProbe")):
        probe = container.spec.get("readinessProbe")
    return probe if isinstance(probe, dict) else None


def needs_answer(probe: object) -> bool:
    """Whether a probe succeeds only if the server answers a request."""
    return isinstance(probe, dict) and bool({"httpGet", "grpc"} & probe.keys())


def start_limit(container: Container) -> int:
    """Seconds after which a probe ends a start; 0 if none does."""
    if (startup := container.typed.startup_probe) is not None:
        return startup.startup_deadline
    return watched_start(container.spec.get("livenessProbe"))


def node_type(name: str, cluster: Cluster) -> str:
    """The accelerator or the instance type of a node; empty if unknown."""
    labels = labels_of(find_by_name(cluster.listing(Resource.NODES), name) or {})
    return next((str(labels[key]) for key in NODE_TYPE_LABELS if labels.get(key)), "")


def _run_id(named: Json, state: Json) -> str:
    """An identifier of one run of a container."""
    return text(named, "containerID") or text(state, "startedAt")


def _true_since(pod: Json, condition: str) -> float | None:
    """The time since which a condition of the pod is true."""
    for each in maps(pod, "status", "conditions"):
        if each.get("type") == condition and each.get("status") == "True":
            return seconds_of(text(each, "lastTransitionTime"))
    return None


def _between(began: float | None, ended: float) -> int | None:
    return round(ended - began) if began is not None and ended >= began else None


def _disruption(pod: Json) -> str:
    """Why the pod was disrupted; empty if it was not."""
    reason = text(pod, "status", "reason")
    if reason in ("Evicted", "Preempted", "DeadlineExceeded"):
        return reason
    for each in maps(pod, "status", "conditions"):
        if each.get("type") == DISRUPTION_TARGET and each.get("status") == "True":
            return _DISRUPTIONS.get(text(each, "reason"), "Evicted")
    return ""


def _ended_at(pod: Json) -> float | None:
    """When a pod was disrupted, or its last container ended."""
    disrupted = _true_since(pod, DISRUPTION_TARGET)
    if disrupted is not None:
        return disrupted
    statuses = maps(pod, "status", "containerStatuses")
    ends = [seconds_of(text(each, "state", "terminated", "finishedAt")) for each in statuses]
    started = seconds_of(text(pod, "status", "startTime"))
    return max((each for each in ends if each is not None), default=started)


def first_ready(pod: Json, container: Container) -> int | None:
    """The maximum of the seconds from a container's first start until its pod was ready: the pod's condition
    contains the last change only. None for restarts, and if it is not ready."""
    for status in maps(pod, "status", "containerStatuses"):
        if text(status, "name") == container.name and not integer(status, "restartCount", default=0):
            began = seconds_of(text(status, "state", "running", "startedAt"))
            at = _true_since(pod, _READY)
            return _between(began, at) if at is not None and status.get("ready") is True else None
    return None
