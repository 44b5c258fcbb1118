"""The endpoint /name: names for workers, allocated against the live state of the cluster.

Law: a name leaves here only after the record that promises it has been swapped into the group's Lease.
`policies.worker_names.worker_names` decides the answer; here is the order of the reads, the
compare-and-swap, and what happens when time runs out.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from policies.core.annotations import WORKER_GROUP
from policies.core.facts import Cluster, Facts
from policies.core.mode import Mode
from policies.core.reasons import Reasons
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from policies.worker_names import worker_names as policy
from policies.worker_names.worker_names import (
    Answer,
    Give,
    Group,
    OnUnavailable,
    Reason,
    Refuse,
    WorkerNames,
)
from policies.worker_names.workers import (
    AllocationRecord,
    Owner,
    Untrusted,
    Want,
    Worker,
    existing,
    wanted,
    worker_of,
)
from webhook.admission import engine, exemptions
from webhook.admission.changed import annotated
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request, Response, allowed, denied, patched
from webhook.admission.patch import diff
from webhook.kube import events
from webhook.kube.calls import Writes
from webhook.kube.errors import ApiError
from webhook.worker_names.leases import (
    NoScale,
    earlier_lease_name,
    lease_name,
    new_lease,
    record_of,
    written,
)

log = structlog.get_logger()

ANSWER_SECONDS: Final = 0.1
"""Time for our answer, once it is clear that the API server won't answer in time."""
BURST_SECONDS: Final = 60.0
"""A refused double creation begins a new burst when the group had none for this long."""
BURSTS_KEPT: Final = 1000
EPOCH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Listed:
    """A consistent list of pods and its resourceVersion."""

    pods: Sequence[Json]
    version: str


class Workers(Writes, Protocol):
    """The live state that names are allocated against; `cluster.LiveWorkers` in a running webhook.

    Every method may raise ApiError.
    """

    def now(self) -> float:
        """Seconds since the epoch by a clock that all replicas share; it may lag, but not lead."""
        ...

    async def owner(self, owner: Owner, namespace: str) -> Json | None:
        """The live RayCluster, or any other controller's Scale. NoScale if it has none."""
        ...

    async def pods(self, namespace: str, labels: Mapping[str, str], *, phases: bool = True) -> Listed:
        """A consistent list; without `phases` only of the pods' metadata."""
        ...

    async def created(
        self, namespace: str, labels: Mapping[str, str], since: str, names: frozenset[str]
    ) -> frozenset[str]:
        """Those of the names under which a pod is known to have been created after `since`."""
        ...

    async def owner_and_lease(
        self, owner: Owner, namespace: str, lease: str
    ) -> tuple[Json | None, Json | None]:
        """What `owner` answers, and the Lease of that name if there is one; read in any order."""
        ...

    async def earlier_lease(self, namespace: str, name: str) -> Json | None:
        """The Lease that an earlier release kept in the workers' namespace; None if it may not be read."""
        ...

    async def create_lease(self, lease: Json) -> bool:
        """False if there is one already."""
        ...

    async def replace_lease(self, lease: Json) -> bool:
        """Compare-and-swap by resourceVersion; False if it is no longer the one that was read."""
        ...


