"""The puller's interface to a model server, the same for each protocol."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from puller.reasons import Reason
from puller.servers.client import MAX_BODY, Client, ConnectionLostError, NotListeningError


class Health(enum.Enum):
    """UP: it responds. DOWN: no process listens, so no model is loaded. HUNG: no response on an open port."""

    UP = "up"
    DOWN = "down"
    HUNG = "hung"


class ServerError(Exception):
    """A call that failed. The message is one sentence.

    ServerUnavailable: no process listens; the model may be good. ServerLost: the connection broke during the
    call, perhaps because of the call. ServerTimeout: no response in time.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ModelServer(Protocol):
    """Every call has a timeout. A model is loaded if `ready` returns True. `declarative`: the server needs
    the whole set of models, by `declare`, before each load or unload."""

    declarative: bool

    async def health(self) -> Health: ...

    async def ready(self, name: str) -> bool:
        """Whether the server can answer requests for the model. Raises ServerError if unknown."""
        ...

    async def load(self, name: str, *, was_ready: bool) -> None:
        """Load the tree on disk, or load it again. Returns once the model is ready. `was_ready`: the model
        was ready before, perhaps from another tree. Raises ServerError."""
        ...

    async def unload(self, name: str) -> None:
        """Returns once the model is not ready. Raises ServerError."""
        ...

    async def declare(self, names: frozenset[str]) -> None:
        """Set the whole set of models. Raises ServerError."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of calls, in seconds."""

    probe: float = 5.0
    load: float = 600.0
    unload: float = 60.0


class HttpServer:
    """The HTTP client that the protocols share."""

    declarative = False

    def __init__(self, url: str, timeouts: Timeouts, key: str = "") -> None:
        """`key`: an API key, sent as a bearer token."""
        self.url = url.rstrip("/")
        self.timeouts = timeouts
        self._client = Client(self.url, key)

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
            async with asyncio.timeout(timeout):
                return await self._client.call(method, path, body if method == "POST" else None, limit)
        except NotListeningError as error:
            reason, why = Reason.SERVER_UNAVAILABLE, error.strerror or "no connection"
        except ConnectionLostError as error:
            reason, why = Reason.SERVER_LOST, str(error)
        except TimeoutError:
            reason, why = Reason.SERVER_TIMEOUT, f"no response in {timeout:g} s"
        raise ServerError(reason, f"{method} {self.url}{path}: {why}.")

    async def probe(self, path: str) -> Health:
        """Any response means UP."""
        try:
            await self.call("GET", path, self.timeouts.probe)
        except ServerError as error:
            return Health.DOWN if error.reason is Reason.SERVER_UNAVAILABLE else Health.HUNG
        return Health.UP

    async def declare(self, names: frozenset[str]) -> None:
        """Only declarative servers need it."""

    async def close(self) -> None:
        await self._client.close()


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty if the body is not an object."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class Pauses:
    """Growing pauses between polls, from 20 ms to a second, for `limit` s."""

    def __init__(self, limit: float) -> None:
        self._end = asyncio.get_running_loop().time() + limit
        self._next = 0.02

    async def more(self) -> bool:
        """Pause; False once the time is over."""
        if asyncio.get_running_loop().time() >= self._end:
            return False
        await asyncio.sleep(self._next)
        self._next = min(self._next * 1.6, 1.0)
        return True
