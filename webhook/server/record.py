"""What a supervisor and its workers share: which review each worker reads just now, and which have ended one.

Law: no function here waits. A worker writes a few words into memory that it shares with its supervisor; a
worker that hangs or dies leaves them there, and leaves no lock behind.

A review that has ended a worker is known again by its `Identity`. It covers all that the engine can read: a
review of the same identity would do the same again, and no other review has it.
"""

from __future__ import annotations

import mmap
import re
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar

import orjson

from webhook.admission.canonical import Canonical
from webhook.admission.envelope import Request

T = TypeVar("T")

ABOUT_ROOM: Final = 16 * 1024
ABOUT_LENGTH: Final = 256
"""Characters of each text that describes a review."""
REMEMBERED: Final = 64
"""Reviews that are remembered for having ended a worker; the oldest gives way."""
SUSPECT_SECONDS: Final = 600.0
"""How long. Perhaps something else ended the worker: other reviews took the memory, or the node was short of
CPU."""
DIGEST_BYTES: Final = 16
UID_WITHIN: Final = 1024
"""Bytes of a body in which its uid is looked for, if it is not read."""
UID: Final = re.compile(rb'"request": ?\{ ?"uid": ?"([A-Za-z0-9-]{1,64})"')
"""Where the API server writes it: at the beginning of the request, which is the first object of that name."""
RESTART_REASONS: Final = ("hung", "stalled", "died")


class Identity(bytes):
    """What two reviews have in common only if they differ in nothing but what the API server itself makes."""

    @classmethod
    def of_body(cls, body: bytes) -> Identity:
        """That of a review that was not read: all of its bytes but the uid, which is new in each request."""
        uid = UID.search(body, 0, UID_WITHIN)
        start, end = uid.span(1) if uid else (0, 0)
        found = blake2b(memoryview(body)[:start], digest_size=DIGEST_BYTES, person=b"body")
        found.update(b"\0")  # no JSON text has it: where the uid was counts, too
        found.update(memoryview(body)[end:])
        return cls(found.digest())

    @classmethod
    def of_request(cls, request: Request) -> Identity | None:
        """That of a review that was read: its canonical form. It stays the same when a controller or a person
        tries again. None if there is no such form."""
        canonical = Canonical.of(request)
        if canonical is None:
            return None
        return cls(blake2b(canonical.text, digest_size=DIGEST_BYTES, person=b"canonical").digest())


class Record:
    """The present work of one worker. It writes, its supervisor reads: whole words, each written at once."""

    _SERIAL, _BUSY, _BEATS, _SERVING, _CONNECTIONS, _ABOUT, _LIMIT = range(7)
    _IDENTITY: Final = slice(128, 128 + DIGEST_BYTES)

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE + ABOUT_ROOM)
        header = memoryview(self._memory)[: mmap.PAGESIZE]
        self._words, self._seconds = header.cast("Q"), header.cast("d")

    def clear(self) -> None:
        """Forget what the worker before did."""
        for word in range(7):
            self._words[word] = 0
        self._memory[self._IDENTITY] = bytes(DIGEST_BYTES)

    # --- the worker ------------------------------------------------------------------------------------

    def begin(self, identity: Identity, about: bytes, limit: float) -> None:
        """From now on the process belongs to a review, for `limit` seconds at most."""
        self.tell(identity, about)
        self._seconds[self._LIMIT] = limit
        self._words[self._SERIAL] += 1
        self._words[self._BUSY] = 1

    def tell(self, identity: Identity, about: bytes) -> None:
        """Write the identity and the description of the review, as soon as they are known."""
        self._memory[self._IDENTITY] = identity
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
    def identity(self) -> Identity:
        return Identity(self._memory[self._IDENTITY])

    @property
    def about(self) -> dict[str, object]:
        """The worker's description of its review; empty if it had none yet."""
        written = self._memory[mmap.PAGESIZE : mmap.PAGESIZE + min(self._words[self._ABOUT], ABOUT_ROOM)]
        with suppress(ValueError):  # it may have died while it wrote
            said = orjson.loads(written or b"{}")
            if isinstance(said, dict):
                return said
        return {}


class Suspects:
    """The reviews that have ended a worker, for a while. The supervisor adds, every worker looks."""

    _SLOT: Final = 8 + DIGEST_BYTES
    """When it ends, and the identity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, the same in all processes."""
        self._memory = mmap.mmap(-1, mmap.PAGESIZE + REMEMBERED * self._SLOT)
        self._count = memoryview(self._memory)[: mmap.PAGESIZE].cast("Q")
        self._clock = clock
        self._read = 0
        self._known: dict[bytes, float] = {}
        """When each ends, as read when so many had been added."""

    def add(self, identity: Identity) -> None:
        start = mmap.PAGESIZE + self._count[0] % REMEMBERED * self._SLOT
        ends = struct.pack("d", self._clock() + SUSPECT_SECONDS)
        self._memory[start : start + self._SLOT] = ends + identity
        self._count[0] += 1

    def holds(self, identity: Identity) -> bool:
        """Whether this review has ended a worker lately. It costs a look into a table, however many have."""
        count = self._count[0]
        if count != self._read:
            self._read, self._known = count, dict(self._slots(min(count, REMEMBERED)))
        ends = self._known.get(identity)
        return ends is not None and self._clock() < ends

    def _slots(self, count: int) -> Iterator[tuple[bytes, float]]:
        for start in range(mmap.PAGESIZE, mmap.PAGESIZE + count * self._SLOT, self._SLOT):
            slot = self._memory[start : start + self._SLOT]
            yield slot[8:], struct.unpack("d", slot[:8])[0]


class Restarts:
    """How often a worker was restarted, by reason: it hung in a review, its loop stalled, it died."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def add(self, reason: str) -> None:
        self._counts[RESTART_REASONS.index(reason)] += 1

    def counts(self) -> Mapping[str, int]:
        return {reason: self._counts[place] for place, reason in enumerate(RESTART_REASONS)}


@dataclass(frozen=True)
class SharedRecords:
    """The records that a worker shares with its supervisor and the other workers."""

    record: Record
    suspects: Suspects
    restarts: Restarts
    others: tuple[Record, ...] = ()
    """Those of the other workers behind the same socket."""

    @classmethod
    def alone(cls) -> SharedRecords:
        """That of a process without a supervisor."""
        return cls(Record(), Suspects(), Restarts())


# --- one review ----------------------------------------------------------------------------------------


class Reading:
    """One review, noted in the record while the process belongs to it and at no other time."""

    def __init__(self, record: Record, identity: Identity, limit: Callable[[], float]) -> None:
        """`limit`: the seconds for which the next step may hold the process."""
        self._record, self._identity, self._limit = record, identity, limit
        self._about = b""

    def about(self, about: Mapping[str, object], identity: Identity | None = None) -> None:
        """Keep what the review is about, for the log of a supervisor that has to end it, and its identity now
        that it was read."""
        cut = {key: said[:ABOUT_LENGTH] if isinstance(said, str) else said for key, said in about.items()}
        self._about, self._identity = orjson.dumps(cut), identity or self._identity
        self._record.tell(self._identity, self._about)

    def noted(self, work: Coroutine[Any, Any, T]) -> _Steps[T]:
        """The awaitable that does `work`, each of its steps noted; between them others have their turn."""
        return _Steps(work, self._begin, self._record.end)

    def _begin(self) -> None:
        self._record.begin(self._identity, self._about, self._limit())


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
