"""List, then watch: keep a local copy of one API resource up to date.

Law: a reflector never stops and never raises. A missing resource, missing RBAC or an unreachable API server
means "not synced". It is logged when the state changes, and retried with a growing, jittered pause. So are
watches that end at once or with 410: every list costs the API server in proportion to its size.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Protocol

import structlog

from policies.kube.json import Json, mapping, text
from webhook.kube.api import BAD_ANSWER, UNREACHABLE, WATCH_SECONDS
from webhook.kube.calls import ApiError

log = structlog.get_logger()

FIRST_PAUSE = 0.5
MAX_PAUSE = 30.0
STEADY_SECONDS = 120.0
"""After so long without a failure the pause starts from the minimum again."""
SHORT_SECONDS = 1.0
"""A watch that ends sooner without an event counts as failed."""


class Lister(Protocol):
    """The methods of `ApiServer` that a reflector uses."""

    def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[tuple[list[Json], str]]: ...

    def watch(
        self, path: str, query: Mapping[str, str], resource_version: str, seconds: int
    ) -> AsyncGenerator[Json, None]: ...


class Sink(Protocol):
    """The receiver of a reflector's events. The objects of a list are `put` between `begin` and `commit`;
    `commit` drops all other objects."""

    def begin(self) -> None: ...

    def put(self, item: Json) -> None: ...

    def commit(self) -> None: ...

    def remove(self, item: Json) -> None: ...

    def lost(self, error: ApiError) -> None:
        """The objects may be stale until the next `commit` or event."""


class OneObject:
    """A sink for a query with one object: passes on the object, or the reason why there is none."""

    def __init__(
        self, changed: Callable[[Json | None, str], None], unreadable: Callable[[], None] = lambda: None
    ) -> None:
        """`unreadable` is called if the object can't be read; its last version may still be the current
        one."""
        self._changed, self._unreadable = changed, unreadable
        self._listed = False

    def begin(self) -> None:
        self._listed = False

    def put(self, item: Json) -> None:
        self._listed = True
        self._changed(item, "")

    def commit(self) -> None:
        if not self._listed:
            self._changed(None, "it does not exist")

    def remove(self, item: Json) -> None:
        self._changed(None, "it was deleted")

    def lost(self, error: ApiError) -> None:
        self._unreadable()


class Reflector:
    """Keeps one `Sink` in step with one resource of the API."""

    def __init__(
        self,
        lister: Lister,
        path: str,
        sink: Sink,
        *,
        query: Mapping[str, str] | None = None,
        longest_pause: float = MAX_PAUSE,
    ) -> None:
        self._lister, self._path, self._sink = lister, path, sink
        self._query = dict(query or {})
        self._longest_pause = longest_pause
        self._version = ""
        self._pause, self._failed = FIRST_PAUSE, -STEADY_SECONDS
        self._failing = False

    async def run(self) -> None:
        while True:
            pause = FIRST_PAUSE
            try:
                if not self._version:
                    await self._list()
                if not await self._watch():
                    pause = self._back_off()
            except ApiError as error:
                pause = self._back_off()
                if error.reason != UNREACHABLE:
                    self._version = ""  # list again after an error, but not after a lost connection
                if error.status != 410:  # an expired version is normal
                    self._fail(error)
            except Exception as error:  # a malformed object
                pause = self._back_off()
                if not self._failing:
                    log.exception("an object can't be kept", path=self._path)
                self._version = ""
                self._fail(ApiError(0, BAD_ANSWER, f"{type(error).__name__}: {error}"))
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311

    async def _list(self) -> None:
        latest = ""
        self._sink.begin()
        async for items, version in self._lister.pages(self._path, self._query):
            latest = version
            for item in items:
                self._sink.put(item)
        self._sink.commit()
        self._version = latest

    async def _watch(self) -> bool:
        """Process one watch to its end; False if it failed at once."""
        seconds = random.randint(WATCH_SECONDS * 3 // 4, WATCH_SECONDS)  # noqa: S311 (spread, not a secret)
        began, delivered = time.monotonic(), False
        async with aclosing(self._lister.watch(self._path, self._query, self._version, seconds)) as events:
            async for event in events:
                self._recover()
                if event:
                    delivered = True
                    self._take(event)
        return delivered or time.monotonic() - began >= SHORT_SECONDS

    def _take(self, event: Json) -> None:
        item, kind = mapping(event, "object"), event.get("type")
        if kind in ("ADDED", "MODIFIED"):
            self._sink.put(item)
        elif kind == "DELETED":
            self._sink.remove(item)
        self._version = text(item, "metadata", "resourceVersion") or self._version

    def _recover(self) -> None:
        if self._failing:
            log.info("reading the API server again", path=self._path)
        self._failing = False

    def _back_off(self) -> float:
        now = time.monotonic()
        steady = now - self._failed >= STEADY_SECONDS
        self._failed = now
        self._pause = min((FIRST_PAUSE if steady else self._pause) * 2, self._longest_pause)
        return self._pause

    def _fail(self, error: ApiError) -> None:
        if not self._failing:
            if error.status == 404:
                log.info("the cluster does not serve this kind", path=self._path)
            else:
                log.warning("can't read the API server", path=self._path, error=str(error))
        self._failing = True
        self._sink.lost(error)
