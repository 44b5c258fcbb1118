"""The connections of one serving process: accepted, shaken hands with, bounded in number, ended when stuck.

Law: callers that do nothing must not keep out those that ask. What a connection may hold has a bound, the
longest idle one gives way to a new one, and one with a request in flight never does. What is refused is
counted by reason, and its lines in the log are few.

A connection answers plain requests itself (`webhook.fast_path.plain`). The first bytes that are not one whole
plain request make it one of aiohttp's for good: only a server that has read all bytes knows where it stands.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from aiohttp import web
from prometheus_client import Counter

from webhook.fast_path import plain
from webhook.server.bodies import FREE
from webhook.server.log import Bounded
from webhook.server.record import Station

KEEP_ALIVE_SECONDS: Final = 120.0
"""Longer than the 90 s for which the API server keeps idle connections: were ours shorter, it would now and
then send a review into a connection that we are just closing."""
MOST: Final = 1024
"""Connections of a process. An API server keeps some tens, and sends hundreds at once in a burst."""
SPARE_DESCRIPTORS: Final = 128
"""What is left of the limit for files, watches and pipes."""
HANDSHAKE_SECONDS: Final = 10.0
HEAD_SECONDS: Final = 10.0
"""How long the head of a request may take from its first byte. A connection that has sent nothing yet may be
one that an API server keeps for later, and is left alone like any other idle one."""
REQUEST_SECONDS: Final = 60.0
"""Twice the longest timeout that a webhook can have: whoever takes in an answer so slowly has gone."""
SWEEP_SECONDS: Final = 1.0
TURN_SECONDS: Final = 0.02
"""How long a worker leaves a caller to one that holds fewer connections."""
TURN_STEP_SECONDS: Final = 0.001
BUSY_SECONDS: Final = 0.2
"""How long it leaves none to others, once it has done so in vain: they are busy, or hang."""
FRESH_SECONDS: Final = 1.0
"""An idle connection that was used so lately is no idler."""


class Refused:
    """What was turned away on its way to a review: each is counted, few of each reason are logged."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._lines = Bounded("refused")

    def add(self, reason: str, **about: object) -> None:
        """`reason` is one of a few words, a label of the metric."""
        self._counter.labels(reason).inc()
        self._lines.warning(reason, **about)

    def flush(self) -> None:
        """Log what has not been yet."""
        self._lines.flush()


class Desk(Protocol):
    """Answers plain requests."""

    def patience(self, head: plain.Head) -> float | None:
        """Seconds within which such a request has to be answered from its first byte on; None if it can't
        be answered here."""
        ...

    def answer(self, head: plain.Head, body: bytes, deadline: float, peer: str) -> bytes:
        """The whole answer, its head included. `deadline` is on the event loop's clock. Never raises."""
        ...


