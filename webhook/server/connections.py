"""The connections of one serving process: accepted, shaken hands with, bounded in number, ended when stuck.

Law: callers that do nothing must not keep out those that ask. If no connection is free, the one that has made
the least progress for the longest time gives way to a new one, in any phase: a handshake, a head, a
body, the next request, its answer being taken in. One whose request has arrived as a whole never gives way.
Refusals are counted by reason, and the log shows few of them.

Plain requests are answered by the fast path (`webhook.fast_path.plain`). The first bytes that are not one
whole plain request make the connection one of aiohttp's for good: only a server that has read all bytes can
read the next ones.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from aiohttp import web
from prometheus_client import Counter

from webhook.server.bodies import FREE
from webhook.server.log import Bounded
from webhook.server.record import SharedRecords

if TYPE_CHECKING:  # it may have been deleted
    from webhook.fast_path.plain import Head, Plain, Reader

KEEP_ALIVE_SECONDS: Final = 120.0
"""Longer than the 90 s for which the API server keeps idle connections: were ours shorter, it would now and
then send a review into a connection that we are just closing."""
MOST: Final = 1024
"""Connections of a process. An API server keeps some tens, and sends hundreds at once in a burst."""
SPARE_DESCRIPTORS: Final = 128
"""Descriptors that stay free for files, watches and pipes."""
HANDSHAKE_SECONDS: Final = 10.0
HEAD_SECONDS: Final = 10.0
"""How long the head of a request may take from its first byte. A connection that has sent nothing yet may be
one that an API server keeps for later, and stays open like any other idle one."""
REQUEST_SECONDS: Final = 60.0
"""Twice the longest timeout that a webhook can have: a client that reads an answer so slowly has gone."""
SWEEP_SECONDS: Final = 1.0
TURN_SECONDS: Final = 0.02
"""How long a worker leaves a caller to one that holds fewer connections."""
TURN_STEP_SECONDS: Final = 0.001
BUSY_SECONDS: Final = 0.2
"""How long it leaves none to others, once it has done so in vain: they are busy, or hang."""
FRESH_SECONDS: Final = 1.0
"""A connection that made progress so lately does not give way."""
PACE: Final = 4096
"""Bytes a second: each so many bytes of a request count as a second of progress,"""
CREDIT_SECONDS: Final = 2.0
"""but no more than these together: else a large part of a body would buy a place for long."""


class Refused:
    """Connections and requests that were refused: each is counted, few of each reason are logged."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._lines = Bounded("refused")

    def add(self, reason: str, **about: object) -> None:
        """`reason` is one of a few words, a label of the metric."""
        self._counter.labels(reason).inc()
        self._lines.warning(reason, **about)

    def flush(self) -> None:
        """Log the remaining lines."""
        self._lines.flush()


class Desk(Protocol):
    """Answers plain requests."""

    def patience(self, head: Head) -> float | None:
        """Seconds within which such a request has to be answered from its first byte on; None if it can't
        be answered here."""
        ...

    def answer(
        self, endpoint: str, body: bytes, deadline: float, peer: str
    ) -> tuple[HTTPStatus, bytes, bytes]:
        """Status, content type and body of the answer. `deadline` is on the event loop's clock. Never
        raises."""
        ...


class FastPath(Protocol):
    """The part of `webhook.fast_path` that reads and writes HTTP."""

    Reader: type[Reader]

    @staticmethod
    def written(status: HTTPStatus, content_type: bytes, body: bytes) -> bytes: ...


