"""A cluster in which every read and write of the allocation is one atomic step, taken on request.

The allocation under test is the real one: its coroutines are driven by hand, one step at a time, so that a
scheduler (exhaustive in test_interleavings.py, random in test_stateful.py) decides what happens
between any two of its calls. A request whose name was given still has to land: the API server creates the
pod later, or never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from policies.core.annotations import WORKER_NAMES
from policies.kube.json import Json
from policies.worker_names.worker_names import GivenName, Naming
from policies.worker_names.worker_names_settings import WorkerNames
from policies.worker_names.workers import Worker, WorkerOwner
from webhook.worker_names.cluster import Listed, LiveWorkers
from webhook.worker_names.endpoint import allocate

LIFETIME = 2
"""A promise lives two ticks of the clock; a request of the API server less than that."""
SETTINGS = WorkerNames(reservation=LIFETIME)
OWNER = WorkerOwner("ray.io/v1", "RayCluster", "demo", "uid-1")
WORKER = Worker("default", OWNER, "small", {"ray.io/cluster": "demo", "ray.io/group": "small"})


class Step:
    """Awaiting it hands control to the scheduler."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __await__(self) -> Generator[Step, None, None]:
        yield self


@dataclass
class Pod:
    name: str
    labels: Mapping[str, str]
    terminating: bool = False

    def json(self) -> Json:
        metadata: Json = {"name": self.name, "labels": dict(self.labels)}
        if self.terminating:
            # Its grace ended long ago: the strictest case, in which it no longer counts.
            metadata["deletionTimestamp"] = "1969-12-31T00:00:00Z"
        return {"metadata": metadata, "status": {"phase": "Running"}}


