"""Hostile callers on the HTTP layer: each costs what it may, is counted, and keeps nobody else out."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import pytest
import structlog
from aiohttp import web

from tests.steady import pass_over
from tests.webhook.kube.apiserver import until
from tests.webhook.server.running import HEAD, Running, review, serving
from webhook.admission.answer import Answer, allowed
from webhook.admission.envelope import Request
from webhook.server import admission_server, bodies, connections, pki, reviews, tls_reload
from webhook.server.admission_server import listen
from webhook.server.bodies import BodyBudget
from webhook.server.connections import Acceptor, raise_descriptor_limit
from webhook.server.log import LINES_A_MINUTE
from webhook.server.metrics import Metrics
from webhook.server.shared_memory import (
    SharedRecords,
    Suspects,
    WorkerRestarts,
    WorkerState,
    in_shared_memory,
)

BODY = json.dumps(review()).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)

pytestmark = pytest.mark.usefixtures("_quick")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_server, "LAST_HANDSHAKES_SECONDS", 0)
    for patient in ("HEAD_SECONDS", "HANDSHAKE_SECONDS"):
        monkeypatch.setattr(connections, patient, 60)
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.01)
    monkeypatch.setattr(bodies, "OLD_SECONDS", 0.01)


@pytest.fixture
async def at_once() -> AsyncIterator[Running]:
    async with serving() as it:
        yield it


@asynccontextmanager
async def callers(running: Running, count: int, data: bytes = b"") -> AsyncIterator[list[Caller]]:
    """Connections that have sent `data` and no more."""
    made = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(data)
        made.append(Caller(reader, writer))
    yield made
    for caller in made:
        caller.writer.transport.abort()


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> bytes:
        """The bytes until the connection ends; empty if it was just closed."""
        try:
            return await asyncio.wait_for(self.reader.read(), 60)
        except ConnectionError:
            return b""

    async def status(self) -> int:
        line = await asyncio.wait_for(self.reader.readline(), 60)
        return int(line.split()[1])


def refused(running: Running, reason: str) -> float:
    return running.metric("chassis_refused_total", reason=reason)


def acceptor_of(running: Running) -> Acceptor:
    assert running.server._acceptor is not None
    return running.server._acceptor


async def settled(acceptor: Acceptor, count: int) -> None:
    await until(lambda: len(acceptor._connections) == count)


async def in_flight(acceptor: Acceptor, count: int) -> None:
    await until(lambda: sum(each.since is not None for each in acceptor._connections) == count)


def held(running: Running) -> asyncio.Event:
    """Set it to release the answers, which wait until then."""
    release = asyncio.Event()

    async def slow(_: Request, __: float) -> Answer:
        await release.wait()
        return Answer(allowed())

    running.answer = slow
    return release


def certificate() -> tls_reload.ServingCertificate:
    made = tls_reload.ServingCertificate()
    made.install(pki.issue(["127.0.0.1"], datetime.now(UTC)))
    return made


async def fine(running: Running) -> None:
    assert await running.review() == {"uid": "0f1e", "allowed": True}


# --- connections ---------------------------------------------------------------------------------------


async def test_connections_are_bounded_and_the_longest_idle_one_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 10)
    async with serving() as running, callers(running, 30) as idle:
        await asyncio.gather(*(caller.answer() for caller in idle[:20]))
        await fine(running)
        assert refused(running, "too-many-connections") >= 20
        assert len(acceptor_of(running)) <= 10


async def test_a_connection_with_a_request_in_flight_never_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 4)
    async with serving(waits=True) as running:
        release = held(running)
        async with callers(running, 3, WHOLE) as busy:
            await in_flight(acceptor_of(running), 3)
            async with callers(running, 20) as idle:
                await asyncio.gather(*(caller.answer() for caller in idle[:19]))
                release.set()
                assert [await caller.status() for caller in busy] == [200, 200, 200]
                assert refused(running, "too-many-connections") >= 19


async def test_a_connection_on_which_a_request_has_just_begun_does_not_give_way(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with callers(running, 1) as (caller,):
        acceptor = acceptor_of(running)
        await settled(acceptor, 1)
        await until(lambda: not acceptor._handshakes)
        monkeypatch.setattr(connections, "FRESH_SECONDS", 0)
        (connection,) = acceptor._connections
        now = asyncio.get_running_loop().time()
        connection.used, connection.head = now - 1_000, now + 1_000
        assert not acceptor._evict()
        connection.head = now - 1_000
        assert acceptor._evict()
        assert await caller.answer() == b""


SLOW: Final = {
    "no byte": b"",
    "a part of a head": HEAD[:20],
    "a byte of a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "a byte of a body that aiohttp reads": HEAD + b"X: y\r\nContent-Length: 100\r\n\r\n{",
    "a byte of a chunked body": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "a byte of a large body": HEAD + b"Content-Length: 8000000\r\n\r\n{",
    "the most of a body": HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 59_999,
}


@pytest.fixture
def no_timeouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No caller is ended for being slow, however long the machine stops."""
    reviews.time_limit.cache_clear()
    for where, name in (
        (reviews, "DEFAULT_TIMEOUT"),
        (reviews, "MAX_TIMEOUT"),
        (connections, "HANDSHAKE_SECONDS"),
        (connections, "HEAD_SECONDS"),
        (connections, "REQUEST_SECONDS"),
    ):
        monkeypatch.setattr(where, name, 3_600.0)
    yield
    reviews.time_limit.cache_clear()


