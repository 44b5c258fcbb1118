"""The Lease of the uptime: who holds it, what it records, and what somebody may have made of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from policies.core.annotations import OUTAGES
from policies.kube.json import Json
from webhook.kube.errors import ApiError
from webhook.kube.leases import renewed_at
from webhook.kube.uptime import (
    LAPSED_SECONDS,
    NAME,
    OUTAGES_KEPT,
    RENEW_SECONDS,
    UNREADY_SECONDS,
    Outage,
    Uptime,
    outages_in,
)

START = 1_800_000_000.0


class Leases:
    """One Lease, compare-and-swap by resourceVersion, and a clock."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.clock = START
        self.fails: ApiError | None = None
        self.writes = 0

    def now(self) -> float:
        return self.clock

    async def get(self, path: str) -> Json | None:
        assert path.endswith(f"/{NAME}")
        if self.fails:
            raise self.fails
        return self.lease

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = "") -> bool:
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
        self.uptime = Uptime(leases, "mlchassis-system", name, lambda: self.ready, leases.now)

    async def beat(self) -> bool:
        await self.uptime.once()
        return self.uptime.is_leader


def recorded(leases: Leases) -> list[Outage]:
    assert leases.lease is not None
    return list(outages_in(leases.lease))


async def test_one_of_two_holds_it_and_the_other_takes_over_without_an_outage() -> None:
    leases = Leases()
    one, two = Replica(leases, "one"), Replica(leases, "two")
    assert await one.beat()
    assert not await two.beat()
    for _ in range(5):
        leases.clock += 10
        assert await one.beat()
        assert not await two.beat()
    leases.clock += LAPSED_SECONDS + 1  # the first is gone, the second served all the time
    assert await two.beat()
    assert recorded(leases) == []


async def test_a_time_in_which_none_was_ready_is_an_outage() -> None:
    leases = Leases()
    assert await Replica(leases, "one").beat()
    leases.clock += 300
    assert await Replica(leases, "two").beat()
    assert recorded(leases) == [Outage(START, START + 300)]


async def test_a_replica_that_was_not_ready_meanwhile_did_not_serve() -> None:
    leases = Leases()
    one = Replica(leases, "one")
    assert await one.beat()
    one.ready = False
    leases.clock += 60
    assert not await one.beat()
    leases.clock += 60
    one.ready = True
    assert await one.beat()
    assert recorded(leases) == [Outage(START, START + 120)]


async def test_short_pauses_and_a_clock_that_jumps_are_no_outages() -> None:
    leases = Leases()
    one = Replica(leases, "one")
    assert await one.beat()
    leases.clock += 3600  # it was slow, or the API server's clock jumped: it was ready all the time
    assert await one.beat()
    leases.clock -= 7200  # a Lease from the future keeps nobody out
    assert await Replica(leases, "two").beat()
    assert recorded(leases) == []


async def test_of_two_that_take_over_at_once_one_holds_it() -> None:
    leases = Leases()
    assert await Replica(leases, "gone").beat()
    leases.clock += 100
    two = Replica(leases, "two")
    read = leases.lease
    assert await Replica(leases, "three").beat()
    winner, leases.lease = leases.lease, read

    async def late(method: str, path: str, body: Json, content_type: str = "") -> bool:
        leases.lease = winner
        return await Leases.unless_conflict(leases, method, path, body)

    leases.unless_conflict = late  # type: ignore[method-assign]
    assert not await two.beat()
    assert leases.lease == winner


async def test_outages_are_bounded_and_near_ones_are_one() -> None:
    leases = Leases()
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
    near = {"metadata": {"annotations": {OUTAGES: "[[50, 60], [10, 20], [25, 30]]"}}}
    assert outages_in(near) == (Outage(10, 60),)


@pytest.mark.parametrize(
    "spoilt",
    ["", "{", "7", "{}", '[["a", 1]]', "[[5, 1]]", "[7]", "[[1,2,3]]", "[null]", "[[true]]"],
)
def test_a_spoilt_record_is_an_empty_one(spoilt: str) -> None:
    assert outages_in({"metadata": {"annotations": {OUTAGES: spoilt}}}) == ()


@pytest.mark.parametrize("spoilt", [None, "", "yesterday", 7, "2026-13-01T00:00:00Z"])
async def test_a_lease_with_a_spoilt_time_is_taken_over(spoilt: Any) -> None:
    leases = Leases()
    leases.lease = {
        "metadata": {"name": NAME, "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"renewTime": spoilt, "holderIdentity": "somebody"},
    }
    leases.writes = 7
    assert await Replica(leases, "one").beat()
    assert leases.lease["metadata"]["labels"] == {"a": "b"}
    assert renewed_at(leases.lease) == START
    assert datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%dT%H:%M:%S") in json.dumps(leases.lease)


async def test_a_holder_whose_write_is_not_the_first_holds_it_no_longer() -> None:
    leases = Leases()
    one = Replica(leases, "one")
    assert await one.beat()

    async def late(method: str, path: str, body: Json, content_type: str = "") -> bool:
        return False

    leases.unless_conflict = late  # type: ignore[method-assign]
    assert not await one.beat()


async def test_a_holder_that_hangs_or_gets_no_answer_holds_it_until_another_may_take_it() -> None:
    leases = Leases()
    one = Replica(leases, "one")
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


async def test_an_api_server_that_fails_takes_the_work_away_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leases = Leases()
    replica = Replica(leases, "one")
    assert await replica.beat()
    leases.fails = ApiError(403, "Forbidden", "no")
    rounds = 0

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        leases.clock += seconds
        if rounds == 3:
            raise Enough

    monkeypatch.setattr("asyncio.sleep", sleep)
    warned: list[str] = []
    monkeypatch.setattr("webhook.kube.uptime.log.warning", lambda text, **_: warned.append(text))
    with pytest.raises(Enough):
        await replica.uptime.run()
    assert not replica.uptime.is_leader
    assert len(warned) == 1


async def test_an_outage_is_written_down_as_soon_as_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases()
    replica = Replica(leases, "one")
    slept: list[float] = []
    readiness = iter([False, False, True, True])
    monkeypatch.setattr(replica.uptime, "_ready", lambda: next(readiness))

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise Enough

    monkeypatch.setattr("asyncio.sleep", sleep)
    with pytest.raises(Enough):
        await replica.uptime.run()
    assert slept == [UNREADY_SECONDS, RENEW_SECONDS]
    assert replica.uptime.is_leader