class Connection(web.RequestHandler):
    """aiohttp's own, which also knows how long it has made no progress, and answers plain requests."""

    def __init__(
        self, acceptor: Acceptor, server: web.Server, fast: tuple[FastPath, Desk] | None, **options: Any
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._acceptor = acceptor
        self._now = asyncio.get_running_loop().time
        self.used = self._now()
        """When it was accepted, or last ended a request."""
        self.head: float | None = None
        """When the first byte came of a request that has no handler yet."""
        self.since: float | None = None
        """When the request began that is in flight."""
        self._arrived = False
        """Whether all of that request has come."""
        self._received = 0
        """Bytes that have come since it began."""
        self._fast = fast
        self._reader = fast[0].Reader(fast[1].patience, FREE) if fast else None
        """None once aiohttp has got any bytes."""
        self._late: asyncio.TimerHandle | None = None
        self._began: float | None = None
        """When a request arrived that aiohttp was handed later."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # It would end a connection that it sees nothing of; `Acceptor.sweep` ends the idle ones.
        self.keep_alive(True)
        self._acceptor.joined(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget()
        self._acceptor.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reader is not None:
            self._read(self._reader, data)
            return
        if data and self.since is None and self.head is None:
            self.head, self._received = self._now(), 0
        self._received += len(data)
        super().data_received(data)

    def eof_received(self) -> None:
        if self._reader:
            self._hand_over(self._reader.rest())
        super().eof_received()

    # --- plain requests --------------------------------------------------------------------------------

    def _read(self, reader: Reader, data: bytes) -> None:
        found = reader.rest(data) if self.writing_paused else reader.read(data)
        if type(found) is bytes:
            self._hand_over(found)
        elif found is not None:
            self._answer(cast("Plain", found))
        elif self.since is None:
            self.since, self._received, self._arrived = self._now(), len(data), False
            late = self.since + reader.patience
            self._late = asyncio.get_running_loop().call_at(late, self._hand_over_late)
        else:
            self._received += len(data)

    def _answer(self, plain: Plain) -> None:
        assert self._fast is not None
        fast, desk = self._fast
        since = self._now() if self.since is None else self.since
        self._forget()
        answer = desk.answer(plain.head.endpoint, plain.body, since + plain.patience, _peer(self))
        self.used = self._now()
        if self.transport is not None:
            self.transport.write(fast.written(*answer))

    def _hand_over_late(self) -> None:
        if self._reader is not None:
            self._hand_over(self._reader.rest())

    def _hand_over(self, data: bytes) -> None:
        """Give the bytes so far, and all later ones, to aiohttp."""
        self._began, self._reader = self.since, None
        self._forget()
        self.data_received(data)

    def _forget(self) -> None:
        """Wait for no more of a request."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self.since = None

    # --- requests that aiohttp reads -------------------------------------------------------------------

    def begin(self) -> None:
        """A request has a handler."""
        began = self.head if self._began is None else self._began
        self.since, self.head = self._now() if began is None else began, None
        self._began, self._arrived = None, False

    def arrived(self) -> None:
        """All of it has come."""
        self._arrived = True

    def end(self) -> None:
        """Its answer is written next."""
        self.used, self.since = self._now(), None

    # --- its state -------------------------------------------------------------------------------------

    @property
    def unsent(self) -> bool:
        """Whether a part of an answer has not been taken in.

        Over TLS the event loop does not show what it has already encrypted: a connection with only that left
        counts as idle, and gives way like one.
        """
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    @property
    def idle(self) -> bool:
        return self.since is None and not self.unsent

    def behind(self, now: float) -> float | None:
        """Seconds for which it has made no progress; None if it is for us to answer."""
        began = self.head if self.since is None else self.since
        if began is None:
            return now - self.used
        if self.since is not None and self._arrived:
            return None
        return now - began - min(self._received / PACE, CREDIT_SECONDS)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP request in one sentence; aiohttp would log a traceback for each."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        self._acceptor.refused.add("no-http", peer=request.remote)
        answer = web.Response(status=status, text="the request is not HTTP/1.1 as a server can read it\n")
        answer.force_close()
        return answer


class Acceptor:
    """Takes the connections of a listening socket and hands each to the HTTP server."""

    def __init__(
        self,
        server: web.Server,
        tls: Callable[[], ssl.SSLContext] | None,
        refused: Refused,
        fast: tuple[FastPath, Desk] | None = None,
        shared: SharedRecords | None = None,
        most: int | None = None,
        **options: Any,
    ) -> None:
        """`tls` is asked at each connection, so that a new certificate is served in a new context:
        OpenSSL keeps one of each key type in a context, and would go on to serve the old one, too.
        `fast` answers plain requests; `shared` knows which connections the other workers hold; `options`
        are those of aiohttp's request handler."""
        self._server, self._tls, self.refused, self._fast = server, tls, refused, fast
        self._shared = shared or SharedRecords.alone()
        self._options = options
        self._most = most or min(MOST, max(descriptors() - SPARE_DESCRIPTORS, 16))
        self._open: set[Connection] = set()
        self._shaking: dict[asyncio.Task[None], float] = {}
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: socket.socket | None = None
        self._busy_until = 0.0
        self._now = asyncio.get_running_loop().time

    def open(self, listener: socket.socket) -> None:
        """Accept from now on; the listener is closed in the end."""
        listener.setblocking(False)
        self._listener = listener
        self._tasks = [asyncio.create_task(self._accept(listener)), asyncio.create_task(self._sweep())]

    async def close(self, patience: float) -> None:
        """Take no more connections; wait up to `patience` seconds for those that shake hands."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._shaking:
            await asyncio.wait(self._shaking, timeout=patience)
        for shaking in self._shaking:
            shaking.cancel()

    def joined(self, connection: Connection) -> None:
        self._open.add(connection)

    def left(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._room.set()
        self._shared.record.holds(len(self))

    def __len__(self) -> int:
        return len(self._open) + len(self._shaking)

    # --- accepting -------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            await self._vacancy()
            await self._turn(listener)
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:  # another worker has taken the caller
                continue
            except OSError as error:  # no descriptor, no memory, or the caller has gone again
                self.refused.add("not-accepted", error=error.strerror or str(error))
                await asyncio.sleep(FRESH_SECONDS / 10)
                continue
            accepted.setblocking(False)
            shaking = asyncio.create_task(self._shake(accepted))
            self._shaking[shaking] = self._now()
            self._shared.record.holds(len(self))
            shaking.add_done_callback(self._shaken)

    async def _turn(self, listener: socket.socket) -> None:
        """Wait until somebody calls, and until it is for this worker to answer.

        All workers wake up for a caller. An API server keeps a few connections for long, and were all of
        them the fastest worker's, the others would have nothing to do.
        """
        loop, calls = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(listener, calls.set)
        try:
            await calls.wait()
        finally:
            loop.remove_reader(listener)
        ends = self._now() + TURN_SECONDS
        while len(self) > min((other.connections for other in self._shared.others), default=len(self)):
            if self._now() < self._busy_until:
                return
            if self._now() >= ends:
                self._busy_until = self._now() + BUSY_SECONDS
                return
            await asyncio.sleep(TURN_STEP_SECONDS)

    async def _vacancy(self) -> None:
        """Wait until one more connection is in bounds. Meanwhile callers wait in the socket's backlog."""
        while len(self) >= self._most:
            self._room.clear()
            await asyncio.sleep(0)  # read the bytes that arrived meanwhile first: they are progress
            await asyncio.sleep(0)
            if len(self) >= self._most and self._evict():
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(FRESH_SECONDS):
                    await self._room.wait()

    def _evict(self) -> bool:
        """End the connection or handshake that has made the least progress for the longest time."""
        now = self._now()
        waits: list[tuple[float, Connection | asyncio.Task[None]]] = [
            (behind, each) for each in self._open if (behind := each.behind(now)) is not None
        ]
        waits += ((now - began, shaking) for shaking, began in self._shaking.items())
        behind, last = max(waits, key=itemgetter(0), default=(0.0, None))
        if last is None or behind < FRESH_SECONDS:
            return False
        if isinstance(last, Connection):
            self.refused.add("too-many-connections", most=self._most, peer=_peer(last))
            self._open.discard(last)
            last.abort()
        else:
            self.refused.add("too-many-connections", most=self._most)
            del self._shaking[last]
            last.cancel()
        return True

    async def _shake(self, accepted: socket.socket) -> None:
        tls = self._tls() if self._tls else None
        late = {"ssl_handshake_timeout": HANDSHAKE_SECONDS} if tls else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, accepted, ssl=tls, **late
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is one
            accepted.close()
            self.refused.add("no-handshake", error=str(error) or type(error).__name__)
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _connection(self) -> Connection:
        return Connection(self, self._server, self._fast, **self._options)

    def _shaken(self, shaking: asyncio.Task[None]) -> None:
        self._shaking.pop(shaking, None)
        self._room.set()
        self._shared.record.holds(len(self))

    # --- sweeping --------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(self._now())

    def sweep(self, now: float) -> None:
        """End stuck connections (a head that does not end, an answer that is not read) and those that were
        idle for long."""
        for connection in list(self._open):
            begun = connection.since
            if begun is None and connection.unsent:
                begun = connection.used
            if begun is not None and now - begun > REQUEST_SECONDS:
                self.refused.add("answer-not-taken", peer=_peer(connection))
                connection.abort()
            elif connection.idle and connection.head is not None and now - connection.head > HEAD_SECONDS:
                self.refused.add("slow-head", peer=_peer(connection))
                connection.abort()
            elif connection.idle and connection.head is None and now - connection.used > KEEP_ALIVE_SECONDS:
                connection.force_close()


@web.middleware
async def mark(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Keep each connection's state: whether a request is in flight on it."""
    connection = cast(Connection, request.protocol)
    connection.begin()
    try:
        return await handler(request)
    finally:
        connection.end()


def descriptors() -> int:
    """How many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptors() -> None:
    """As many as the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _peer(connection: Connection) -> str:
    name = connection.peername
    return str(name[0]) if isinstance(name, tuple) else ""
