"""One connection to a web server: HTTP of the standard library over a connected socket.

Blocking calls run in a thread. `abort` ends them: it shuts the socket down.
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
"""Bytes of a body for one system call."""


class StaleError(ConnectionError):
    """The server had closed an idle connection: the request can be repeated on another one."""


_MAX_INTERIM = 8
"""Interim responses (1xx) before a response. Servers send one or two."""


class _HTTPResponse(HTTPResponse):
    """Skips every interim response, not only 100 as the library does, but no more than _MAX_INTERIM."""

    _interim = 0

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if not HTTPStatus.CONTINUE <= status < HTTPStatus.OK or status == HTTPStatus.SWITCHING_PROTOCOLS:
            return version, status, reason
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            raise HTTPException("too many interim responses")
        return version, HTTPStatus.CONTINUE, reason


class Response:
    """The head of a response, and its body as a stream. `complete`: the whole body was read."""

    def __init__(self, connection: Connection, raw: HTTPResponse) -> None:
        self.connection = connection
        self.status = raw.status
        self.headers: HTTPMessage = raw.headers
        self.complete = False
        self._raw = raw
        self._prefetched = b""
        self._error: Exception | None = None

    def prefetch(self, limit: int) -> None:
        """Read a body of at most `limit` bytes, except of an error, together with the head: a connection can
        be reused only after the whole response was read. `read` raises an error of this call again."""
        length = self._raw.length
        if self.status < HTTPStatus.BAD_REQUEST and length is not None and length <= limit:
            with suppress(HTTPException, OSError):
                self._prefetched = self.read(limit)

    def take_prefetched(self) -> bytes:
        """The prefetched part of the body, once."""
        prefetched, self._prefetched = self._prefetched, b""
        return prefetched

    def read(self, least: int) -> bytes:
        """`least` bytes of the body or a few more; fewer at its end, or if it breaks. After a break, the next
        call raises HTTPException or OSError."""
        if self._error is not None:
            raise self._error
        chunks: list[bytes] = []
        length = 0
        try:
            while length < least and not self.complete:
                chunk = self._raw.read1(_READ)
                chunks.append(chunk)
                length += len(chunk)
                if not chunk and self._raw.length:  # the body ended too early
                    raise IncompleteRead(b"", self._raw.length)
                self.complete = not chunk or self._raw.length == 0
        except (HTTPException, OSError) as error:
            self._error = error
            if not length:
                raise
        if self.complete:
            self._raw.close()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Connection:
    """HTTP/1.1 on one socket, which the connection closes. Times are in seconds. Only one thread at a time
    may use it, but any thread may call `abort` and `time_out`."""

    def __init__(self, sock: socket.socket, connect_timeout: float, stall_timeout: float) -> None:
        self._socket = sock
        self._stall_timeout = stall_timeout
        self._aborted = False
        self._waiting = self._timed_out = False
        self._used = False
        self._http = HTTPConnection("")
        self._http.response_class = _HTTPResponse
        self._http.auto_open = 0
        self._http.sock = sock
        self._raw: HTTPResponse | None = None
        sock.settimeout(connect_timeout)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def tunnel(self, host: str, port: int, headers: Mapping[str, str]) -> None:
        """Make the proxy connect to a server. Raises HTTPException or OSError."""
        self._http.sock = None  # the library allows set_tunnel only before it connects
        self._http.set_tunnel(host, port, dict(headers))
        self._http.sock = self._socket
        with self._timeout_errors():
            self._http._tunnel()  # type: ignore[attr-defined]  # as its own `connect` does

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS. Raises OSError."""
        tls = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
        self._socket = self._http.sock = tls
        if self._aborted:  # `abort` shut down the other socket
            raise ConnectionAbortedError
        with self._timeout_errors():
            tls.do_handshake()

    def get(self, target: str, headers: Mapping[str, str], prefetch: int) -> Response:
        """The response to a GET, with its body if that has at most `prefetch` bytes. Raises StaleError,
        HTTPException or OSError."""
        reused, self._used = self._used, True
        self._socket.settimeout(self._stall_timeout)
        try:
            with self._timeout_errors():
                self._http.request("GET", target, headers=dict(headers))
                raw = self._raw = self._http.getresponse()
        except ConnectionError as error:
            if reused:
                raise StaleError from error
            raise
        response = Response(self, raw)
        response.prefetch(prefetch)
        return response

    @contextmanager
    def _timeout_errors(self) -> Iterator[None]:
        """Raises TimeoutError if `time_out` ended the calls in this block."""
        self._waiting = True
        try:
            yield
        except (HTTPException, OSError) as error:
            if self._timed_out:
                raise TimeoutError("it took too long") from error
            raise
        finally:
            self._waiting = False
        if self._timed_out:  # for the library, the head may end with the connection
            raise TimeoutError("it took too long")

    def time_out(self) -> None:
        """End the wait for a handshake or for the head of an answer, if there is one."""
        if self._waiting:
            self._timed_out = True
            self.abort()

    def reusable_after(self, response: Response) -> bool:
        """Whether another request may follow this response."""
        return response.complete and self._raw is not None and not self._raw.will_close

    @property
    def idle(self) -> bool:
        """Whether the server has neither closed the connection nor sent bytes without a request."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """End a call in another thread."""
        self._aborted = True
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # with TLS, the underlying socket

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()  # it uses the socket too
        self._http.close()
        self._socket.close()
