"""The puller's interface to a model server, the same for each protocol."""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    encode_basic_auth,
)
from yarl import URL

from puller.reasons import StatusReason, StepError

MAX_BODY = 65536
"""The default limit for bytes of a body."""


class ServerHealth(enum.Enum):
    """UP: it responds. DOWN: no process listens, so no model is loaded. HUNG: no response on an open port."""

    UP = "up"
    DOWN = "down"
    HUNG = "hung"


class ServerError(StepError):
    """A call that failed.

    ServerUnavailable: no process listens; the model may be good. ServerLost: the connection broke during the
    call, perhaps because of the call. ServerTimeout: no response in time.
    """


class ModelServer:
    """The interface to a model server. Every call has a timeout. `declarative`: the server needs the whole
    set of models, by `declare`, before each load or unload.

    This class itself is for `--server none`: a model on disk counts as loaded.
    """

    declarative = False

    async def health(self) -> ServerHealth:
        return ServerHealth.UP

    async def ready(self, name: str) -> bool:
        """Whether the server can answer requests for the model. Raises ServerError if unknown."""
        return True

    async def gone(self, name: str) -> bool:
        """Whether the server certainly does not have the model. Raises ServerError if unknown."""
        return not await self.ready(name)

    async def load(self, name: str, *, was_ready: bool) -> None:
        """Load the tree on disk, or load it again. Returns once the model is ready. `was_ready`: the model
        was ready before, perhaps from another tree. Raises ServerError."""

    async def unload(self, name: str) -> None:
        """Returns once the model is not ready. Raises ServerError."""

    async def declare(self, names: frozenset[str]) -> None:
        """Set the whole set of models. Raises ServerError."""

    async def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of calls, in seconds."""

    probe: float = 5.0
    load: float = 600.0
    unload: float = 60.0


class HttpServer(ModelServer):
    """A model server with an HTTP API."""

    def __init__(self, url: str, timeouts: Timeouts, key: str = "") -> None:
        """`key`: an API key, sent as a bearer token."""
        self.url = url.rstrip("/")
        self.timeouts = timeouts
        self._url = URL(self.url)
        self._headers = {"User-Agent": "chassis-puller", "Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        elif self._url.user is not None:
            self._headers["Authorization"] = encode_basic_auth(self._url.user, self._url.password or "")
        self._base = str(self._url.with_user(None)).rstrip("/")

    @cached_property
    def _session(self) -> ClientSession:
        return ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(),
            headers=self._headers,
            cookie_jar=DummyCookieJar(),
        )

    async def call(
        self,
        method: str,
        path: str,
        timeout: float,  # noqa: ASYNC109
        body: bytes = b"{}",
        limit: int = MAX_BODY,
    ) -> tuple[int, bytes]:
        """(status, the first `limit` bytes of the body). `body`: of a POST. Raises ServerError if no response
        comes in `timeout` s."""
        try:
            async with (
                asyncio.timeout(timeout),
                self._session.request(
                    method,
                    URL(f"{self._base}{path}", encoded=True),
                    data=body if method == "POST" else None,
                    headers={"Content-Type": "application/json"} if method == "POST" else None,
                    allow_redirects=False,
                ) as response,
            ):
                return response.status, await _first(response, limit)
        except ClientConnectorError as error:
            number = error.os_error.errno or 0
            reason, why = (
                StatusReason.SERVER_UNAVAILABLE,
                os.strerror(number) if number > 0 else "no connection",
            )
        except TimeoutError:
            reason, why = StatusReason.SERVER_TIMEOUT, f"no response in {timeout:g} s"
        except (ClientError, OSError, ValueError) as error:
            reason, why = StatusReason.SERVER_LOST, _lost(error)
        raise ServerError(reason, f"{method} {self._base}{path}: {why}.")

    async def probe(self, path: str) -> ServerHealth:
        """Any response means UP."""
        try:
            await self.call("GET", path, self.timeouts.probe)
        except ServerError as error:
            return ServerHealth.DOWN if error.reason is StatusReason.SERVER_UNAVAILABLE else ServerHealth.HUNG
        return ServerHealth.UP

    async def close(self) -> None:
        if "_session" in self.__dict__:
            await self._session.close()


async def _first(response: ClientResponse, limit: int) -> bytes:
    """The first `limit` bytes of a body."""
    content = bytearray()
    while len(content) < limit and (part := await response.content.readany()):
        content += part
    return bytes(content[:limit])


def _lost(error: Exception) -> str:
    if isinstance(error, ClientResponseError):
        return "the response is not valid HTTP"
    return "connection lost"


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty if the body is not an object."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def poll(condition: Callable[[], Awaitable[bool]], limit: float) -> bool:
    """Wait until the condition is true; False if it is not within `limit` s. The pauses grow from 20 ms to
    a second."""
    clock = asyncio.get_running_loop().time
    end, pause = clock() + limit, 0.02
    while not await condition():
        if clock() >= end:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 1.6, 1.0)
    return True
