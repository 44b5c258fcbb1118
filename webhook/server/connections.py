"""The connections of a worker: accept, TLS handshake, a limit on their number, timeouts.

Law: idle callers do not block active ones. If the limit is reached, the connection without progress for the
longest time is closed for a new one, in any phase: handshake, head, body, idle, answer. A connection whose
request has arrived completely is never closed. Refusals are counted by reason, and few of them are logged.

The fast path answers plain requests (`webhook.fast_path.plain`). From the first bytes that are not one whole
plain request, aiohttp reads the rest of the connection: a parser needs all bytes before the next request.
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

from webhook.errors import message_of
from webhook.server.bodies import FREE
from webhook.server.log import RateLimitedLog
from webhook.server.shared_memory import SharedRecords

if TYPE_CHECKING:  # it may have been deleted
    from webhook.fast_path.plain import Head, Plain, Reader

KEEP_ALIVE_SECONDS: Final = 120.0
"""The API server closes idle connections after 90 s. If we closed them first, it would sometimes send a
review on a connection that we are just closing."""
MAX_CONNECTIONS: Final = 1024
"""Connections of a process. An API server keeps some tens, and opens hundreds in a burst."""
SPARE_DESCRIPTORS: Final = 128
"""Descriptors reserved for files, watches and pipes."""
HANDSHAKE_SECONDS: Final = 10.0
HEAD_SECONDS: Final = 10.0
"""How long the head of a request may take from its first byte. A connection that has sent nothing counts as
idle: an API server may keep it for later."""
REQUEST_SECONDS: Final = 60.0
"""Twice the longest timeout of a webhook: a client that reads so slowly has given up."""
SWEEP_SECONDS: Final = 1.0
TURN_SECONDS: Final = 0.02
"""How long a worker leaves a caller to a worker with fewer connections."""
TURN_STEP_SECONDS: Final = 0.001
BUSY_SECONDS: Final = 0.2
"""How long it accepts at once after none of them took the caller: they are busy, or hang."""
FRESH_SECONDS: Final = 1.0
"""A connection with progress in this time is not evicted."""
PACE: Final = 4096
"""This many bytes of a request count as one second of progress."""
CREDIT_SECONDS: Final = 2.0
"""The most that received bytes can count: a large part of a body must not reserve a connection for long."""


class Refusals:
    """Refused connections and requests: all are counted, a few of each reason are logged."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._lines = RateLimitedLog("refused")

    def add(self, reason: str, **fields: object) -> None:
        """`reason` is a label of the metric."""
        self._counter.labels(reason).inc()
        self._lines.warning(reason, **fields)

    def flush(self) -> None:
        """Log the remaining lines."""
        self._lines.flush()


class PlainHandler(Protocol):
    """Answers plain requests."""

    def plain_time_limit(self, head: Head) -> float | None:
        """Seconds from the first byte of the request to its answer; None if aiohttp must read it."""
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
    def http_response(status: HTTPStatus, content_type: bytes, body: bytes) -> bytes: ...


