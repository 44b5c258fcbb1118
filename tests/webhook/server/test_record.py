"""What a worker leaves behind for its supervisor: a note of each step, an identity that a retry shares."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.kube.group_kinds import POD as POD_KIND
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.admission.envelope import Request
from webhook.server import record as module
from webhook.server.record import Identity, Reading, Record, Restarts, Suspects

POD: Json = manifest(
    "Pod",
    "web-5d4f-x2v9q",
    {"volumes": [{"name": "kube-api-access-8xk2p"}], "containers": [{"name": "a", "image": "b"}]},
    generateName="web-5d4f-",
    uid="7e0c3d64-54e5-4a8c-9d0a-3f2f7a9d5a11",
    creationTimestamp="2026-01-01T10:00:00Z",
    managedFields=[{"time": "2026-01-01T10:00:00Z", "manager": "kube-controller-manager"}],
)


def review(pod: Json = POD, uid: str = "0b8d3c43-2f1c-4ac7-8f0e-0c2a4b1f7d10") -> bytes:
    return json.dumps({"kind": "AdmissionReview", "request": {"uid": uid, "object": pod}}).encode()


def pod(name: str = "web-5d4f-x2v9q", **metadata: Any) -> Json:
    return {**POD, "metadata": {**POD["metadata"], "name": name, **metadata}}


RETRIED = json.loads(
    json.dumps(pod("web-5d4f-mm7bc"))
    .replace("7e0c3d64", "aa0c3d64")
    .replace("10:00:00Z", "10:07:31.250Z")
    .replace("8xk2p", "q9z4w")
)


def read(obj: Json, uid: str = "1", **fields: Any) -> Identity:
    """The identity of a review that was read."""
    metadata = obj["metadata"] if isinstance(obj.get("metadata"), dict) else {}
    request = Request(uid, POD_KIND, "CREATE", "ml", metadata.get("name", ""), object=obj, **fields)
    identity = Identity.of_request(request)
    assert identity is not None
    return identity


def test_a_retry_of_the_same_object_has_the_same_identity() -> None:
    assert POD != RETRIED
    assert read(POD) == read(RETRIED, uid="2")


HIDDEN: Mapping[str, Json] = {
    "an image": {**POD, "spec": {**POD["spec"], "containers": [{"name": "a", "image": "c"}]}},
    "behind the name's prefix, in an annotation": pod(annotations={"a": "web-5d4f-HIDE1 web-5d4f-HIDE2"}),
    "an annotation called uid": pod(annotations={"uid": "hidden"}),
    "an annotation that is a uid": pod(annotations={"a": "7e0c3d64-54e5-4a8c-9d0a-3f2f7a9d5a11"}),
    "an annotation that is a time": pod(annotations={"a": "2026-01-01T10:00:00Z"}),
    "a label called resourceVersion": pod(labels={"resourceVersion": "12"}),
    "the owner's uid": pod(ownerReferences=[{"uid": "7e0c3d64", "kind": "Job", "name": "a"}]),
    "a volume like a token's": {
        **POD,
        "spec": {**POD["spec"], "volumes": [*POD["spec"]["volumes"], {"name": "kube-api-access-aaaaa"}]},
    },
    "another prefix": pod("abc-x2v9q", generateName="abc-"),
    "a name that nobody made at random": pod("web-5d4f-aaaaa"),
}


def test_reviews_that_differ_for_the_engine_have_different_identities() -> None:
    """Also where the difference is in text that looks like what the API server makes."""
    found = {what: read(obj) for what, obj in HIDDEN.items()}
    assert len({read(POD), *found.values()}) == 1 + len(HIDDEN)
    assert read(POD) != read(POD, username="ada")
    assert read(POD) != read(POD, dry_run=True)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_change_but_to_what_the_api_server_makes_is_another_identity(data: st.DataObject) -> None:
    prefix = data.draw(st.sampled_from(["web-5d4f-", "a", "kube-api-access-", "uid"]))
    hides = st.text("abx2v9q-5df", min_size=1, max_size=9)
    texts = st.builds(lambda *parts: "".join(parts), st.sampled_from(["", prefix]), hides)
    keys = st.sampled_from(["uid", "time", "generateName", "resourceVersion", "name", "a"])
    first, second = (data.draw(st.dictionaries(keys, texts, max_size=3)) for _ in range(2))
    one, other = (
        read(pod(f"{prefix}x2v9q", generateName=prefix, annotations=each)) for each in (first, second)
    )
    assert (one == other) is (list(first.items()) == list(second.items()))


def test_a_review_that_was_not_read_is_known_by_all_its_bytes_but_its_uid() -> None:
    assert Identity.of_body(review()) == Identity.of_body(review(uid="91a4b1c2-2f1c-4ac7-8f0e-0c2a4b1f7d10"))
    for other in [*HIDDEN.values(), RETRIED]:
        assert Identity.of_body(review(other)) != Identity.of_body(review())
    late = b" " * module.UID_WITHIN + review()
    assert Identity.of_body(late) != Identity.of_body(late.replace(b"0b8d3c43", b"91a4b1c2"))
    assert Identity.of_body(b'{"request": {"uid": "a"}}b') != Identity.of_body(b'{"request": {"uid": ""}}b')


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"no JSON", b'{"generateName": "' + b"a" * 100_000])
def test_any_body_has_an_identity(body: bytes) -> None:
    assert Identity.of_body(body) == Identity.of_body(body)
    assert len(Identity.of_body(body)) == module.DIGEST_BYTES


def test_what_the_engine_does_not_look_at_has_no_identity_but_that_of_its_bytes() -> None:
    assert Identity.of_request(Request("1", POD_KIND, "DELETE", old_object=POD)) is None


def test_a_suspect_is_known_in_processes_that_were_there_before() -> None:
    suspects = Suspects()
    assert not suspects.holds(read(POD))
    turn, token = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(turn, 1)
        known = suspects.holds(read(RETRIED)) and not suspects.holds(Identity.of_body(b"other"))
        os._exit(7 if known else 1)
    suspects.add(read(POD))
    os.write(token, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(turn)
    os.close(token)


def test_the_oldest_suspect_gives_way() -> None:
    suspects = Suspects()
    numbered = [Identity.of_body(b"review %d" % number) for number in range(module.REMEMBERED + 1)]
    for identity in numbered:
        suspects.add(identity)
    assert [suspects.holds(identity) for identity in numbered] == [False] + [True] * module.REMEMBERED


def test_a_suspect_is_forgotten_after_a_while() -> None:
    now = 1_000.0
    suspects, suspect = Suspects(lambda: now), Identity.of_body(review())
    suspects.add(suspect)
    now += module.SUSPECT_SECONDS - 1
    assert suspects.holds(suspect)
    now += 2
    assert not suspects.holds(suspect)
    suspects.add(suspect)
    assert suspects.holds(suspect)


def test_to_ask_for_a_suspect_reads_the_shared_memory_once_for_each_one_that_is_added() -> None:
    suspects, reads = Suspects(), 0
    slots = suspects._slots

    def counted(count: int) -> Iterator[tuple[bytes, float]]:
        nonlocal reads
        reads += 1
        return slots(count)

    suspects._slots = counted  # type: ignore[method-assign]
    for number in range(3):
        suspects.add(Identity.of_body(b"%d" % number))
        for other in range(100):
            suspects.holds(Identity.of_body(b"other %d" % other))
    assert reads == 3


def test_restarts_are_counted_by_reason() -> None:
    restarts = Restarts()
    restarts.add("hung")
    restarts.add("hung")
    assert restarts.counts() == {"hung": 2, "stalled": 0, "died": 0}


# --- one review ----------------------------------------------------------------------------------------


SOME = Identity.of_body(b"body")


class Noted:
    """A record, and its content at each look."""

    def __init__(self) -> None:
        self.record = Record()
        self.seen: list[tuple[int, bytes]] = []

    def look(self) -> None:
        self.seen.append((self.record.step, self.record.identity if self.record.step else b""))


async def test_only_steps_are_noted() -> None:
    noted, came = Noted(), asyncio.Event()

    async def work() -> str:
        noted.look()
        await came.wait()
        noted.look()
        return "done"

    reading = Reading(noted.record, SOME, lambda: 1.0)
    task = asyncio.ensure_future(_awaited(reading, work()))
    await asyncio.sleep(0)
    noted.look()
    came.set()
    assert await task == "done"
    noted.look()
    assert noted.seen == [(1, SOME), (0, b""), (2, SOME), (0, b"")]


async def _awaited(reading: Reading, work: object) -> object:
    return await reading.noted(work)  # type: ignore[arg-type]


async def test_an_error_and_a_cancellation_pass_through_and_end_the_note() -> None:
    noted = Noted()

    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Reading(noted.record, SOME, lambda: 1.0).noted(fails())
    assert noted.record.step == 0
    cleaned: list[int] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(noted.record.step)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Reading(noted.record, SOME, lambda: 1.0).noted(waits())
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

    assert await Reading(Record(), SOME, lambda: 1.0).noted(work()) == "late"


def test_a_process_that_is_killed_leaves_its_note_behind() -> None:
    record = Record()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        reading = Reading(record, SOME, lambda: 12.5)

        async def hangs() -> None:
            reading.about({"kind": "v1/Pod", "name": "x" * 10_000}, read(POD))
            os.write(tell, b"1")
            signal.pause()

        reading.noted(hangs()).__await__().send(None)
        os._exit(1)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (record.step, record.limit, record.identity) == (1, 12.5, read(POD))
    assert record.about == {"kind": "v1/Pod", "name": "x" * module.ABOUT_LENGTH}
    record.clear()
    assert (record.step, record.about, record.identity) == (0, {}, bytes(module.DIGEST_BYTES))
    os.close(ready)
    os.close(tell)


def test_a_torn_note_is_ignored() -> None:
    record = Record()
    for torn in (b'{"kind": "P', b"[1]", b"\xff"):
        record.begin(SOME, torn, 1.0)
        assert record.about == {}