class NameMetrics:
    """What the allocation counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.given = Counter("chassis_worker_names_given", "Pods that got a name", registry=registry)
        self.refused = Counter(
            "chassis_worker_names_refused",
            "Pods refused; reason exists is a double creation, promised one that may be, untrusted an owner "
            "that is gone, unavailable an API server that did not answer",
            ("reason",),
            registry=registry,
        )
        self.would_refuse = Counter(
            "chassis_worker_names_would_refuse",
            "Pods let through in mode warn or audit that would be refused in enforce, by reason",
            ("reason",),
            registry=registry,
        )
        self.unavailable = Counter(
            "chassis_worker_names_unavailable",
            "Times the API server could not be asked in time, by our answer: refuse or allow",
            ("answer",),
            registry=registry,
        )
        self.swaps_lost = Counter(
            "chassis_worker_names_swaps_lost",
            "Compare-and-swaps of a Lease that another request won",
            registry=registry,
        )
        self.seconds = Histogram(
            "chassis_worker_names_seconds",
            "Time from the review of a pod to its name or refusal, reads and writes of the cluster included",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
            registry=registry,
        )


class Namer:
    """Answers the reviews of /name. One for each process; all of them together keep the law."""

    def __init__(
        self,
        workers: Workers,
        config: Callable[[], Config],
        metrics: NameMetrics,
        *,
        facts: Cluster | None = None,
        identity: str = "mlchassis",
    ) -> None:
        """`identity` is written into a Lease as its holder, for people who look at it."""
        self._workers, self._snapshot, self._metrics = workers, config, metrics
        self._facts, self._identity = facts, identity
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._last_refused: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def review(self, request: Request, deadline: float) -> Response:
        """The answer to one review, before `deadline` (on the event loop's clock)."""
        pod, config = request.object, self._snapshot()
        if pod is None or request.kind != POD or request.operation != "CREATE" or request.name:
            return allowed()
        worker = worker_of(pod, request.namespace)
        if worker is None or not engine.in_scope(request, config):
            return allowed()
        facts = Facts(request.namespace, self._facts) if self._facts else Facts(request.namespace)
        effective = config.effective(pod, request.namespace, facts.namespace_labels())
        mode = effective.policy_mode(policy.MUTATOR)
        exempted = exemptions.exemption(policy.MUTATOR.id, pod, config, request.namespace)
        if mode is Mode.OFF or exempted:
            return allowed(audit={"exempted": exempted} if exempted else {})
        settings = effective.settings(WorkerNames)
        writes = mode is Mode.ENFORCE and not request.dry_run
        with self._metrics.seconds.time():
            try:
                async with asyncio.timeout_at(deadline - ANSWER_SECONDS):
                    answer = await self._allocate(worker, settings, dry_run=not writes)
            except (ApiError, TimeoutError) as error:
                answer = self._unavailable(worker, settings, error)
            except NoScale as error:
                return _let_through(mode, f"{error}, so the label {WORKER_GROUP} has no effect")
        return self._respond(request, worker, answer, settings, mode, config)

    async def close(self) -> None:
        """Wait until the Events under way are written."""
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _allocate(self, worker: Worker, settings: WorkerNames, *, dry_run: bool) -> Answer:
        try:
            # One at a time for a group: the swaps of this process would only lose to each other.
            lock = self._locks.setdefault(lease_name(worker), asyncio.Lock())
            async with lock:
                lost = self._metrics.swaps_lost.inc
                return await allocate(
                    self._workers, worker, settings, dry_run=dry_run, identity=self._identity, lost=lost
                )
        except Untrusted as error:
            return policy.untrusted(worker, str(error))

    # --- the answer ------------------------------------------------------------------------------------

    def _unavailable(self, worker: Worker, settings: WorkerNames, error: Exception) -> Refuse:
        # The API server's message stays in the log: it names our account, and may name other objects.
        status = error.status if isinstance(error, ApiError) else 0
        why = f"the API server answered {status}" if status else "the API server did not answer in time"
        self._metrics.unavailable.labels(settings.on_unavailable.value).inc()
        log.warning(
            "worker names: the API server could not be asked",
            answer=settings.on_unavailable.value,
            worker=str(worker),
            namespace=worker.namespace,
            error=str(error) or why,
        )
        return Refuse(
            Reason.UNAVAILABLE,
            f"{worker}: whether one more is wanted could not be found out ({why}). Try again.",
        )

    def _respond(
        self,
        request: Request,
        worker: Worker,
        answer: Answer,
        settings: WorkerNames,
        mode: Mode,
        config: Config,
    ) -> Response:
        if isinstance(answer, Give):
            return self._give(request, worker, answer, mode, config)
        if answer.reason is Reason.UNAVAILABLE and settings.on_unavailable is OnUnavailable.ALLOW:
            return _let_through(mode, f"{answer.message} The pod keeps its random name.")
        if mode is not Mode.ENFORCE:
            if not request.dry_run:
                self._metrics.would_refuse.labels(answer.reason.value).inc()
            warnings = [f"worker-names would refuse: {answer.message}"] if mode is Mode.WARN else []
            return allowed(warnings, {"would-refuse": answer.message})
        if not request.dry_run:
            self._metrics.refused.labels(answer.reason.value).inc()
            if answer.reason is Reason.EXISTS:
                self._announce(worker)
        # A client retries 429 and 5xx by itself, so neither may be used; KubeRay 1.0 and 1.1 go on after
        # an AlreadyExists, and must not where the pod is wanted and only could not be decided on.
        undecided = answer.reason in (Reason.UNAVAILABLE, Reason.UNTRUSTED)
        return denied(answer.message, code=409, reason="Conflict" if undecided else "AlreadyExists")

    def _give(
        self,
        request: Request,
        worker: Worker,
        answer: Give,
        mode: Mode,
        config: Config,
    ) -> Response:
        if mode is not Mode.ENFORCE:
            warnings = [f"worker-names would name this pod {answer.name}"] if mode is Mode.WARN else []
            return allowed(warnings, {"would-name": answer.name})
        if not request.dry_run:
            self._metrics.given.inc()
            log.info("worker named", name=answer.name, worker=str(worker), namespace=worker.namespace)
        pod, why = request.object or {}, Reasons(policy.MUTATOR.id)
        named = policy.named(pod, answer.name, why)
        if config.webhook.changes.annotation:
            named = annotated(named, [why], config.digest)
        return patched(diff(pod, named), audit={"name": answer.name})

    def _announce(self, worker: Worker) -> None:
        """An Event on the owner at the first refused double creation of a burst; sent in the background."""
        key, now = f"{worker.owner.uid}/{worker.group}", time.monotonic()
        last = self._last_refused.pop(key, None)
        self._last_refused[key] = now
        if len(self._last_refused) > BURSTS_KEPT:
            del self._last_refused[next(iter(self._last_refused))]
        if last is not None and now - last < BURST_SECONDS:
            return
        owner = worker.owner
        regarding = {
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "metadata": {"namespace": worker.namespace, "name": owner.name, "uid": owner.uid},
        }
        group = "the head group" if worker.head else f"worker group {worker.group}"
        message = (
            f"A pod beyond those wanted in {group} was refused: the controller acted on a stale cache. "
            "No action is needed."
        )
        task = asyncio.create_task(
            events.warn(self._workers, regarding, "DoubleCreationRefused", message), name="event"
        )
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _let_through(mode: Mode, why: str) -> Response:
    """Allowed under a name that was not allocated."""
    return allowed([] if mode is Mode.AUDIT else [f"worker-names: {why}"], {"not-named": why})


# --- allocation ----------------------------------------------------------------------------------------


async def allocate(
    workers: Workers,
    worker: Worker,
    settings: WorkerNames,
    *,
    dry_run: bool = False,
    identity: str = "mlchassis",
    lost: Callable[[], None] = lambda: None,
    epoch: Callable[[], str] = lambda: secrets.token_hex(EPOCH_BYTES),
) -> Answer:
    """Read the Lease, then list the pods, decide, swap; start over when the swap is lost.

    A dry run answers with the name that would be given and swaps nothing. `lost` is called at each lost
    swap, `epoch` for a record that is begun. Raises Untrusted. It goes on until it is cancelled.
    """
    name, created = lease_name(worker), frozenset[str]()
    while True:
        now = workers.now()
        owner, lease = await workers.owner_and_lease(worker.owner, worker.namespace, name)
        want = wanted(owner, worker)
        record = record_of(lease)
        if lease is None:
            earlier = await workers.earlier_lease(worker.namespace, earlier_lease_name(worker))
            record = replace(record_of(earlier), epoch="")
        if not record.epoch:
            record = replace(record, epoch=epoch())
        # Only now: a replica that dropped a promise before that Lease was written had seen its pod.
        listed = await workers.pods(worker.namespace, worker.selector, phases=not worker.owner.is_ray)
        answer = policy.decide(worker, _group(want, listed, record, now, created), settings)
        if isinstance(answer, Refuse):
            kept = await _created(workers, worker, answer)
            if not kept:
                return answer
            created |= kept
            continue
        if dry_run:
            return answer
        swap = workers.create_lease if lease is None else workers.replace_lease
        if await swap(written(lease or new_lease(name), worker, answer.record, identity)):
            return answer
        lost()


async def _created(workers: Workers, worker: Worker, refusal: Refuse) -> frozenset[str]:
    """Which of the promised pods that block the request were created, and so are gone again.

    Without this a worker that is scaled down right after it was made would keep its place for as long as a
    promise holds.
    """
    promises = refusal.ambiguous
    if not promises:
        return frozenset()
    names = frozenset(name for promise in promises for name in promise.names)
    since = min((promise.seen_from for promise in promises), key=lambda version: (len(version), version))
    return await workers.created(worker.namespace, worker.selector, since, names)


def _group(
    want: Want, listed: Listed, record: AllocationRecord, now: float, created: frozenset[str] = frozenset()
) -> Group:
    return Group(want, [existing(pod) for pod in listed.pods], record, now, listed.version, created)
