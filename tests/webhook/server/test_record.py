"""What a worker leaves behind for its supervisor: a note of each step, and a digest that a retry shares."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from policies.kube.json import Json
from webhook.server import record as module
from webhook.server.record import Reading, Record, Restarts, Suspects, digest

POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-5d4f-x2v9q",
        "generateName": "web-5d4f-",
        "uid": "7e0c3d64-54e5-4a8c-9d0a-3f2f7a9d5a11",
        "creationTimestamp": "2026-01-01T10:00:00Z",
        "managedFields": [{"time": "2026-01-01T10:00:00Z", "manager": "kube-controller-manager"}],
    },
    "spec": {"volumes": [{"name": "kube-api-access-8xk2p"}], "containers": [{"name": "a", "image": "b"}]},
}


def review(pod: Json = POD, uid: str = "0b8d3c43-2f1c-4ac7-8f0e-0c2a4b1f7d10") -> bytes:
    return json.dumps({"kind": "AdmissionReview", "request": {"uid": uid, "object": pod}}).encode()


RETRIED = review(uid="91a4b1c2-2f1c-4ac7-8f0e-0c2a4b1f7d10")
RETRIED = RETRIED.replace(b"7e0c3d64", b"aa0c3d64").replace(b"10:00:00Z", b"10:07:31.250Z")
RETRIED = RETRIED.replace(b"8xk2p", b"q9z4w").replace(b"5d4f-x2v9q", b"5d4f-mm7bc")


def test_a_retry_of_the_same_object_has_the_same_digest_and_another_object_has_not() -> None:
    assert review() != RETRIED
    assert digest(review()) == digest(RETRIED)
    other = {**POD, "spec": {**POD["spec"], "containers": [{"name": "a", "image": "c"}]}}
    assert digest(review(other)) != digest(review())


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"no JSON", b'{"generateName": "' + b"a" * 100_000])
def test_anything_has_a_digest(body: bytes) -> None:
    assert digest(body) == digest(body)
    assert len(digest(body)) == module.DIGEST_BYTES


def test_a_suspect_is_known_in_processes_that_were_there_before() -> None:
    suspects = Suspects()
    assert not suspects.holds(review())
    turn, token = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(turn, 1)
        os._exit(7 if suspects.holds(RETRIED) and not suspects.holds(b"other") else 1)
    suspects.add(review())
    os.write(token, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(turn)
    os.close(token)


def test_the_oldest_suspect_gives_way() -> None:
    suspects = Suspects()
    for number in range(module.REMEMBERED + 1):
        suspects.add(b"review %d" % number)
    assert not suspects.holds(b"review 0")
    assert all(suspects.holds(b"review %d" % number) for number in range(1, module.REMEMBERED + 1))


def test_restarts_are_counted_by_reason() -> None:
    restarts = Restarts()
    restarts.add("hung")
    restarts.add("hung")
    assert restarts.counts() == {"hung": 2, "stalled": 0, "died": 0}


# --- one review ----------------------------------------------------------------------------------------


class Noted:
    """A record, and what it says whenever somebody looks."""

    def __init__(self) -> None:
        self.record = Record()
        self.seen: list[tuple[int, bytes]] = []

    def look(self) -> None:
        self.seen.append((self.record.step, self.record.body if self.record.step else b""))


async def test_each_step_is_noted_and_nothing_in_between() -> None:
    noted, came = Noted(), asyncio.Event()

    async def work() -> str:
        noted.look()
        await came.wait()
        noted.look()
        return "done"

    reading = Reading(noted.record, b"body", lambda: 1.0)
    task = asyncio.ensure_future(_awaited(reading, work()))
    await asyncio.sleep(0)
    noted.look()
    came.set()
    assert await task == "done"
    noted.look()
    assert noted.seen == [(1, b"body"), (0, b""), (2, b"body"), (0, b"")]


async def _awaited(reading: Reading, work: object) -> object:
    return await reading.noted(work)  # type: ignore[arg-type]


async def test_an_error_and_a_cancellation_pass_through_and_end_the_note() -> None:
    noted = Noted()

    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Reading(noted.record, b"body", lambda: 1.0).noted(fails())
    assert noted.record.step == 0
    cleaned: list[int] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(noted.record.step)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Reading(noted.record, b"body", lambda: 1.0).noted(waits())
    assert cleaned == [3], "the cancellation is a step of its own"
    assert noted.record.step == 0


async def test_an_inner_timeout_works_as_ever() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "in time"

    assert await Reading(Record(), b"body", lambda: 1.0).noted(work()) == "late"


def test_a_process_that_is_killed_leaves_its_note_behind() -> None:
    record = Record()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        reading = Reading(record, review(), lambda: 12.5)

        async def hangs() -> None:
            reading.about({"kind": "v1/Pod", "name": "x" * 10_000})
            os.write(tell, b"1")
            signal.pause()

        reading.noted(hangs()).__await__().send(None)
        os._exit(1)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (record.step, record.limit, record.body) == (1, 12.5, review())
    assert record.about == {"kind": "v1/Pod", "name": "x" * module.ABOUT_LENGTH}
    record.clear()
    assert (record.step, record.about, record.body) == (0, {}, b"")
    os.close(ready)
    os.close(tell)


def test_a_note_that_was_torn_says_nothing() -> None:
    record = Record()
    for torn in (b'{"kind": "P', b"[1]", b"\xff"):
        record.begin(b"body", torn, 1.0)
        assert record.about == {}
