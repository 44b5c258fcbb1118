"""What a supervisor and its workers share: which review each worker reads just now, and which have ended one.

Law: nothing here waits. A worker writes a few words and a copy of the body into memory that it shares with
its supervisor; a worker that hangs or dies leaves them there, and no lock of its own is left behind.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar

import orjson

T = TypeVar("T")

BODY_ROOM: Final = 8 * 1024 * 1024
ABOUT_ROOM: Final = 16 * 1024
ABOUT_LENGTH: Final = 256
"""Characters of each text that says what a review is about."""
REMEMBERED: Final = 64
"""Reviews that are remembered for having ended a worker; the oldest gives way."""
DIGEST_BYTES: Final = 16
GENERATED_LENGTH: Final = 5
"""Characters that the API server appends to a generateName."""
RESTART_REASONS: Final = ("hung", "stalled", "died")


class Record:
    """What one worker is doing. It writes, its supervisor reads: whole words, each written at once."""

    _SERIAL, _BUSY, _BEATS, _SERVING, _CONNECTIONS, _BODY, _ABOUT, _LIMIT = range(8)

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE + ABOUT_ROOM + BODY_ROOM)
        header = memoryview(self._memory)[: mmap.PAGESIZE]
        self._words, self._seconds = header.cast("Q"), header.cast("d")

    def clear(self) -> None:
        """Forget what the worker before did."""
        for word in range(8):
            self._words[word] = 0

    # --- the worker ------------------------------------------------------------------------------------

    def begin(self, body: bytes, about: bytes, limit: float) -> None:
        """From now on the process belongs to a review, for `limit` seconds at most."""
        start = mmap.PAGESIZE + ABOUT_ROOM
        self._memory[start : start + len(body)] = body
        self._words[self._BODY] = len(body)
        self.tell(about)
        self._seconds[self._LIMIT] = limit
        self._words[self._SERIAL] += 1
        self._words[self._BUSY] = 1

    def tell(self, about: bytes) -> None:
        """Say what the review is about, as soon as that is known."""
        about = about[:ABOUT_ROOM]
        self._words[self._ABOUT] = 0
        self._memory[mmap.PAGESIZE : mmap.PAGESIZE + len(about)] = about
        self._words[self._ABOUT] = len(about)

    def end(self) -> None:
        self._words[self._BUSY] = 0

    def beat(self) -> None:
        """The event loop has come round."""
        self._words[self._BEATS] += 1

    def served(self) -> None:
        """The worker takes connections."""
        self._words[self._SERVING] = 1

    def holds(self, connections: int) -> None:
        """So many connections are open."""
        self._words[self._CONNECTIONS] = connections

    # --- its supervisor, and the other workers ---------------------------------------------------------

    @property
    def serving(self) -> bool:
        return bool(self._words[self._SERVING])

    @property
    def connections(self) -> int:
        return self._words[self._CONNECTIONS]

    @property
    def beats(self) -> int:
        return self._words[self._BEATS]

    @property
    def step(self) -> int:
        """The number of the step that the worker is in, of any review; 0 between two of them."""
        return self._words[self._SERIAL] if self._words[self._BUSY] else 0

    @property
    def limit(self) -> float:
        return self._seconds[self._LIMIT]

    @property
    def body(self) -> bytes:
        start = mmap.PAGESIZE + ABOUT_ROOM
        return self._memory[start : start + min(self._words[self._BODY], BODY_ROOM)]

    @property
    def about(self) -> dict[str, object]:
        """What the worker said of its review; empty if it had not come to know."""
        written = self._memory[mmap.PAGESIZE : mmap.PAGESIZE + min(self._words[self._ABOUT], ABOUT_ROOM)]
        with suppress(ValueError):  # it may have died while it wrote
            said = orjson.loads(written or b"{}")
            if isinstance(said, dict):
                return said
        return {}


class Suspects:
    """The reviews that have ended a worker. The supervisor adds, every worker looks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE + REMEMBERED * DIGEST_BYTES)
        self._count = memoryview(self._memory)[: mmap.PAGESIZE].cast("Q")

    def add(self, body: bytes) -> None:
        start = mmap.PAGESIZE + self._count[0] % REMEMBERED * DIGEST_BYTES
        self._memory[start : start + DIGEST_BYTES] = digest(body)
        self._count[0] += 1

    def holds(self, body: bytes) -> bool:
        """Whether this review, perhaps under another uid, has ended a worker. Free while none has."""
        if not self._count[0]:
            return False
        known = self._memory[mmap.PAGESIZE :][: min(self._count[0], REMEMBERED) * DIGEST_BYTES]
        wanted = digest(body)
        return any(known[at : at + DIGEST_BYTES] == wanted for at in range(0, len(known), DIGEST_BYTES))