class Connection(web.RequestHandler):
    """aiohttp's own, which knows besides whether it is idle and for how long, and answers plain requests."""

    def __init__(self, gate: Gate, server: web.Server, desk: Desk | None, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._gate = gate
        self._now = asyncio.get_running_loop().time
        self.used = self._now()
        """When it was accepted, or last ended a request."""
        self.head: float | None = None
        """When the first byte came of a request that has no handler yet."""
        self.since: float | None = None
        """When the request began that is in flight."""
        self._desk = desk
        """None once aiohttp has got any bytes."""
        self._held = bytearray()
        """A plain request whose body is still arriving."""
        self._whole = 0
        """The bytes that it will have."""
        self._late: asyncio.TimerHandle | None = None
        self._began: float | None = None
        """When a request arrived that aiohttp was handed later."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # It would end a connection that it sees nothing of; `Gate.sweep` ends the idle ones.
        self.keep_alive(True)
        self._gate.joined(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget()
        self._gate.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._desk is not None:
            self._plain(self._desk, data)
            return
        if data and self.since is None and self.head is None:
            self.head = self._now()
        super().data_received(data)

    def eof_received(self) -> None:
        if self._held:
            self._hand_over()
        super().eof_received()

    # --- plain requests --------------------------------------------------------------------------------

    def _plain(self, desk: Desk, data: bytes) -> None:
        held = self._held
        if held:
            held += data
            if len(held) < self._whole:
                return
            data = bytes(held)
        end = data.find(b"\r\n\r\n", 0, plain.HEAD_BYTES)
        head = plain.read(data[:end]) if end > 0 else None
        patience = desk.patience(head) if head is not None and head.length <= FREE else None
        if head is None or patience is None or self.writing_paused:
            self._hand_over(data)
            return
        whole = end + 4 + head.length
        if len(data) < whole:
            self.since = self._now()
            self._held, self._whole = bytearray(data), whole
            self._late = asyncio.get_running_loop().call_at(self.since + patience, self._hand_over)
        elif len(data) == whole:
            since = self._now() if self.since is None else self.since
            self._forget()
            answer = desk.answer(head, data[end + 4 :], since + patience, _peer(self))
            self.used = self._now()
            if self.transport is not None:
                self.transport.write(answer)
        else:
            self._hand_over(data)

    def _hand_over(self, data: bytes | None = None) -> None:
        """Leave what came so far, and all that comes, to aiohttp."""
        data = bytes(self._held) if data is None else data
        self._began, self._desk = self.since, None
        self._forget()
        self.data_received(data)

    def _forget(self) -> None:
        """Hold nothing any more."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
            self._held = bytearray()
        self.since = None

    # --- requests that aiohttp reads -------------------------------------------------------------------

    def begin(self) -> None:
        """A request has a handler."""
        self.since, self.head = self._now() if self._began is None else self._began, None
        self._began = None

    def end(self) -> None:
        """Its answer is written next."""
        self.used, self.since = self._now(), None

    # --- its state -------------------------------------------------------------------------------------

    @property
    def unsent(self) -> bool:
        """Whether a part of an answer has not been taken in."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    @property
    def idle(self) -> bool:
        return self.since is None and not self.unsent

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
        """Answer what is no HTTP request in one sentence; aiohttp would log a traceback for each."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        self._gate.refused.add("no-http", peer=request.remote)
        answer = web.Response(status=status, text="the request is not HTTP/1.1 as a server can read it\n")
        answer.force_close()
        return answer


class Gate:
    """Takes the connections of a listening socket and hands each to the HTTP server."""

    def __init__(
        self,
        server: web.Server,
        tls: Callable[[], ssl.SSLContext] | None,
        refused: Refused,
        desk: Desk | None = None,
        station: Station | None = None,
        most: int | None = None,
        **options: Any,
    ) -> None:
        """`tls` is asked at each connection, so that a new certificate is served in a context of its own:
        OpenSSL keeps one of each key type in a context, and would go on to serve the old one beside it.
        `desk` answers plain requests; `station` tells which connections the other workers hold; `options`
        are those of aiohttp's request handler."""
        self._server, self._tls, self.refused, self._desk = server, tls, refused, desk
        self._station = station or Station.alone()
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
        self._station.record.holds(len(self))

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
            self._station.record.holds(len(self))
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
        while len(self) > min((other.connections for other in self._station.others), default=len(self)):
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
            if self._evict():
                await asyncio.sleep(0)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(FRESH_SECONDS):
                    await self._room.wait()

    def _evict(self) -> bool:
        """End the connection that has been idle for longest, else the longest handshake."""
        latest = self._now() - FRESH_SECONDS
        # The first bytes of a request may have come a moment ago, on a connection that was idle for long.
        idle = [
            each
            for each in self._open
            if each.idle and each.used <= latest and (each.head is None or each.head <= latest)
        ]
        if idle:
            connection = min(idle, key=lambda each: each.used)
            self.refused.add("too-many-connections", most=self._most, peer=_peer(connection))
            self._open.discard(connection)
            connection.abort()
            return True
        shaking = min(self._shaking, key=self._shaking.__getitem__, default=None)
        if shaking is not None and self._shaking[shaking] <= latest:
            self.refused.add("too-many-connections", most=self._most)
            del self._shaking[shaking]
            shaking.cancel()
            return True
        return False

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
        return Connection(self, self._server, self._desk, **self._options)

    def _shaken(self, shaking: asyncio.Task[None]) -> None:
        self._shaking.pop(shaking, None)
        self._room.set()
        self._station.record.holds(len(self))

    # --- sweeping --------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(self._now())

    def sweep(self, now: float) -> None:
        """End what is stuck at that time, a head that does not end, an answer that nobody takes in; and what
        has been idle for long."""
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
