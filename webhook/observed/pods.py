"""Starts and ends of containers, from the statuses of pods.

Law: ambiguous times are not recorded. A condition of a pod contains its last change only, which is not its
first readiness if it was unready in between. So a container that was already started or ready when its pod
was first observed is skipped, unless it started after the last complete observation. Both ends of a load time
come from one node's clock; a clock that jumped back gives a negative time, which is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from policies.core.facts import Cluster, Facts, find_by_name
from policies.core.resources import Resource
from policies.kube.json import Json
from policies.kube.metadata import labels_of
from policies.kube.objects.jobs import DISRUPTION_TARGET
from policies.kube.objects.pods import ContainerStatus, PodState, PodStatus, Probe, TerminatedState
from policies.kube.objects.reading import readable
from policies.kube.pods import Container, Role, port_number
from policies.probes.declared_models import declared_size
from policies.probes.endpoints import server_port
from policies.probes.liveness_program import watched_start
from policies.probes.observed import place_of, run_of, workload_of
from policies.probes.serving import serving_containers
from policies.probes.standard_probes_settings import Learning, StandardProbes
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
        """`since`: everything up to this second is recorded, in seconds since the epoch."""
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
        found = readable(pod, PodState)
        if found is None:
            return None
        uid, namespace = found.metadata.uid, found.metadata.namespace
        if not uid or not namespace or not self._config().webhook.namespaces.covers(namespace):
            return None
        first = uid not in self._pods
        known = self._pods.setdefault(uid, _Pod())
        started: list[_Start] = []
        ended: list[_End] = []
        disruption = _disruption(found.status)
        deleted = found.metadata.deletion_timestamp is not None
        for status in found.status.container_statuses:
            ends = list(self._ends(known, first, status))
            if not disruption and not deleted:
                ended += ends
            at = self._start(known, first, found.status, status)
            if at is not None and not deleted:  # pods with a forged owner are deleted soon
                started.append(_Start(status, at))
        disrupted = bool(disruption) and not known.disrupted
        known.disrupted = known.disrupted or bool(disruption)
        if first and disrupted and (_ended_at(found.status) or 0) <= self._since:
            disrupted = False
        if not (started or ended or disrupted):
            return None
        reason = disruption if disrupted else ""
        return UnreadPod(pod, found, self._config(), self._cluster, started, ended, reason)

    def _start(self, known: _Pod, first: bool, pod: PodStatus, status: ContainerStatus) -> float | None:
        """When a container became ready, if that start was not yet recorded."""
        began = seconds_of(status.running_since)
        if began is None or known.started.get(status.name) == status.run:
            return None
        if first and began <= self._since and (status.ready or status.started):
            known.started[status.name] = status.run  # it may have been ready before
            return None
        at = _true_since(pod, _READY)
        if not status.ready or at is None:
            return None
        known.started[status.name] = status.run
        return at if at >= began else None

    def _ends(self, known: _Pod, first: bool, status: ContainerStatus) -> Iterator[_End]:
        """The ends of a container that were not yet recorded, the older one first."""
        for end in (status.last_state.terminated, status.state.terminated):
            at = None if end is None else seconds_of(end.finished_at)
            if end is None or at is None or end.finished_at <= known.ended.get(status.name, ""):
                continue
            known.ended[status.name] = end.finished_at
            if not first or at > self._since:
                yield _End(status.name, end, known.started.get(status.name) == end.run)


class _Start(NamedTuple):
    status: ContainerStatus
    at: float
    """When the container became ready."""


class _End(NamedTuple):
    container: str
    state: TerminatedState
    was_ready: bool
    """Whether the run that ended had become ready."""


class UnreadPod(Struct, frozen=True):
    """New starts and ends of a pod whose containers were not read yet."""

    pod: Json
    state: PodState
    config: Config
    cluster: Cluster
    started: list[_Start]
    ended: list[_End]
    disruption: str

    def observations(self) -> list[Observation]:
        """What they mean. One budget pays for the whole pod, as in a review; a pod that exceeds it, or that
        has a value of a wrong type, has no observations."""
        read = of_running(self.pod, self.config, self.cluster)
        if read is None:
            return []
        template, facts = read
        found = _Observations(template.pod, self.state, facts)
        return list(found.all(self.started, self.ended, self.disruption))


class _Observations:
    def __init__(self, pod: Json, state: PodState, facts: Facts) -> None:
        self._pod, self._status, self._facts = pod, state.status, facts
        self._namespace = state.metadata.namespace
        self._view = facts.view(pod)
        self._node_type = node_type(self._view.typed.spec.node_name, facts.cluster)

    def all(self, started: list[_Start], ended: list[_End], disruption: str) -> Iterator[Observation]:
        if self._facts.settings(StandardProbes).learning is Learning.OFF:
            return
        counted = {each.name: each for each in counted_containers(self._pod, self._facts)}
        mains = {each.name: each for each in self._view.containers if each.role is Role.MAIN}
        for end in ended:
            if end.container in counted:
                yield self._ended(counted[end.container], end)
        for start in started:
            main = mains.get(start.status.name)
            if main is not None and readiness_ends_start(main) and self._asks_itself(main):
                yield self._started(main, start)
        if disruption and counted:
            container, at = next(iter(counted.values())), int(_ended_at(self._status) or 0)
            yield Ended(self._namespace, self._key(container), at, self._node_type, disruption)

    def _asks_itself(self, container: Container) -> bool:
        """Whether the probe that ends its start asks the container's own server, as far as ports show it: a
        probe may ask every port of the pod."""
        probe = start_probe(container)
        action = None if probe is None else probe.http_get or probe.grpc
        port = None if action is None else port_number(container.typed, action.port)
        server = self._facts.settings(StandardProbes).recogniser.server(container)
        known = server_port(container, server) if server is not None else None
        others = (each.tcp_ports for each in self._view.containers if each.name != container.name)
        if any(port in ports for ports in others):
            return False
        return known in (None, port) or port in container.tcp_ports

    def _key(self, container: Container) -> str:
        return record_key(self._pod, container, self._facts)

    def _started(self, container: Container, start: _Start) -> ObservedStart:
        status, at = start
        began = seconds_of(status.running_since) or at
        first = status.restart_count == 0
        initialised = _true_since(self._status, "Initialized") if first else None
        scheduled = _true_since(self._status, "PodScheduled") if first else None
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

    def _ended(self, container: Container, end: _End) -> Ended:
        reason, code = end.state.reason, end.state.exit_code
        began, finished = seconds_of(end.state.started_at), seconds_of(end.state.finished_at)
        lasted = (finished or 0) - (began or finished or 0)
        budget = start_limit(container)
        after = memory = 0
        if reason == "OOMKilled":
            memory = container.typed.resources.memory_limit
        elif reason not in ("Completed", "DeadlineExceeded") or code:
            slack = _SLACK_SECONDS + self._view.typed.spec.grace
            if not end.was_ready and budget and budget <= lasted <= budget + slack:
                reason, after = STARTUP_PROBE, round(lasted)
            elif end.was_ready and code in _SIGNALS and not self._view.completes:
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
    return f"{workload_of(facts.view(pod).typed.metadata)}/{container.name}@{run_of(pod, container, size)}"


def readiness_ends_start(container: Container) -> bool:
    """Whether the container is ready only after its start: a probe needs an answer from the server.

    An open port or a successful command may come long before.
    """
    return needs_answer(start_probe(container))


def start_probe(container: Container) -> Probe | None:
    """The probe that ends a container's start: the startupProbe, or readiness if liveness watches the
    start."""
    startup = container.typed.startup_probe
    if startup is None and watched_start(container.spec.get("livenessProbe")):
        return container.typed.readiness_probe
    return startup


def needs_answer(probe: Probe | None) -> bool:
    """Whether a probe succeeds only if the server answers a request."""
    return probe is not None and (probe.http_get or probe.grpc) is not None


def start_limit(container: Container) -> int:
    """Seconds after which a probe ends a start; 0 if none does."""
    if (startup := container.typed.startup_probe) is not None:
        return startup.startup_deadline
    return watched_start(container.spec.get("livenessProbe"))


def node_type(name: str, cluster: Cluster) -> str:
    """The accelerator or the instance type of a node; empty if unknown."""
    labels = labels_of(find_by_name(cluster.listing(Resource.NODES), name) or {})
    return next((str(labels[key]) for key in NODE_TYPE_LABELS if labels.get(key)), "")


def _true_since(pod: PodStatus, condition: str) -> float | None:
    """The time since which a condition of the pod is true."""
    found = pod.condition(condition)
    return None if found is None else seconds_of(found.last_transition_time)


def _between(began: float | None, ended: float) -> int | None:
    return round(ended - began) if began is not None and ended >= began else None


def _disruption(pod: PodStatus) -> str:
    """Why the pod was disrupted; empty if it was not."""
    if pod.reason in ("Evicted", "Preempted", "DeadlineExceeded"):
        return pod.reason
    target = pod.condition(DISRUPTION_TARGET)
    return "" if target is None else _DISRUPTIONS.get(target.reason, "Evicted")


def _ended_at(pod: PodStatus) -> float | None:
    """When a pod was disrupted, or its last container ended."""
    disrupted = _true_since(pod, DISRUPTION_TARGET)
    if disrupted is not None:
        return disrupted
    terminated = [each.state.terminated for each in pod.container_statuses]
    ends = [seconds_of(each.finished_at) for each in terminated if each is not None]
    return max((each for each in ends if each is not None), default=seconds_of(pod.start_time))


def first_ready(pod: PodStatus, container: Container) -> int | None:
    """The maximum of the seconds from a container's first start until its pod was ready: the pod's condition
    contains the last change only. None for restarts, and if it is not ready."""
    for status in pod.container_statuses:
        if status.name == container.name and not status.restart_count:
            began, at = seconds_of(status.running_since), _true_since(pod, _READY)
            return _between(began, at) if at is not None and status.ready else None
    return None
