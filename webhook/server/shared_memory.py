"""Memory that the supervisor and its workers share: current reviews, and reviews that killed a worker.

Law: no function here waits. A worker writes a few words into shared memory and takes no lock, so a worker
that hangs or dies blocks nobody.

A review that killed a worker is recognised by its `Identity`, a digest of all that the engine can read.
"""

from __future__ import annotations

import ctypes
import mmap
import time
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, TypeVar

import orjson
from msgspec import Struct

from webhook.admission.canonical import Canonical
from webhook.admission.envelope import Request, place_of_uid

T = TypeVar("T")

DESCRIPTION_BYTES: Final = 16 * 1024
FIELD_LENGTH: Final = 256
"""Characters of each text in a description."""
REMEMBERED: Final = 64
"""Reviews that killed a worker; the oldest is forgotten first."""
SUSPECT_SECONDS: Final = 600.0
"""How long they are remembered. Something else may have killed the worker: other reviews used the memory, or
the node was short of CPU."""
IDENTITY_LENGTH: Final = 32
RESTART_REASONS: Final = ("hung", "stalled", "died")


class Identity(bytes):
    """A digest of a review, in hexadecimal. Reviews with equal digests differ only in what the API server
    generates."""

    @classmethod
    def of_body(cls, body: bytes) -> Identity:
        """The digest of an unparsed body without its uid, which is new in each request."""
        start, end = place_of_uid(body)
        found = blake2b(memoryview(body)[:start], digest_size=IDENTITY_LENGTH // 2, person=b"body")
        found.update(b"\0")  # marks the place of the uid; JSON cannot contain it
        found.update(memoryview(body)[end:])
        return cls(found.hexdigest().encode())

    @classmethod
    def of_request(cls, request: Request) -> Identity | None:
        """The digest of a parsed request's canonical form, which retries share. None if it has no such
        form."""
        canonical = Canonical.of(request)
        if canonical is None:
            return None
        found = blake2b(canonical.text, digest_size=IDENTITY_LENGTH // 2, person=b"canonical")
        return cls(found.hexdigest().encode())


S = TypeVar("S", bound=ctypes.Structure)


def in_shared_memory(structure: type[S]) -> S:
    """A structure of zeros in memory that is shared with all processes forked later."""
    return structure.from_buffer(mmap.mmap(-1, ctypes.sizeof(structure)))


class WorkerState(ctypes.Structure):
    """The state of one worker. The worker writes it; the supervisor and the other workers read it."""

    serial: int
    busy: int
    limit: float
    """Seconds for which the current step may block the process."""
    turns: int
    """Turns of the event loop."""
    serving: int
    """1 once the worker accepts connections."""
    connections: int
    """The number of open connections."""
    identity: bytes
    """The `Identity` of the current review."""
    json: bytes
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("serial", "busy", "turns", "serving", "connections")),
        ("limit", ctypes.c_double),
        ("identity", ctypes.c_char * IDENTITY_LENGTH),
        ("json", ctypes.c_char * DESCRIPTION_BYTES),
    )

    def clear(self) -> None:
        """Reset the state for the next worker."""
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))

    def begin(self, identity: Identity, description: bytes, limit: float) -> None:
        """A step of a review begins. It may block the process for `limit` seconds."""
        self.describe(identity, description)
        self.limit = limit
        self.serial += 1
        self.busy = 1

    def describe(self, identity: Identity, description: bytes) -> None:
        """Write the identity and the description (JSON) of the current review."""
        self.identity, self.json = identity, description[:DESCRIPTION_BYTES]

    def end(self) -> None:
        """The step ends."""
        self.busy = 0

    @property
    def step(self) -> int:
        """The number of the current step, of any review; 0 between two steps."""
        return self.serial if self.busy else 0

    @property
    def description(self) -> dict[str, object]:
        """The description of the current review; empty if there is none yet."""
        with suppress(ValueError):  # the worker may have died while it wrote
            found = orjson.loads(self.json or b"{}")
            if isinstance(found, dict):
                return found
        return {}


class _Suspect(ctypes.Structure):
    expires: float
    identity: bytes
    _fields_ = (("expires", ctypes.c_double), ("identity", ctypes.c_char * IDENTITY_LENGTH))


class _Suspects(ctypes.Structure):
    count: int
    table: ctypes.Array[_Suspect]
    _fields_ = (("count", ctypes.c_uint64), ("table", _Suspect * REMEMBERED))


class Suspects:
    """Reviews that killed a worker lately. The supervisor adds them, every worker looks them up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, the same in all processes."""
        self._shared, self._clock = in_shared_memory(_Suspects), clock
        self._read = 0
        self._known: dict[bytes, float] = {}
        """Expiry by identity, after `_read` reviews were added."""

    def add(self, identity: bytes) -> None:
        suspect = self._shared.table[self._shared.count % REMEMBERED]
        suspect.expires, suspect.identity = self._clock() + SUSPECT_SECONDS, identity
        self._shared.count += 1

    def holds(self, identity: bytes) -> bool:
        """Whether this review killed a worker lately."""
        count = self._shared.count
        if count != self._read:
            self._read, self._known = count, {each.identity: each.expires for each in self._shared.table}
        expires = self._known.get(identity)
        return expires is not None and self._clock() < expires


class WorkerRestarts(ctypes.Structure):
    """The number of worker restarts: a review hung, the event loop stalled, or the worker died."""

    _fields_ = tuple((reason, ctypes.c_uint64) for reason in RESTART_REASONS)

    def add(self, reason: str) -> None:
        setattr(self, reason, getattr(self, reason) + 1)

    def counts(self) -> Mapping[str, int]:
        return {reason: getattr(self, reason) for reason in RESTART_REASONS}


class SharedRecords(Struct, frozen=True):
    """The memory that a worker shares with its supervisor and the other workers."""

    state: WorkerState
    suspects: Suspects
    restarts: WorkerRestarts
    others: tuple[WorkerState, ...] = ()
    """The other workers behind the same socket."""

    @classmethod
    def unshared(cls) -> SharedRecords:
        """For a process without a supervisor."""
        return cls(in_shared_memory(WorkerState), Suspects(), in_shared_memory(WorkerRestarts))


class ReviewRecord:
    """Records one review in the worker's state, only while the review blocks the process."""

    def __init__(self, state: WorkerState, identity: Identity, limit: Callable[[], float]) -> None:
        """`limit` returns the seconds for which the next step may block the process."""
        self._state, self._identity, self._limit = state, identity, limit
        self._description = b""

    def describe(self, fields: Mapping[str, object], identity: Identity | None) -> None:
        """Describe the review for the supervisor's log; `identity` replaces that of the unparsed body."""
        cut = {key: each[:FIELD_LENGTH] if isinstance(each, str) else each for key, each in fields.items()}
        self._description, self._identity = orjson.dumps(cut), identity or self._identity
        self._state.describe(self._identity, self._description)

    @types.coroutine
    def around(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work` and record each of its steps, but not the time between them."""
        resume: Callable[[Any], Any] = work.send
        value: object = None
        while True:  # like `yield from work`
            self._state.begin(self._identity, self._description, self._limit())
            try:
                awaited = resume(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self._state.end()
            try:
                resume, value = work.send, (yield awaited)
            except BaseException as error:  # a cancellation, which the work handles
                resume, value = work.throw, error
