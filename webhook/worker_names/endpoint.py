"""The endpoint /name: names for workers, allocated against the live state of the cluster.

Law: a name is returned only after a compare-and-swap of the group's Lease with the record that reserves it.
`policies.worker_names.worker_names` decides the answer; this module reads, swaps, and handles timeouts.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram

from policies.core.annotations import WORKER_GROUP
from policies.core.facts import Cluster, Facts
from policies.core.finding import Mode
from policies.core.reasons import Reasons
from policies.kube.group_kinds import POD
from policies.kube.objects.reading import WrongTypeError
from policies.worker_names import worker_names as policy
from policies.worker_names.worker_names import GivenName, Naming, RefusalReason, Refused, WorkerGroup
from policies.worker_names.worker_names_settings import OnUnavailable, WorkerNames
from policies.worker_names.workers import (
    OwnerMismatch,
    Worker,
    desired,
    existing_pod,
    worker_of,
)
from webhook.admission import exemptions
from webhook.admission.answer import Response, allowed, denied, patched
from webhook.admission.changed_annotation import annotated
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.admission.json_patch import diff
from webhook.admission.scope import out_of_scope
from webhook.kube import events
from webhook.kube.calls import ApiError
from webhook.worker_names.cluster import (
    LiveWorkers,
    NoScale,
    earlier_lease_name,
    lease_name,
    new_lease,
    record_of,
    with_record,
)

log = structlog.get_logger()

ANSWER_SECONDS: Final = 0.1
"""Time for the answer after a timeout of the API server."""
BURST_SECONDS: Final = 60.0
"""A refused double creation begins a new burst if the group had none for this long."""
BURSTS_KEPT: Final = 1000
EPOCH_BYTES: Final = 8


class NameMetrics:
    """The metrics of the allocation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.given = Counter("chassis_worker_names_given", "Pods that got a name", registry=registry)
        self.refused = Counter(
            "chassis_worker_names_refused",
            "Pods refused; reason exists is a double creation, promised one that may be, untrusted an "
            "owner that is gone, unavailable an API server that didn't answer",
            ("reason",),
            registry=registry,
        )
        self.would_refuse = Counter(
            "chassis_worker_names_would_refuse",
            "Pods admitted in mode warn or audit that enforce would refuse, by reason",
            ("reason",),
            registry=registry,
        )
        self.unavailable = Counter(
            "chassis_worker_names_unavailable",
            "Times the API server didn't answer in time, by the webhook's answer: refuse or allow",
            ("answer",),
            registry=registry,
        )
        self.swaps_lost = Counter(
            "chassis_worker_names_swaps_lost",
            "Compare-and-swap updates of a Lease that lost to another request",
            registry=registry,
        )
        self.seconds = Histogram(
            "chassis_worker_names_seconds",
            "Time from the review of a pod to its name or refusal, reads and writes of the cluster included",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
            registry=registry,
        )