@pytest.mark.usefixtures("no_timeouts")
@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW.keys())
async def test_incomplete_requests_give_way_at_any_stage(
    running: Running, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CREDIT_SECONDS", 0.02)
    monkeypatch.setattr(acceptor_of(running), "_most", 10)
    async with callers(running, 12, sent):
        await fine(running)
        assert refused(running, "too-many-connections") >= 3
        assert refused(running, "slow-body") == refused(running, "slow-head") == 0


@pytest.mark.usefixtures("no_timeouts")
async def test_1100_slow_callers_keep_nobody_out() -> None:
    """Each has sent one byte of a body. None of them is answered or times out in this test."""
    async with serving() as running, callers(running, 1_100, SLOW["a byte of a body"]):
        await fine(running)
        assert refused(running, "too-many-connections") >= 1_101 - connections.MAX_CONNECTIONS
        assert refused(running, "slow-body") == 0


LONG = json.dumps(review(uid="u" * 1_000_000)).encode()
SLOW_OVER_TLS: Final = {
    "no handshake": None,
    "a part of a head": SLOW["a part of a head"],
    "a byte of a body": SLOW["a byte of a body"],
    "the most of a body": SLOW["the most of a body"],
    "an answer that is not taken in": HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(LONG), LONG),
}


@pytest.mark.usefixtures("no_timeouts")
async def test_slow_callers_of_every_kind_over_tls_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place that is needed is taken from one of them; none of them is ended by a timeout."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 12)
    monkeypatch.setattr(connections, "CREDIT_SECONDS", 0.02)
    served, trusting = certificate(), ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(tls=lambda: served.context))
        acceptor = acceptor_of(running)

        async def connected(sent: bytes | None) -> Caller:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, running.address)
            tls = {} if sent is None else {"ssl": trusting, "server_hostname": ""}
            reader, writer = await asyncio.open_connection(sock=raw, limit=1024, **tls)  # type: ignore[arg-type]
            stack.callback(writer.close)
            stack.callback(writer.transport.abort)
            writer.write(sent or b"")
            return Caller(reader, writer)

        slow = [await connected(sent) for sent in SLOW_OVER_TLS.values() for _ in range(3)]
        for _ in range(3):
            assert await (await connected(WHOLE)).status() == 200
        assert len(acceptor) <= 12
        ended = refused(running, "too-many-connections")
        needed = len(slow) + 3 - 12
        assert needed <= ended <= needed + 1, "a place is made before the next caller comes"
        for timeout in ("slow-head", "slow-body", "no-handshake", "answer-not-taken"):
            assert refused(running, timeout) == 0


async def test_the_one_with_the_least_progress_for_the_longest_time_gives_way_first(running: Running) -> None:
    """A slow but honest API server has sent the most of its review; others one byte of theirs, later."""
    acceptor = acceptor_of(running)
    honest, slow = WHOLE[:-5], SLOW["a byte of a body"]
    async with callers(running, 1, honest) as (api_server,), callers(running, 3, slow) as others:
        await in_flight(acceptor, 4)
        now = asyncio.get_running_loop().time()
        for connection in acceptor._connections:  # a second of progress is worth more than 0.05 s of waiting
            connection.since = now - (1.05 if connection._received == len(honest) else 1.0)
        behind = sorted((each.stalled(now) or 0, each._received) for each in acceptor._connections)
        assert [received for _, received in behind] == [len(honest), *[len(slow)] * 3]
        for _ in others:
            assert acceptor._evict()
        assert await asyncio.gather(*(caller.answer() for caller in others)) == [b""] * 3
        api_server.writer.write(WHOLE[-5:])
        assert await api_server.status() == 200


async def test_callers_beyond_the_bound_wait_until_one_in_flight_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "FRESH_SECONDS", 60)  # none gives way
    async with serving(waits=True) as running:
        release = held(running)
        closing = WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: close")
        async with callers(running, 2, closing) as first:
            await in_flight(acceptor_of(running), 2)
            async with callers(running, 3, closing) as second:
                release.set()
                statuses = [await caller.status() for caller in [*first, *second]]
        assert statuses == [200] * 5


