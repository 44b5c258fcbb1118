"""Who gets a connection to a store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from puller.model_config import ModelSpec
from puller.storage.connections import Connections
from puller.storage.fetch import Fetch
from tests.puller.fakes import FaultStore, until
from tests.puller.storage.fetching import LIMITS, MB, fetch_of


class Users:
    """Owners that each keep some connections for ever, and take them again if they lose them."""

    def __init__(self, limit: int) -> None:
        self.connections = Connections(limit)
        self.used: Counter[str] = Counter()
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, owner: str, count: int, *, revocable: bool = True) -> None:
        self.tasks += [asyncio.create_task(self._use(owner, revocable)) for _ in range(count)]

    async def _use(self, owner: str, revocable: bool) -> None:
        while True:
            async with self.connections.use(owner, revocable=revocable):
                self.used[owner] += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.used[owner] -= 1

    async def settle(self, **expected: int) -> None:
        await until(lambda: +self.used == Counter(expected), seconds=5, what=str(expected))
        await asyncio.sleep(0.05)
        assert +self.used == Counter(expected)

    async def end(self, owner_tasks: slice) -> None:
        ended = self.tasks[owner_tasks]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)


@pytest.fixture
async def users() -> AsyncIterator[Users]:
    made = Users(8)
    yield made
    await made.end(slice(None))
    assert made.connections._free == 8
    assert not made.connections._held
    assert not made.connections._waiting
    assert not made.connections._revocable


async def test_one_model_uses_all_and_others_get_their_share_at_once(users: Users) -> None:
    users.add("a", 8)
    await users.settle(a=8)
    users.add("b", 8)
    await users.settle(a=4, b=4)
    users.add("c", 1)
    await users.settle(a=3, b=4, c=1)
    await users.end(slice(8, 16))
    await users.settle(a=7, c=1)


async def test_a_connection_that_must_not_end_stays(users: Users) -> None:
    users.add("a", 8, revocable=False)
    users.add("b", 2)
    await users.settle(a=8)
    await users.end(slice(0, 3))
    await users.settle(a=5, b=2)


async def test_errors_of_the_block_are_raised() -> None:
    connections = Connections(1)
    for error in (TimeoutError, ValueError):
        with pytest.raises(error):
            async with connections.use("a", revocable=True):
                raise error
    async with asyncio.timeout(5), connections.use("a"):
        pass


class Slow(FaultStore):
    """Sends objects below `slow/` a few bytes at a time until it is `released`."""

    released: asyncio.Event

    async def _send(self, request: web.Request, response: web.StreamResponse, body: bytes) -> None:
        at = 0
        while "/slow/" in request.path and at < len(body) and not self.released.is_set():
            await response.write(body[at : at + 2000])
            at += 2000
            await asyncio.sleep(0.2)
        await super()._send(request, response, body[at:])


async def test_a_slow_store_does_not_hold_up_the_models_of_others(tmp_path: Path) -> None:
    store = Slow()
    store.released = asyncio.Event()
    large, small = bytes(range(256)) * (12 * MB // 256), b"s" * 3 * MB
    store.objects = {"slow/m": large, "fast/m": small}
    await store.start()
    try:
        slow = fetch_of(store.env, tmp_path, "s3://bucket/slow")
        fast = Fetch(ModelSpec("fast", "s3://bucket/fast"), slow.staging.with_name("fast"), slow.storage)
        running = asyncio.create_task(slow.run())
        await until(lambda: store.gets["slow/m"] >= LIMITS.connections)
        async with asyncio.timeout(20):
            assert (await fast.run() / "m").read_bytes() == small
        assert not running.done()
        store.released.set()
        assert (await running / "m").read_bytes() == large
    finally:
        store.released.set()
        await store.stop()
