"""One connection to a web server: the standard library's HTTP over a socket that is connected already.

Blocking calls run in a thread. A caller that gives up waiting calls `abort`, which ends them: a socket that
is shut down neither sends nor receives.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, IncompleteRead

_READ = 256 << 10
"""Bytes of a body that one call of the kernel may give."""


class StaleError(ConnectionError):
    """The server had closed a connection that was kept: the request may be sent again on another."""


_MAX_INTERIM = 8
"""Answers of the class 1xx before an answer. Servers send one or two."""


class _Answer(HTTPResponse):
    """The library passes over an interim answer where that is 100; this one, over 103 and the others, too,
    but over no more than a few."""

    _interim = 0

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if not HTTPStatus.CONTINUE <= status < HTTPStatus.OK or status == HTTPStatus.SWITCHING_PROTOCOLS:
            return version, status, reason
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            raise HTTPException("too many interim answers")
        return version, HTTPStatus.CONTINUE, reason


class Response:
    """The head of an answer, and its body as it comes. `over`: all of the body was read."""

    def __init__(self, connection: Connection, raw: HTTPResponse) -> None:
        self.connection = connection
        self.status = raw.status
        self.headers: HTTPMessage = raw.headers
        self.over = False
        self._raw = raw
        self._early = b""
        self._broken: Exception | None = None

    def prefetch(self, most: int) -> None:
        """Read the body along with the head, where it is no error's and no longer than that: a connection can
        be kept only where all of an answer was read. An error here is raised again by `read`."""
        length = self._raw.length
        if self.status < HTTPStatus.BAD_REQUEST and length is not None and length <= most:
            with suppress(HTTPException, OSError):
                self._early = self.read(most)

    def early(self) -> bytes:
        """What of the body came along with the head; it is given once."""
        early, self._early = self._early, b""
        return early

    def read(self, least: int) -> bytes:
        """`least` bytes of the body or a few more; fewer at its end, or if it breaks. Bytes that came
        before are returned first, and the next call raises HTTPException or OSError."""
        if self._broken is not None:
            raise self._broken
        held: list[bytes] = []
        length = 0
        try:
            while length < least and not self.over:
                piece = self._raw.read1(_READ)
                held.append(piece)
                length += len(piece)
                if not piece and self._raw.length:  # the body ended too early
                    raise IncompleteRead(b"", self._raw.length)
                self.over = not piece or self._raw.length == 0
        except (HTTPException, OSError) as error:
            self._broken = error
            if not length:
                raise
        if self.over:
            self._raw.close()
        return held[0] if len(held) == 1 else b"".join(held)


class Connection:
    """HTTP/1.1 on one socket, which becomes this connection's. `proxied`: every request names the whole URL.

    Times in seconds. All but `abort` and `give_up` is for one thread at a time; these two are for any.
    """

    def __init__(self, sock: socket.socket, connect_timeout: float, stall_timeout: float) -> None:
        self._socket = sock
        self._stall_timeout = stall_timeout
        self._aborted = False
        self._waiting = self._late = False
        self._used = False
        self._http = HTTPConnection("")
        self._http.response_class = _Answer
        self._http.auto_open = 0
        self._http.sock = sock
        self._raw: HTTPResponse | None = None
        sock.settimeout(connect_timeout)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def tunnel(self, host: str, port: int, headers: Mapping[str, str]) -> None:
        """Have the proxy at the other end connect to there. Raises HTTPException or OSError."""
        self._http.sock = None  # the library wants to know before it connects
        self._http.set_tunnel(host, port, dict(headers))
        self._http.sock = self._socket
        with self._in_time():
            self._http._tunnel()  # type: ignore[attr-defined]  # what its own `connect` does then

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from here on. Raises OSError."""
        made = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
        self._socket = self._http.sock = made
        if self._aborted:  # before there was this socket to be shut down
            raise ConnectionAbortedError
        with self._in_time():
            made.do_handshake()

    def ask(self, target: str, headers: Mapping[str, str], prefetch: int) -> Response:
        """The answer to a GET; with it its body, up to `prefetch` bytes. Raises StaleError, HTTPException or
        OSError."""
        again, self._used = self._used, True
        self._socket.settimeout(self._stall_timeout)
        try:
            with self._in_time():
                self._http.request("GET", target, headers=dict(headers))
                raw = self._raw = self._http.getresponse()
        except ConnectionError as error:
            if again:
                raise StaleError from error
            raise
        response = Response(self, raw)
        response.prefetch(prefetch)
        return response

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Around what `give_up` ends, which then raises TimeoutError."""
        self._waiting = True
        try:
            yield
        except (HTTPException, OSError) as error:
            if self._late:
                raise TimeoutError("it was given up") from error
            raise
        finally:
            self._waiting = False
        if self._late:  # the library takes the end of the connection for the end of the head
            raise TimeoutError("it was given up")

    def give_up(self) -> None:
        """End the wait for a handshake or for the head of an answer, if there is one."""
        if self._waiting:
            self._late = True
            self.abort()

    def keeps(self, response: Response) -> bool:
        """Whether another request may follow this answer."""
        return response.over and self._raw is not None and not self._raw.will_close

    @property
    def alive(self) -> bool:
        """Whether the other end has neither closed an idle connection nor sent bytes without a request."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """End the call that a thread is in."""
        self._aborted = True
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of TLS, the socket below

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()  # it has a hold on the socket, too
        self._http.close()
        self._socket.close()