async def test_a_head_that_does_not_end_is_ended(running: Running) -> None:
    async with callers(running, 5, b"POST /validate HT") as slow, callers(running, 2) as silent:
        await settled(acceptor_of(running), 7)
        acceptor = acceptor_of(running)
        await until(lambda: sum(each.head is not None for each in acceptor._connections) == 5)
        now = asyncio.get_running_loop().time()
        acceptor.sweep(now)
        assert refused(running, "slow-head") == 0
        acceptor.sweep(now + connections.HEAD_SECONDS + 1)
        assert [await caller.answer() for caller in slow] == [b""] * 5
        assert refused(running, "slow-head") == 5
        # An API server may keep an unused connection for later.
        for caller in silent:
            caller.writer.write(WHOLE)
            assert await caller.status() == 200


async def test_an_unread_answer_is_given_up(waiting: Running) -> None:
    release = held(waiting)
    async with callers(waiting, 1, WHOLE.replace(b"/validate", b"/validate?timeout=30s")) as stuck:
        acceptor = acceptor_of(waiting)
        await in_flight(acceptor, 1)
        acceptor.sweep(asyncio.get_running_loop().time() + connections.REQUEST_SECONDS + 1)
        assert await stuck[0].answer() == b""
    assert refused(waiting, "answer-not-taken") == 1
    release.set()


async def test_handshakes_that_never_begin_or_fail_are_ended_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.2)
    served = certificate()
    async with serving(tls=lambda: served.context) as running:
        async with callers(running, 3) as silent, callers(running, 3, WHOLE) as plain:
            await asyncio.gather(*(caller.answer() for caller in [*silent, *plain]))
        assert refused(running, "no-handshake") == 6
        assert len(acceptor_of(running)) == 0


async def test_handshakes_count_among_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    served = certificate()
    async with serving(tls=lambda: served.context) as running, callers(running, 9) as silent:
        await asyncio.gather(*(caller.answer() for caller in silent[:6]))
        assert refused(running, "too-many-connections") >= 6
        assert len(acceptor_of(running)) <= 3


async def test_no_descriptor_left_is_counted_and_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failures = socket.socket.accept, [OSError(24, "Too many open files")] * 3

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    async with callers(running, 1, WHOLE) as another:
        assert await another[0].status() == 200
    assert refused(running, "not-accepted") == 3


def test_descriptors_are_raised_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- requests ------------------------------------------------------------------------------------------

