"""Every interleaving of a few concurrent creates, deletes, lost requests and ticks of the clock.

A search over all reachable states: what the API server stores, and what each request has read so far. Each
state is reached by running the real allocation again along its path, so there is no model that could differ
from the code. The controls are allocations with one piece of the algorithm taken out: the search must find
the schedule that breaks each of them, or it proves nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace

import pytest
from msgspec import structs

from policies.kube.json import Json
from policies.worker_names import worker_names as policy
from policies.worker_names.worker_names import GivenName, Naming, WorkerGroup
from policies.worker_names.worker_names_settings import WorkerNames
from policies.worker_names.workers import AllocationRecord, Worker, WorkerOwner, desired, existing_pod
from tests.webhook.worker_names.world import (
    LIFETIME,
    SETTINGS,
    Allocate,
    FakeWorkers,
    Request,
    World,
    create,
    real,
)
from webhook.worker_names.cluster import Listed
from webhook.worker_names.endpoint import allocate


class Broken(AssertionError):
    """A schedule after which a promise of the algorithm does not hold."""


@dataclass(frozen=True)
class Scenario:
    """So many creates at the same time, in a cluster that may lose so many pods and ticks."""

    creates: int
    desired: int
    present: int = 0
    deletes: int = 0
    ticks: int = 0
    drops: int = 0
    losses: int = 0
    """How often the Lease is deleted by hand. Its promises go with it: more may live than are wanted."""
    remembers: bool = True
    settings: WorkerNames = SETTINGS
    allocate: Allocate = real


class Run:
    """One schedule of a scenario, as far as it has got."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario.desired, remembers=scenario.remembers)
        self.given: list[str] = []
        for _ in range(scenario.present):
            self.given.append(create(self.world, settings=scenario.settings).given or "")
        self.requests: list[Request] = []
        self.left = {"delete": scenario.deletes, "tick": scenario.ticks, "drop": scenario.drops}
        self.left["lose"] = scenario.losses

    def enabled(self) -> list[tuple[str, int]]:
        """The possible next steps. Requests in the same state do the same: one of them is enough."""
        distinct = {
            (request.key(), request.workers.drawn): n
            for n, request in enumerate(self.requests)
            if not request.done
        }
        waiting = list(distinct.values())
        steps = [("step", n) for n in waiting]
        if len(self.requests) < self.scenario.creates:
            steps.append(("begin", 0))
        if self.left["delete"]:
            steps += [("delete", n) for n in range(len(self.world.pods))]
        # No request of the API server lives as long as a promise.
        oldest = min((self.requests[n].began for n in waiting), default=self.world.clock)
        if self.left["tick"] and self.world.clock + 1 - oldest < LIFETIME:
            steps.append(("tick", 0))
        if self.left["lose"] and self.world.lease:
            steps.append(("lose", 0))
        if self.left["drop"]:
            steps += [("drop", n) for n in waiting if self.requests[n].given]
        return steps

    def do(self, what: str, which: int) -> None:
        if what in self.left:
            self.left[what] -= 1
        match what:
            case "begin":
                self.requests.append(
                    Request(self.world, self.scenario.allocate, settings=self.scenario.settings)
                )
            case "delete":
                self.world.remove(sorted(self.world.pods)[which])
            case "tick":
                self.world.clock += 1
            case "lose":
                self.world.lose_the_lease()
            case "drop":
                self.requests[which].drop()
            case "step":
                self._step(self.requests[which])

    def _step(self, request: Request) -> None:
        request.advance()
        if request.given and request.outcome == "":
            self.given.append(request.given)
        if self.world.live > self.scenario.desired and not self.scenario.losses:
            raise Broken(f"{self.world.live} pods live, {self.scenario.desired} are wanted")
        if len(set(self.given)) < len(self.given):
            raise Broken(f"a name was given twice: {self.given}")
        if request.outcome == "taken":
            raise Broken(f"a name that exists was given: {request.given}")

    def key(self) -> object:
        requests = tuple(sorted((request.key() for request in self.requests), key=repr))
        return (self.world.key(), requests, tuple(sorted(self.left.items())))

    def recovers(self) -> None:
        """One lifetime after the last request, one more create succeeds if and only if one is wanted."""
        self.world.clock += LIFETIME
        if self.world.live > self.scenario.desired:
            return
        for _ in range(self.scenario.desired - self.world.live):
            if create(self.world, settings=self.scenario.settings).outcome != "landed":
                raise Broken("a wanted pod is refused one lifetime later")
        if create(self.world, settings=self.scenario.settings).outcome != "refused":
            raise Broken("one pod too many was let in")