class Namer:
    """Answers the reviews of /name. One for each process."""

    def __init__(
        self,
        workers: LiveWorkers,
        config: Callable[[], Config],
        metrics: NameMetrics,
        *,
        facts: Cluster | None = None,
        identity: str = "mlchassis",
    ) -> None:
        """`identity` is the holder of the Leases, for information."""
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
        if worker is None or out_of_scope(request, config):
            return allowed()
        facts = Facts(request.namespace, self._facts) if self._facts else Facts(request.namespace)
        effective = config.effective(pod, request.namespace, facts.namespace_labels())
        mode = effective.mutator_mode(policy.MUTATOR)
        exempted = exemptions.exemption(policy.MUTATOR.id, pod, config, request.namespace)
        if mode is Mode.OFF or exempted:
            return allowed(audit={"exempted": exempted} if exempted else {})
        settings = effective.settings(WorkerNames)
        writes = mode is Mode.ENFORCE and not request.dry_run
        with self._metrics.seconds.time():
            try:
                async with asyncio.timeout_at(deadline - ANSWER_SECONDS):
                    answer = await self._allocate(worker, settings, dry_run=not writes)
            except (ApiError, TimeoutError, WrongTypeError) as error:
                answer = self._unavailable(worker, settings, error)
            except NoScale as error:
                return _unnamed(mode, f"{error}, so the label {WORKER_GROUP} has no effect")
        return self._respond(request, worker, answer, settings, mode, config)

    async def close(self) -> None:
        """Wait until all Events are written."""
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _allocate(self, worker: Worker, settings: WorkerNames, *, dry_run: bool) -> Naming:
        try:
            # One at a time for a group: concurrent swaps of this process would fail.
            lock = self._locks.setdefault(lease_name(worker), asyncio.Lock())
            async with lock:
                return await allocate(
                    self._workers,
                    worker,
                    settings,
                    dry_run=dry_run,
                    identity=self._identity,
                    on_lost_swap=self._metrics.swaps_lost.inc,
                )
        except OwnerMismatch as error:
            return policy.untrusted(str(error))

    # --- the answer ------------------------------------------------------------------------------------

    def _unavailable(self, worker: Worker, settings: WorkerNames, error: Exception) -> Refused:
        # The API server's message is only logged: it names our account, and may name other objects.
        status = error.status if isinstance(error, ApiError) else 0
        why = f"the API server answered {status}" if status else "the API server did not answer in time"
        if isinstance(error, WrongTypeError):
            why = f"{worker.owner} cannot be read: {error}"
        self._metrics.unavailable.labels(settings.on_unavailable.value).inc()
        log.warning(
            "worker names: the API server could not be asked",
            answer=settings.on_unavailable.value,
            worker=str(worker),
            namespace=worker.namespace,
            error=str(error) or why,
        )
        return Refused(
            RefusalReason.UNAVAILABLE,
            f"{worker}: the webhook couldn't find out whether one more is wanted ({why}). Try again.",
        )

    def _respond(
        self,
        request: Request,
        worker: Worker,
        answer: Naming,
        settings: WorkerNames,
        mode: Mode,
        config: Config,
    ) -> Response:
        if isinstance(answer, GivenName):
            return self._name(request, worker, answer, mode, config)
        if answer.reason is RefusalReason.UNAVAILABLE and settings.on_unavailable is OnUnavailable.ALLOW:
            return _unnamed(mode, f"{answer.message} The pod keeps its random name.")
        if mode is not Mode.ENFORCE:
            if not request.dry_run:
                self._metrics.would_refuse.labels(answer.reason.value).inc()
            warnings = [f"worker-names would refuse: {answer.message}"] if mode is Mode.WARN else []
            return allowed(warnings, {"would-refuse": answer.message})
        if not request.dry_run:
            self._metrics.refused.labels(answer.reason.value).inc()
            if answer.reason is RefusalReason.EXISTS:
                self._announce(worker)
        # Clients retry 429 and 5xx themselves, so these cannot be used. KubeRay 1.0 and 1.1 continue after
        # AlreadyExists, which is wrong if the pod may be desired.
        undecided = answer.reason in (RefusalReason.UNAVAILABLE, RefusalReason.UNTRUSTED)
        return denied(answer.message, code=409, reason="Conflict" if undecided else "AlreadyExists")

    def _name(
        self, request: Request, worker: Worker, answer: GivenName, mode: Mode, config: Config
    ) -> Response:
        if mode is not Mode.ENFORCE:
            warnings = [f"worker-names would name this pod {answer.name}"] if mode is Mode.WARN else []
            return allowed(warnings, {"would-name": answer.name})
        if not request.dry_run:
            self._metrics.given.inc()
            log.info("worker named", name=answer.name, worker=str(worker), namespace=worker.namespace)
        pod, why = request.object or {}, Reasons(policy.MUTATOR.id)
        named = policy.with_name(pod, answer.name, why)
        if config.webhook.changes.annotation:
            named = annotated(named, [why], config.digest)
        return patched(diff(pod, named), audit={"name": answer.name})

    def _announce(self, worker: Worker) -> None:
        """Send an Event about the owner for the first refused double creation of a burst."""
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
            f"A pod beyond those wanted in {group} was refused, because the controller acted on a stale "
            "cache. No action is needed."
        )
        task = asyncio.create_task(
            events.warn(self._workers, regarding, "DoubleCreationRefused", message), name="event"
        )
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _unnamed(mode: Mode, why: str) -> Response:
    """The pod is admitted with its random name."""
    return allowed([] if mode is Mode.AUDIT else [f"worker-names: {why}"], {"not-named": why})


# --- allocation ----------------------------------------------------------------------------------------


async def allocate(
    workers: LiveWorkers,
    worker: Worker,
    settings: WorkerNames,
    *,
    dry_run: bool = False,
    identity: str = "mlchassis",
    on_lost_swap: Callable[[], None] = lambda: None,
    epoch: Callable[[], str] = lambda: secrets.token_hex(EPOCH_BYTES),
) -> Naming:
    """Read the Lease, list the pods, decide, and swap; start again if another request won the swap.

    A dry run returns the name without a swap. `epoch` makes the epoch of a new record. Runs until it is
    cancelled. Raises OwnerMismatch, WrongTypeError, ApiError, NoScale.
    """
    name, created = lease_name(worker), frozenset[str]()
    while True:
        now = workers.now()
        owner, lease = await workers.owner_and_lease(worker.owner, worker.namespace, name)
        wanted = desired(owner, worker)
        record = record_of(lease)
        if lease is None:
            earlier = await workers.earlier_lease(worker.namespace, earlier_lease_name(worker))
            record = replace(record_of(earlier), epoch="")
        if not record.epoch:
            record = replace(record, epoch=epoch())
        # After the Lease: a replica that removed a reservation from it had seen the pod.
        listed = await workers.pods(worker.namespace, worker.selector, phases=not worker.owner.is_ray)
        pods = [existing_pod(pod) for pod in listed.pods]
        group = WorkerGroup(wanted, pods, record, now, listed.version, created)
        answer = policy.decide(worker, group, settings)
        if isinstance(answer, Refused):
            gone = await _created(workers, worker, answer)
            if not gone:
                return answer
            created |= gone
            continue
        if dry_run:
            return answer
        swap = workers.create_lease if lease is None else workers.replace_lease
        if await swap(with_record(lease or new_lease(name), worker, answer.record, identity)):
            return answer
        on_lost_swap()


async def _created(workers: LiveWorkers, worker: Worker, refused: Refused) -> frozenset[str]:
    """The reserved pods that block the request and were created: they are already deleted.

    Without this, a worker that is deleted right after its creation would block its place until the
    reservation expires.
    """
    if not refused.blocking:
        return frozenset()
    names = frozenset(name for reservation in refused.blocking for name in reservation.names)
    versions = (reservation.version for reservation in refused.blocking)
    since = min(versions, key=lambda version: (len(version), version))
    return await workers.created(worker.namespace, worker.selector, since, names)