MANY_HEADERS = b"".join(b"X-%d: y\r\n" % number for number in range(5_000))


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        HEAD + MANY_HEADERS + b"\r\n",
        b"\x16\x03\x01" * 50 + b"\r\n\r\n",
    ],
    ids=["rubbish", "version", "headers", "TLS to a plain port"],
)
async def test_other_protocols_are_a_few_counted_lines_and_no_traceback(
    running: Running, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with callers(running, 20, data) as broken:
            for caller in broken:
                assert (await caller.answer()).startswith(b"HTTP/1.0 400")
        await fine(running)
    assert refused(running, "no-http") == 20
    said = [line["event"] for line in lines if line.get("reason") == "no-http"]
    assert said == ["refused"] * LINES_A_MINUTE
    assert not [record for record in caplog.records if record.exc_info]


async def test_garbage_behind_a_chunked_body_leaves_the_answer_before_it(running: Running) -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    async with callers(running, 1, chunked + b"\0garbage\r\n\r\n") as (caller,):
        answer = await caller.answer()
    # A parser that reads ahead may refuse the whole; then the caller gets that answer.
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 400"))
    await fine(running)


async def test_a_flood_of_pipelined_requests_is_answered_one_after_the_other(running: Running) -> None:
    async with callers(running, 1, WHOLE * 200) as (caller,):
        for _ in range(200):
            assert await caller.status() == 200
            head = await caller.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            await caller.reader.readexactly(length)
    assert (
        running.metric("chassis_admission_requests_total", endpoint="validate", outcome="allowed", kind="Pod")
        == 200
    )


async def test_expect_100_continue_is_followed(running: Running) -> None:
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    async with callers(running, 1, head) as (caller,):
        assert await caller.status() == 100
        await caller.reader.readline()
        caller.writer.write(BODY)
        assert await caller.status() == 200


async def test_an_unknown_expectation_is_refused(running: Running) -> None:
    async with callers(running, 1, WHOLE.replace(b"Host: x", b"Host: x\r\nExpect: magic")) as (caller,):
        assert await caller.status() == 417
    await fine(running)


async def test_a_half_closed_connection_harms_nobody_else(running: Running) -> None:
    async with callers(running, 5, WHOLE[:-5]) as half:
        for caller in half:
            caller.writer.write_eof()
        for caller in half:
            assert b" 200 " not in (await caller.answer())[:15]
        await settled(acceptor_of(running), 0)
    await fine(running)


# --- bodies --------------------------------------------------------------------------------------------


async def test_unfinished_bodies_share_a_bounded_room_and_small_ones_pass(running: Running) -> None:
    room, part = 1_000_000, 400_000
    running.server._budget._room = room
    head = HEAD.replace(b"/validate", b"/validate?timeout=30s") + b"Content-Length: 8000000\r\n\r\n"
    async with callers(running, 20, head + b" " * part) as senders:
        budget = running.server._budget
        answers = [asyncio.create_task(caller.status()) for caller in senders]
        while len(ended := [answer for answer in answers if answer.done()]) < 18:
            assert budget.taken <= room
            await fine(running)
        assert {answer.result() for answer in ended} == {503}
        for answer in answers:
            answer.cancel()
    assert refused(running, "no-room") >= 18


async def test_a_large_body_waits_for_room_and_is_answered(running: Running) -> None:
    budget = running.server._budget
    budget._room = 200_000
    with budget.hold() as other:
        await budget.grow(other, 200_000)
        large = asyncio.create_task(running.post(BODY + b" " * 150_000))
        await until(lambda: bool(budget._waiting))
        assert not large.done()
    assert (await large)[0] == 200
    assert budget.taken == 0


async def test_a_large_body_that_finds_no_room_before_its_deadline_is_a_503(running: Running) -> None:
    budget = running.server._budget
    budget._room = 100_000
    with budget.hold() as other:
        await budget.grow(other, 150_000)
        large = asyncio.create_task(running.post(BODY + b" " * 150_000, "/validate?timeout=10s"))
        await until(lambda: bool(budget._waiting))
        pass_over(10)
        status, text = await large
    assert (status, text) == (503, "other bodies took the memory that this one needed\n")
    assert refused(running, "no-room") == 1
    await fine(running)


async def test_slow_bodies_are_counted(running: Running) -> None:
    head = HEAD.replace(b"/validate", b"/validate?timeout=50ms") + b"Content-Length: 100\r\n\r\n{"
    async with callers(running, 3, head) as slow:
        assert [await caller.status() for caller in slow] == [408] * 3
    assert refused(running, "slow-body") == 3


async def test_room_that_is_given_back_wakes_who_waits() -> None:
    budget = BodyBudget(100)
    with budget.hold() as second:
        with budget.hold() as first:
            await budget.grow(first, bodies.FREE + 80)
            waiting = asyncio.create_task(budget.grow(second, bodies.FREE + 50))
            await asyncio.sleep(0)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 60)
        assert budget.taken == 50
    assert budget.taken == 0


# --- several workers -----------------------------------------------------------------------------------


async def _ok(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="ok")


@asynccontextmanager
async def workers(count: int, serving: int) -> AsyncIterator[tuple[int, list[WorkerState]]]:
    """The port and the records of so many workers behind one socket, of which the first `serving` accept."""
    records = [in_shared_memory(WorkerState) for _ in range(count)]
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1", 0))
        for record in records[:serving]:
            others = tuple(other for other in records if other is not record)
            shared = SharedRecords(record, Suspects(), in_shared_memory(WorkerRestarts), others)
            server = web.Server(_ok)
            acceptor = Acceptor(server, None, connections.Refusals(Metrics().refused), shared=shared)
            acceptor.open(listener.dup())
            stack.push_async_callback(server.shutdown, 0)
            stack.push_async_callback(acceptor.close, 0)
        yield listener.getsockname()[1], records


@asynccontextmanager
async def callers_of(port: int, count: int, *, at_once: bool) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """So many connections, each answered once."""
    open_now: list[asyncio.StreamWriter] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        open_now.append(writer)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")

    try:
        if at_once:
            await asyncio.gather(*(one() for _ in range(count)))
        else:
            for _ in range(count):
                await one()
        yield open_now
    finally:
        for writer in open_now:
            writer.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("count", [2, 10, 25])
@pytest.mark.parametrize("several", [2, 4])
async def test_workers_share_connections_evenly(
    several: int, count: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server keeps its connections: the first worker to wake up must not get all of them."""
    monkeypatch.setattr(connections, "TURN_SECONDS", 60)  # all of them answer, however slow the machine is
    async with (
        workers(several, serving=several) as (port, records),
        callers_of(port, count, at_once=at_once) as callers,
    ):
        held = [record.connections for record in records]
        assert sum(held) == count
        assert max(held) - min(held) <= 1
        callers[0].close()
        await until(lambda: sum(record.connections for record in records) == count - 1)


async def test_a_worker_that_answers_nobody_keeps_nobody_waiting() -> None:
    async with workers(2, serving=1) as (port, records), callers_of(port, 100, at_once=True):
        assert [record.connections for record in records] == [100, 0]
