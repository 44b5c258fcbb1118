"""The Lease of the uptime: who holds it, which outages it records, and malformed contents."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from policies.core.annotations import OUTAGES
from policies.kube.json import Json
from webhook.kube.calls import ApiError
from webhook.kube.leader_election import (
    LAPSED_SECONDS,
    NAME,
    OUTAGES_KEPT,
    RENEW_SECONDS,
    UNREADY_SECONDS,
    Outage,
    UptimeLease,
    outages_in,
)
from webhook.kube.times import renewed_at

START = 1_800_000_000.0


class Leases:
    """One Lease, compare-and-swap by resourceVersion, and a clock."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.clock = START
        self.fails: ApiError | None = None
        self.writes = 0
        self.before_write: Callable[[], Awaitable[object]] | None = None

    def now(self) -> float:
        return self.clock

    async def get(self, path: str) -> Json | None:
        assert path.endswith(f"/{NAME}")
        if self.fails:
            raise self.fails
        return self.lease

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = "") -> bool:
        happens, self.before_write = self.before_write, None
        if happens is not None:
            await happens()
        version = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != version:
            return False
        self.writes += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.writes)}}
        return True


class Replica:
    """A replica of the webhook that may be ready or not."""

    def __init__(self, leases: Leases, name: str) -> None:
        self.ready = True
        self.uptime = UptimeLease(leases, "mlchassis-system", name, lambda: self.ready, leases.now)

    async def beat(self) -> bool:
        await self.uptime.once()
        return self.uptime.is_leader


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def one(leases: Leases) -> Replica:
    return Replica(leases, "one")


def recorded(leases: Leases) -> list[Outage]:
    assert leases.lease is not None
    return list(outages_in(leases.lease))


async def test_one_of_two_holds_it_and_the_other_takes_over_without_an_outage(
    leases: Leases, one: Replica
) -> None:
    two = Replica(leases, "two")
    for _ in range(5):
        assert await one.beat()
        assert not await two.beat()
        leases.clock += 10
    leases.clock += LAPSED_SECONDS + 1  # the first is gone, the second served all the time
    assert await two.beat()
    assert recorded(leases) == []


async def test_only_a_time_without_a_ready_replica_is_an_outage(leases: Leases, one: Replica) -> None:
    assert await one.beat()
    leases.clock += 3600  # it was slow, or the API server's clock jumped: it was ready all the time
    assert await one.beat()
    leases.clock -= 7200  # a Lease from the future keeps nobody out
    two, began = Replica(leases, "two"), leases.clock
    assert await two.beat()
    assert recorded(leases) == []
    two.ready = False
    leases.clock += 60
    assert not await two.beat()
    leases.clock += 60
    two.ready = True
    assert await two.beat()
    assert recorded(leases) == [Outage(began, began + 120)]
    leases.clock += 300
    assert await two.beat()
    leases.clock += 300
    assert await Replica(leases, "three").beat()
    assert recorded(leases) == [Outage(began, began + 120), Outage(began + 420, began + 720)]


async def test_one_of_two_concurrent_writers_holds_it(leases: Leases, one: Replica) -> None:
    assert await Replica(leases, "gone").beat()
    leases.clock += 100
    two = Replica(leases, "two")
    leases.before_write = two.beat
    assert not await one.beat()
    assert two.uptime.is_leader
    leases.before_write = Replica(leases, "two").beat
    assert not await two.beat(), "it held the Lease, and its write came too late"


async def test_outages_are_bounded_and_near_ones_are_one(leases: Leases) -> None:
    for n in range(OUTAGES_KEPT + 20):
        holder = Replica(leases, f"r{n}")
        assert await holder.beat()
        leases.clock += 3000
        assert await holder.beat()
        leases.clock += 100
    found = recorded(leases)
    assert len(found) == OUTAGES_KEPT
    assert found[-1].end == leases.clock - 3100
    assert len(json.dumps(leases.lease)) < 8_000


@pytest.mark.parametrize(
    ("text", "outages"),
    [
        ("[[50, 60], [10, 20], [25, 30]]", (Outage(10, 60),)),
        *(
            (malformed, ())
            for malformed in ("", "{", "7", "{}", '[["a", 1]]', "[[5, 1]]", "[7]", "[[1,2,3]]")
        ),
        *((malformed, ()) for malformed in ("[null]", "[[true]]")),
    ],
)
def test_near_outages_are_merged_and_malformed_ones_dropped(text: str, outages: tuple[Outage, ...]) -> None:
    assert outages_in({"metadata": {"annotations": {OUTAGES: text}}}) == outages


@pytest.mark.parametrize("malformed", [None, "", "yesterday", 7, "2026-13-01T00:00:00Z"])
async def test_a_lease_with_a_malformed_time_is_taken(malformed: Any, leases: Leases, one: Replica) -> None:
    leases.lease = {
        "metadata": {"name": NAME, "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"renewTime": malformed, "holderIdentity": "somebody"},
    }
    assert await one.beat()
    assert leases.lease["metadata"]["labels"] == {"a": "b"}
    assert renewed_at(leases.lease) == START
    assert datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%dT%H:%M:%S") in json.dumps(leases.lease)


async def test_a_holder_without_an_answer_holds_it_until_another_may_take_it(
    leases: Leases, one: Replica
) -> None:
    assert await one.beat()
    leases.fails = ApiError(0, "Unreachable", "away")
    leases.clock += LAPSED_SECONDS - 1
    with pytest.raises(ApiError):
        await one.beat()
    assert one.uptime.is_leader
    leases.clock += 1
    assert not one.uptime.is_leader
    leases.fails = None
    assert await Replica(leases, "two").beat()


class Enough(Exception):
    """Ends a loop."""


async def rounds(
    count: int, leases: Leases, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """The pauses of the first rounds; each moves the clock."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        leases.clock += seconds
        replica.ready = True
        if len(slept) == count:
            raise Enough

    monkeypatch.setattr("asyncio.sleep", sleep)
    with pytest.raises(Enough):
        await replica.uptime.run()
    return slept


async def test_without_a_renewal_the_leader_steps_down_and_logs_once(
    leases: Leases, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await one.beat()
    leases.fails = ApiError(403, "Forbidden", "no")
    warned: list[str] = []
    monkeypatch.setattr("webhook.kube.leader_election.log.warning", lambda text, **_: warned.append(text))
    await rounds(3, leases, one, monkeypatch)
    assert not one.uptime.is_leader
    assert len(warned) == 1


async def test_an_outage_is_recorded_as_soon_as_it_is_over(
    leases: Leases, one: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.ready = False
    assert await rounds(2, leases, one, monkeypatch) == [UNREADY_SECONDS, RENEW_SECONDS]
    assert one.uptime.is_leader