class Restarts:
    """How often a worker was started anew, by reason: it hung in a review, its loop stalled, it died."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def add(self, reason: str) -> None:
        self._counts[RESTART_REASONS.index(reason)] += 1

    def counts(self) -> Mapping[str, int]:
        return {reason: self._counts[place] for place, reason in enumerate(RESTART_REASONS)}


@dataclass(frozen=True)
class Station:
    """What a worker is given by its supervisor."""

    record: Record
    suspects: Suspects
    restarts: Restarts
    others: tuple[Record, ...] = ()
    """Those of the other workers behind the same socket."""

    @classmethod
    def alone(cls) -> Station:
        """That of a process without a supervisor."""
        return cls(Record(), Suspects(), Restarts())


# --- one review ----------------------------------------------------------------------------------------


class Reading:
    """One review, noted in the record while the process belongs to it and at no other time."""

    def __init__(self, record: Record, body: bytes, limit: Callable[[], float]) -> None:
        """`limit`: the seconds for which the next step may hold the process."""
        self._record, self._body, self._limit = record, body, limit
        self._about = b""

    def about(self, about: Mapping[str, object]) -> None:
        """Keep what the review is about, for the log of a supervisor that has to end it."""
        cut = {key: said[:ABOUT_LENGTH] if isinstance(said, str) else said for key, said in about.items()}
        self._about = orjson.dumps(cut)
        self._record.tell(self._about)

    def noted(self, work: Coroutine[Any, Any, T]) -> _Steps[T]:
        """The awaitable that does `work`, each of its steps noted; between them others have their turn."""
        return _Steps(work, self._begin, self._record.end)

    def _begin(self) -> None:
        self._record.begin(self._body, self._about, self._limit())


class _Steps(Awaitable[T]):
    def __init__(
        self, work: Coroutine[Any, Any, T], begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._work, self._begin, self._end = work, begin, end

    def __await__(self) -> Generator[Any, Any, T]:
        # As `yield from` does it, with a note around each turn.
        work = self._work
        resume, value = work.send, None
        while True:
            self._begin()
            try:
                awaited = resume(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self._end()
            try:
                resume, value = work.send, (yield awaited)
            except BaseException as error:  # a cancellation; it is for the work to answer
                resume, value = work.throw, error


_VOLATILE = re.compile(
    rb'"uid": ?"[A-Za-z0-9-]{1,64}"'
    rb"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z"
    rb"|kube-api-access-[a-z0-9]{5}"
    rb'|"resourceVersion": ?"[0-9]{1,20}"'
)
_GENERATED = re.compile(rb'"generateName": ?"([a-z0-9.-]{1,253})"')


def digest(body: bytes) -> bytes:
    """What stays the same of a review when its request is sent again.

    The uid, times, names made at random and versions are left out as bytes, without reading the JSON: to read
    it may be what ends a worker. Linear in the length of the body.
    """
    if generated := _GENERATED.search(body):
        first, *rest = body.split(generated[1])
        body = first + b"".join(part[GENERATED_LENGTH:] for part in rest)
    return blake2b(_VOLATILE.sub(b"", body), digest_size=DIGEST_BYTES).digest()