def explore(scenario: Scenario, kind: type[Run] = Run) -> int:
    """Visit every state; how many there are. Raises Broken with the schedule that leads to a bad one."""
    frontier: list[tuple[tuple[str, int], ...]] = [()]
    seen: set[object] = set()
    while frontier:
        path = frontier.pop()
        run = kind(scenario)
        try:
            for choice in path:
                run.do(*choice)
            while (key := run.key()) not in seen:
                seen.add(key)
                choices = run.enabled()
                if all(request.done for request in run.requests):
                    frontier += [(*path, choice) for choice in choices]
                    run.recovers()
                    break
                # One of the choices goes on from here; each of the others runs the path again.
                frontier += [(*path, choice) for choice in choices[1:]]
                path = (*path, choices[0])
                run.do(*choices[0])
        except Broken as error:
            raise Broken(f"{error}, after {' '.join(f'{what}:{n}' for what, n in path)}") from None
    return len(seen)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(creates=3, desired=2),
        Scenario(creates=2, desired=2, present=2, deletes=2),
        Scenario(creates=2, desired=1, present=1, deletes=1, ticks=2, drops=1),
        Scenario(creates=2, desired=1, present=1, deletes=1, ticks=3, drops=1, remembers=False),
        Scenario(creates=3, desired=1, ticks=1, drops=1),
        Scenario(creates=4, desired=2, present=1),
    ],
    ids=lambda s: (
        f"{s.creates}of{s.desired}-p{s.present}d{s.deletes}t{s.ticks}x{s.drops}"
        if isinstance(s, Scenario)
        else None
    ),
)
def test_all_interleavings_keep_the_promises(scenario: Scenario) -> None:
    assert explore(scenario) > 30


LOSSES = [
    Scenario(creates=2, desired=1, present=1, deletes=2, losses=1),
    Scenario(creates=3, desired=1, losses=2),
    Scenario(creates=2, desired=1, present=1, deletes=1, losses=1, drops=1),
]


@pytest.mark.parametrize("scenario", LOSSES, ids=["deleted", "lost-twice", "dropped"])
def test_no_name_is_given_twice_though_the_lease_is_lost(scenario: Scenario) -> None:
    assert explore(scenario) > 30


# --- controls: each takes one piece out, and the search must find out -------------------------------------


async def next_free_ordinal(workers: FakeWorkers, worker: Worker, settings: WorkerNames) -> Naming:
    """The obvious design: list the pods, take the lowest free number. It never refuses a pod."""
    listed = await workers.pods(worker.namespace, worker.selector)
    names = {pod["metadata"]["name"] for pod in listed.pods}
    number = next(n for n in range(len(names) + 1) if f"demo-small-{n}" not in names)
    return GivenName(f"demo-small-{number}", AllocationRecord())


async def count_only(workers: FakeWorkers, worker: Worker, settings: WorkerNames) -> Naming:
    """Counts what exists and refuses, but promises nothing."""
    now = workers.now()
    want = desired(await workers.owner(worker.owner, worker.namespace), worker)
    listed = await workers.pods(worker.namespace, worker.selector)
    unnumbered = AllocationRecord(workers.world.version + len(workers.world.created))
    group = WorkerGroup(want, [existing_pod(pod) for pod in listed.pods], unnumbered, now)
    return policy.decide(worker, group, settings)


class ListFirst(FakeWorkers):
    """Lists the pods before it reads the Lease."""

    listed: Listed | None = None

    async def owner_and_lease(
        self, owner: WorkerOwner, namespace: str, lease: str
    ) -> tuple[Json | None, Json | None]:
        self.listed = await super().pods(namespace, {})
        return await super().owner_and_lease(owner, namespace, lease)

    async def pods(self, namespace: str, labels: Mapping[str, str], *, phases: bool = True) -> Listed:
        assert self.listed is not None
        return self.listed


class BlindSwap(FakeWorkers):
    """Overwrites the Lease."""

    def _swap(self, lease: Json, expected: str | None) -> bool:
        current = self.world.lease
        return super()._swap(lease, current["metadata"]["resourceVersion"] if current else None)


def through(kind: type[FakeWorkers]) -> Allocate:
    """The real allocation over a cluster that breaks one rule."""

    def allocate(workers: FakeWorkers, worker: Worker, settings: WorkerNames) -> Awaitable[Naming]:
        broken = kind(workers.world)
        broken.log = workers.log
        return real(broken, worker, settings)

    return allocate


def short_lived(workers: FakeWorkers, worker: Worker, settings: WorkerNames) -> Awaitable[Naming]:
    """Promises that lapse while their request may still be under way."""
    return real(workers, worker, structs.replace(settings, reservation=1))


def one_epoch(workers: FakeWorkers, worker: Worker, settings: WorkerNames) -> Awaitable[Naming]:
    """A record that is begun again looks like the lost one."""
    return allocate(workers, worker, settings, epoch=lambda: "the same")


@pytest.mark.parametrize(
    ("control", "scenario", "broken"),
    [
        (next_free_ordinal, Scenario(creates=1, desired=1, present=1), "live"),
        (count_only, Scenario(creates=2, desired=1), "live|twice"),
        (through(ListFirst), Scenario(creates=3, desired=2), "live"),
        (through(BlindSwap), Scenario(creates=2, desired=1), "live|twice"),
        (short_lived, Scenario(creates=2, desired=1, ticks=1), "live"),
        (one_epoch, Scenario(creates=2, desired=1, deletes=1, losses=1), "twice"),
    ],
    ids=["next-free-ordinal", "count-only", "list-before-lease", "blind-swap", "short-promise", "one-epoch"],
)
def test_the_search_finds_the_fault_of(control: Allocate, scenario: Scenario, broken: str) -> None:
    with pytest.raises(Broken, match=broken):
        explore(replace(scenario, allocate=control))
