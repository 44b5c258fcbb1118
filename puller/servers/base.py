"""The puller's interface to a model server, the same for each protocol."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from puller.reasons import Reason
from puller.servers.client import MAX_BODY, BrokenError, Client, NotListeningError


class Health(enum.Enum):
    """UP: it answers. DOWN: no process listens, so no model is loaded. HUNG: no answer on an open port."""

    UP = "up"
    DOWN = "down"
    HUNG = "hung"


class ServerError(Exception):
    """A call that failed. The message is one sentence.

    ServerUnavailable: no process listens; the model may be sound. ServerLost: the server went away during the
    call, perhaps because of it. ServerTimeout: no answer in time.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ModelServer(Protocol):
    """Every call is bounded in time. A model is loaded if `ready` returns True. `declarative`: the server
    needs the whole set of models at once, by `declare`, before a load or an unload."""

    declarative: bool

    async def health(self) -> Health: ...

    async def ready(self, name: str) -> bool:
        """Whether the model serves. Raises ServerError when there is no telling."""
        ...

    async def load(self, name: str, *, was_ready: bool) -> None:
        """Load, or load again, the tree on disk; returns once the model serves it. `was_ready`: the model
        served before, perhaps from another tree. Raises ServerError."""
        ...

    async def unload(self, name: str) -> None:
        """Returns once the model does not serve. Raises ServerError."""
        ...

    async def declare(self, names: frozenset[str]) -> None:
        """The whole set of models that the server is to have. Raises ServerError."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a call may take, in seconds."""

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
        most: int = MAX_BODY,
    ) -> tuple[int, bytes]:
        """(status, the first `most` bytes of the body). `body`: of a POST. Raises ServerError when no answer
        comes in `timeout` s."""
        try:
            async with asyncio.timeout(timeout):
                return await self._client.call(method, path, body if method == "POST" else None, most)
        except NotListeningError as error:
            reason, why = Reason.SERVER_UNAVAILABLE, error.strerror or "no connection"
        except BrokenError as error:
            reason, why = Reason.SERVER_LOST, str(error)
        except TimeoutError:
            reason, why = Reason.SERVER_TIMEOUT, f"no answer in {timeout:g} s"
        raise ServerError(reason, f"{method} {self.url}{path}: {why}.")

    async def probe(self, path: str) -> Health:
        """Any answer at all means UP."""
        try:
            await self.call("GET", path, self.timeouts.probe)
        except ServerError as error:
            return Health.DOWN if error.reason is Reason.SERVER_UNAVAILABLE else Health.HUNG
        return Health.UP

    async def close(self) -> None:
        await self._client.close()


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in an answer; empty if the answer is no object."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class Pauses:
    """Growing pauses for asking again: 20 ms at first, a second at most, until `limit` s are over."""

    def __init__(self, limit: float) -> None:
        self._end = asyncio.get_running_loop().time() + limit
        self._next = 0.02

    async def more(self) -> bool:
        """Wait; False once the time is over."""
        if asyncio.get_running_loop().time() >= self._end:
            return False
        await asyncio.sleep(self._next)
        self._next = min(self._next * 1.6, 1.0)
        return True