@dataclass
class World:
    """What the API server stores, for one RayCluster with one worker group."""

    desired: int
    hosts: int = 1
    clock: int = 0
    version: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    lease: Json | None = None
    swaps: int = 0
    epochs: int = 0
    """How many have been drawn."""
    created: list[tuple[int, str]] = field(default_factory=list)
    to_delete: frozenset[str] = frozenset()
    remembers: bool = True
    """Whether the API server can still replay what happened to the pods."""

    def cluster(self) -> Json:
        group = {"groupName": "small", "replicas": self.desired // self.hosts, "numOfHosts": self.hosts}
        group["scaleStrategy"] = {"workersToDelete": sorted(self.to_delete)}
        return {"metadata": {"name": "demo", "uid": "uid-1"}, "spec": {"workerGroupSpecs": [group]}}

    @property
    def live(self) -> int:
        return sum(not pod.terminating for pod in self.pods.values())

    def land(self, name: str, labels: Mapping[str, str]) -> bool:
        """The API server stores the pod; False for its 409 AlreadyExists."""
        if name in self.pods:
            return False
        self.version += 1
        self.created.append((self.version, name))
        self.pods[name] = Pod(name, labels)
        return True

    def lose_the_lease(self) -> None:
        """Somebody deletes it by hand."""
        self.lease = None

    def remove(self, name: str) -> None:
        self.version += 1
        del self.pods[name]

    def key(self) -> object:
        """Everything that can make a difference from here on."""
        record = self.lease and (self.lease["metadata"]["resourceVersion"], _record(self.lease))
        pods = tuple(sorted((pod.name, pod.terminating) for pod in self.pods.values()))
        return (self.desired, self.clock, self.version, pods, record, tuple(self.created))


def _record(lease: Json) -> str:
    return str(lease["metadata"]["annotations"][WORKER_NAMES])


class FakeWorkers(LiveWorkers):
    """The cluster of one request: each call waits for its turn, then takes effect at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log: list[tuple[str, str]] = []
        self.drawn = ""
        """The epoch that it would begin a record with."""

    def _note(self, label: str, result: object) -> None:
        self.log.append((label, repr(result)))

    def now(self) -> float:
        self._note("now", self.world.clock)
        return float(self.world.clock)

    async def owner(self, owner: WorkerOwner, namespace: str) -> Json | None:
        await Step("owner")
        self._note("owner", self.world.desired)
        return self.world.cluster()

    async def owner_and_lease(
        self, owner: WorkerOwner, namespace: str, lease: str
    ) -> tuple[Json | None, Json | None]:
        await Step("owner and lease")
        self._note("lease", self.world.lease and self.world.lease["metadata"])
        return self.world.cluster(), self.world.lease

    async def pods(self, namespace: str, labels: Mapping[str, str], *, phases: bool = True) -> Listed:
        await Step("list")
        self._note("pods", (sorted(self.world.pods), self.world.version))
        return Listed([pod.json() for pod in self.world.pods.values()], str(self.world.version))

    async def created(
        self, namespace: str, labels: Mapping[str, str], since: str, names: frozenset[str]
    ) -> frozenset[str]:
        if not self.world.remembers:
            return frozenset()
        await Step("history")
        seen = {name for version, name in self.world.created if version > int(since or 0)}
        self._note("history", sorted(names & seen))
        return names & frozenset(seen)

    async def earlier_lease(self, namespace: str, name: str) -> Json | None:
        return None

    def epoch(self) -> str:
        self.world.epochs += 1
        self.drawn = f"epoch-{self.world.epochs}"
        return self.drawn

    async def create_lease(self, lease: Json) -> bool:
        await Step("create lease")
        return self._swap(lease, None)

    async def replace_lease(self, lease: Json) -> bool:
        await Step("replace lease")
        return self._swap(lease, lease["metadata"]["resourceVersion"])

    def _swap(self, lease: Json, expected: str | None) -> bool:
        current = self.world.lease and self.world.lease["metadata"]["resourceVersion"]
        self._note("swap", current == expected)
        if current != expected:
            return False
        self.world.swaps += 1
        metadata = {**lease["metadata"], "resourceVersion": str(self.world.swaps)}
        self.world.lease = {**lease, "metadata": metadata}
        return True

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = "") -> bool:
        raise AssertionError("the allocation writes no Events")


Allocate = Callable[[FakeWorkers, Worker, WorkerNames], Awaitable[Naming]]


async def real(workers: FakeWorkers, worker: Worker, settings: WorkerNames) -> Naming:
    """The allocation as the webhook runs it."""
    return await allocate(workers, worker, settings, epoch=workers.epoch)


class Request:
    """One create of a pod on its way through the API server."""

    def __init__(
        self,
        world: World,
        allocate: Allocate,
        worker: Worker = WORKER,
        settings: WorkerNames = SETTINGS,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.world, self.began = world, world.clock
        self.labels = labels or {}
        self.most_wanted = world.desired
        self.workers = FakeWorkers(world)
        self.answer: Naming | None = None
        self.outcome = ""
        self._run = self._review(allocate, worker, settings).__await__()
        self.advance()

    async def _review(self, allocate: Allocate, worker: Worker, settings: WorkerNames) -> None:
        self.answer = await allocate(self.workers, worker, settings)
        if not isinstance(self.answer, GivenName):
            self.outcome = "refused"
            return
        await Step("land")
        self.outcome = "landed" if self.world.land(self.answer.name, self.labels) else "taken"

    @property
    def done(self) -> bool:
        return bool(self.outcome)

    @property
    def given(self) -> str | None:
        return self.answer.name if isinstance(self.answer, GivenName) else None

    def advance(self) -> None:
        """Let the call that waits take effect, and run on to the next one."""
        try:
            next(self._run)
        except StopIteration:
            assert self.outcome

    def drop(self) -> None:
        """The API server gives the request up: quota, a crash, a client that went away."""
        self._run.close()
        self.outcome = "dropped"

    def key(self) -> object:
        """What this request knows; once it is done, only what became of it."""
        return (self.outcome, self.given) if self.done else (self.began, tuple(self.workers.log))


def create(world: World, **options: Any) -> Request:
    """An undisturbed create."""
    request = Request(world, real, **options)
    while not request.done:
        request.advance()
    return request