class Connection(web.RequestHandler):
    """aiohttp's connection that also measures its progress and answers plain requests."""

    def __init__(
        self,
        acceptor: Acceptor,
        server: web.Server,
        fast: tuple[FastPath, PlainHandler] | None,
        **options: Any,
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._acceptor = acceptor
        self._now = asyncio.get_running_loop().time
        self.used = self._now()
        """When it was accepted, or its last request ended."""
        self.head: float | None = None
        """When the first byte of a request arrived that has no handler yet."""
        self.since: float | None = None
        """When the current request began."""
        self._complete = False
        """Whether the current request has arrived completely."""
        self._received = 0
        """Bytes received of the current request."""
        self._fast = fast
        self._reader = fast[0].Reader(fast[1].plain_time_limit, FREE) if fast else None
        """None once aiohttp reads the connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None
        """When the request began that was handed over to aiohttp."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # aiohttp would close a connection on which it sees no request; `Acceptor.sweep` closes idle ones.
        self.keep_alive(True)
        self._acceptor.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._reset()
        self._acceptor.remove(self)
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
            self.since, self._received, self._complete = self._now(), len(data), False
            deadline = self.since + reader.time_limit
            self._timer = asyncio.get_running_loop().call_at(deadline, self._on_deadline)
        else:
            self._received += len(data)

    def _answer(self, plain: Plain) -> None:
        assert self._fast is not None
        fast, handler = self._fast
        since = self._now() if self.since is None else self.since
        self._reset()
        answer = handler.answer(plain.head.endpoint, plain.body, since + plain.time_limit, _peer(self))
        self.used = self._now()
        if self.transport is not None:
            self.transport.write(fast.http_response(*answer))

    def _on_deadline(self) -> None:
        if self._reader is not None:
            self._hand_over(self._reader.rest())

    def _hand_over(self, data: bytes) -> None:
        """Give the bytes so far, and all later ones, to aiohttp."""
        self._began, self._reader = self.since, None
        self._reset()
        self.data_received(data)

    def _reset(self) -> None:
        """The current request has ended, or aiohttp reads it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.since = None

    # --- requests that aiohttp reads -------------------------------------------------------------------

    def begin(self) -> None:
        """A request has a handler."""
        began = self.head if self._began is None else self._began
        self.since, self.head = self._now() if began is None else began, None
        self._began, self._complete = None, False

    def body_received(self) -> None:
        """The current request has arrived completely."""
        self._complete = True

    def end(self) -> None:
        """The answer is about to be written."""
        self.used, self.since = self._now(), None

    # --- progress --------------------------------------------------------------------------------------

    @property
    def unsent(self) -> bool:
        """Whether the client has not read all of an answer.

        Over TLS the event loop does not count bytes that are already encrypted: a connection with only those
        left counts as idle.
        """
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    @property
    def idle(self) -> bool:
        return self.since is None and not self.unsent

    def stalled(self, now: float) -> float | None:
        """Seconds without progress by the client; None if the client waits for our answer."""
        began = self.head if self.since is None else self.since
        if began is None:
            return now - self.used
        if self.since is not None and self._complete:
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
        """Answer bytes that are not HTTP with one sentence; aiohttp would log a traceback for each."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        self._acceptor.refusals.add("no-http", peer=request.remote)
        answer = web.Response(status=status, text="the request is not HTTP/1.1 as a server can read it\n")
        answer.force_close()
        return answer


class Acceptor:
    """Accepts the connections of a listening socket for the HTTP server."""

    def __init__(
        self,
        server: web.Server,
        tls: Callable[[], ssl.SSLContext] | None,
        refusals: Refusals,
        shared: SharedRecords,
        fast: tuple[FastPath, PlainHandler] | None = None,
        most: int | None = None,
        **options: Any,
    ) -> None:
        """`tls` returns the TLS context of each connection, so that a new certificate gets a new context:
        OpenSSL keeps a certificate of each key type in a context, and could go on serving the old one.
        `fast` answers plain requests; `shared` shows the connections of the other workers; `options` are
        those of aiohttp's request handler."""
        self._server, self._tls, self.refusals, self._fast = server, tls, refusals, fast
        self._shared = shared
        self._options = options
        self._most = most or min(MAX_CONNECTIONS, max(descriptor_limit() - SPARE_DESCRIPTORS, 16))
        self._connections: set[Connection] = set()
        self._handshakes: dict[asyncio.Task[None], float] = {}
        """When each began."""
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: socket.socket | None = None
        self._busy_until = 0.0
        self._now = asyncio.get_running_loop().time

    def open(self, listener: socket.socket) -> None:
        """Start to accept. `close` closes the listener."""
        listener.setblocking(False)
        self._listener = listener
        self._tasks = [asyncio.create_task(self._accept(listener)), asyncio.create_task(self._sweep())]

    async def close(self, patience: float) -> None:
        """Stop to accept; wait up to `patience` seconds for handshakes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._handshakes:
            await asyncio.wait(self._handshakes, timeout=patience)
        for handshake in self._handshakes:
            handshake.cancel()

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._report_room()

    def _report_room(self) -> None:
        self._room.set()
        self._shared.state.connections = len(self)

    def __len__(self) -> int:
        return len(self._connections) + len(self._handshakes)

    # --- accepting -------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            await self._wait_for_room()
            await self._wait_for_caller(listener)
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:  # another worker has accepted it
                continue
            except OSError as error:  # no descriptor, no memory, or the caller has hung up
                self.refusals.add("not-accepted", error=error.strerror or str(error))
                await asyncio.sleep(FRESH_SECONDS / 10)
                continue
            accepted.setblocking(False)
            handshake = asyncio.create_task(self._handshake(accepted))
            self._handshakes[handshake] = self._now()
            self._shared.state.connections = len(self)
            handshake.add_done_callback(self._end_handshake)

    async def _wait_for_caller(self, listener: socket.socket) -> None:
        """Wait for a caller, and then for workers with fewer connections.

        All workers wake up for each caller. An API server keeps a few connections for long: without this, the
        fastest worker could get all of them.
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

    async def _wait_for_room(self) -> None:
        """Wait until there is room for one more connection. Callers wait in the socket's backlog."""
        while len(self) >= self._most:
            self._room.clear()
            await asyncio.sleep(0)  # first read the bytes that have arrived: they are progress
            await asyncio.sleep(0)
            if len(self) >= self._most and self._evict():
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(FRESH_SECONDS):
                    await self._room.wait()

    def _evict(self) -> bool:
        """Close the connection or handshake that has stalled for the longest time."""
        now = self._now()
        stalled: list[tuple[float, Connection | asyncio.Task[None]]] = [
            (seconds, each) for each in self._connections if (seconds := each.stalled(now)) is not None
        ]
        stalled += ((now - began, handshake) for handshake, began in self._handshakes.items())
        seconds, last = max(stalled, key=itemgetter(0), default=(0.0, None))
        if last is None or seconds < FRESH_SECONDS:
            return False
        if isinstance(last, Connection):
            self.refusals.add("too-many-connections", most=self._most, peer=_peer(last))
            self._connections.discard(last)
            last.abort()
        else:
            self.refusals.add("too-many-connections", most=self._most)
            del self._handshakes[last]
            last.cancel()
        return True

    async def _handshake(self, accepted: socket.socket) -> None:
        tls = self._tls() if self._tls else None
        timeout = {"ssl_handshake_timeout": HANDSHAKE_SECONDS} if tls else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_connection, accepted, ssl=tls, **timeout
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            accepted.close()
            self.refusals.add("no-handshake", error=message_of(error))
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _new_connection(self) -> Connection:
        return Connection(self, self._server, self._fast, **self._options)

    def _end_handshake(self, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake, None)
        self._report_room()

    # --- sweeping --------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(self._now())

    def sweep(self, now: float) -> None:
        """Close connections whose client does not end a head or read an answer, and long idle ones."""
        for connection in list(self._connections):
            began = connection.since
            if began is None and connection.unsent:
                began = connection.used
            if began is not None and now - began > REQUEST_SECONDS:
                self.refusals.add("answer-not-taken", peer=_peer(connection))
                connection.abort()
            elif connection.idle and connection.head is not None and now - connection.head > HEAD_SECONDS:
                self.refusals.add("slow-head", peer=_peer(connection))
                connection.abort()
            elif connection.idle and connection.head is None and now - connection.used > KEEP_ALIVE_SECONDS:
                connection.force_close()


@web.middleware
async def track_requests(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tell the connection when its request begins and ends."""
    connection = cast(Connection, request.protocol)
    connection.begin()
    try:
        return await handler(request)
    finally:
        connection.end()


def descriptor_limit() -> int:
    """The number of descriptors that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit() -> None:
    """Raise the number of descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _peer(connection: Connection) -> str:
    name = connection.peername
    return str(name[0]) if isinstance(name, tuple) else ""
