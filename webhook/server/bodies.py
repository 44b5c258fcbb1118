"""Request bodies, and the memory that they may use together.

Law: memory is bounded, and a body that exceeds the bound is not refused at once. It waits until there is room
or its deadline passes. While bodies wait, the oldest unfinished one is dropped, so callers that send half a
body do not block others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Final

from aiohttp import web

from webhook.errors import message_of

LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a review. The API server's own limit is 3 MiB an object, and an UPDATE carries it twice."""
ROOM: Final = 48 * 1024 * 1024
"""Bytes of all bodies in flight together, beyond the first FREE of each."""
FREE: Final = 64 * 1024
"""Bytes of a body that are not counted: nearly all reviews are smaller, and pass while large ones wait. The
limit of connections bounds their sum."""
OLD_SECONDS: Final = 1.0
"""Age from which an unfinished body may be dropped. Most bodies arrive in milliseconds."""


class Refusal(Exception):
    """The request is answered with an HTTP error and one sentence."""

    def __init__(self, status: HTTPStatus, sentence: str, reason: str = "") -> None:
        """`reason`: a label of `chassis_refused_total`, if a limit was exceeded."""
        super().__init__(sentence)
        self.status, self.reason = status, reason


class Hold:
    """The room that one body uses."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.taken = 0
        self.arriving: asyncio.Timeout | None = None
        """Set while the body is unfinished."""
        self.evicted = False


class BodyBudget:
    """The room for all bodies."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._holds: dict[Hold, None] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._now = asyncio.get_running_loop().time

    @property
    def taken(self) -> int:
        return sum(hold.taken for hold in self._holds)

    @contextmanager
    def hold(self) -> Iterator[Hold]:
        """The room of one body, from its first byte until its review is answered."""
        hold = Hold(self._now())
        self._holds[hold] = None
        try:
            yield hold
        finally:
            del self._holds[hold]
            for turn in self._waiting:
                if not turn.done():
                    turn.set_result(None)

    async def grow(self, hold: Hold, size: int) -> None:
        """Reserve room for a body of `size` bytes so far; wait if there is none."""
        wanted = max(size - FREE, 0)
        while self.taken - hold.taken + wanted > self._room:
            self._evict(but=hold)
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(OLD_SECONDS):
                        await turn
            finally:
                with suppress(ValueError):
                    self._waiting.remove(turn)
        hold.taken = wanted

    def _evict(self, but: Hold) -> None:
        latest = self._now() - OLD_SECONDS
        for hold in self._holds:  # the oldest first
            if hold is not but and hold.taken and hold.arriving and not hold.evicted and hold.began <= latest:
                hold.evicted = True
                hold.arriving.reschedule(self._now())
                return


async def read(http: web.Request, hold: Hold, budget: BodyBudget, deadline: float) -> bytes:
    """The whole body. Refusal if it is not JSON, too large, encoded, incomplete or late."""
    if http.content_type != "application/json":
        raise Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the content type must be application/json, not {http.content_type}",
        )
    encoding = http.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed")
    too_large = Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the review is larger than {LIMIT // 1024**2} MiB"
    )
    if (http.content_length or 0) > LIMIT:
        raise too_large
    body = bytearray()
    waits = False
    try:
        async with asyncio.timeout_at(deadline) as hold.arriving:
            async for chunk in http.content.iter_any():
                if len(body) + len(chunk) > LIMIT:
                    raise too_large  # noqa: TRY301
                waits = True
                await budget.grow(hold, len(body) + len(chunk))
                waits = False
                body += chunk
    except Refusal:
        raise
    except TimeoutError:
        if waits or hold.evicted:
            sentence = "other bodies took the memory that this one needed"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, sentence, "no-room") from None
        sentence = "the body didn't arrive within the time that the request allowed"
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, sentence, "slow-body") from None
    except Exception as error:  # the parser of a broken body and a lost connection raise many types
        sentence = f"the body could not be read: {message_of(error)}"
        raise Refusal(HTTPStatus.BAD_REQUEST, sentence) from None
    finally:
        hold.arriving = None
    return bytes(body)
