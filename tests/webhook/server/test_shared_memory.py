"""What a worker leaves behind for its supervisor: a note of each step, an identity that a retry shares."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.kube.group_kinds import POD as POD_KIND
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.admission.envelope import UID_WITHIN, Request
from webhook.server import shared_memory as module
from webhook.server.shared_memory import (
    Identity,
    ReviewRecord,
    Suspects,
    WorkerRestarts,
    WorkerState,
    in_shared_memory,
)

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
    late = b" " * UID_WITHIN + review()
    assert Identity.of_body(late) != Identity.of_body(late.replace(b"0b8d3c43", b"91a4b1c2"))
    assert Identity.of_body(b'{"request": {"uid": "a"}}b') != Identity.of_body(b'{"request": {"uid": ""}}b')


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"no JSON", b'{"generateName": "' + b"a" * 100_000])
def test_any_body_has_an_identity(body: bytes) -> None:
    assert Identity.of_body(body) == Identity.of_body(body)
    assert len(Identity.of_body(body)) == module.IDENTITY_LENGTH


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


def test_the_table_of_suspects_is_read_again_only_after_one_is_added() -> None:
    suspects, tables = Suspects(), list[object]()
    for number in range(3):
        suspects.add(Identity.of_body(b"%d" % number))
        for other in range(100):
            suspects.holds(Identity.of_body(b"other %d" % other))
            tables.append(suspects._known)
    assert len({id(each) for each in tables}) == 3


def test_restarts_are_counted_by_reason() -> None:
    restarts = in_shared_memory(WorkerRestarts)
    restarts.add("hung")
    restarts.add("hung")
    assert restarts.counts() == {"hung": 2, "stalled": 0, "died": 0}


# --- one review ----------------------------------------------------------------------------------------


SOME = Identity.of_body(b"body")


async def test_only_steps_are_recorded() -> None:
    state, proceed, seen = WorkerState(), asyncio.Event(), list[tuple[int, bytes]]()

    def look() -> None:
        seen.append((state.step, state.identity if state.step else b""))

    async def work() -> str:
        look()
        await proceed.wait()
        look()
        return "done"

    async def recorded() -> str:
        return await ReviewRecord(state, SOME, lambda: 1.0).around(work())

    task = asyncio.create_task(recorded())
    await asyncio.sleep(0)
    look()
    proceed.set()
    assert await task == "done"
    look()
    assert seen == [(1, SOME), (0, b""), (2, SOME), (0, b"")]


async def test_errors_cancellations_and_timeouts_pass_through_and_end_the_record() -> None:
    state, steps = WorkerState(), list[int]()
    record = ReviewRecord(state, SOME, lambda: 1.0)

    async def fails() -> None:
        raise KeyError("x")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append(state.step)

    async def times_out() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "in time"

    with pytest.raises(KeyError):
        await record.around(fails())
    assert state.step == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await record.around(waits())
    assert steps == [3], "the cancellation is a step of its own"
    assert state.step == 0
    assert await record.around(times_out()) == "late"


def test_a_killed_process_leaves_its_record_behind() -> None:
    state = in_shared_memory(WorkerState)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        record = ReviewRecord(state, SOME, lambda: 12.5)

        async def hangs() -> None:
            record.describe({"kind": "v1/Pod", "name": "x" * 10_000}, read(POD))
            os.write(tell, b"1")
            signal.pause()

        next(iter(record.around(hangs())))
        os._exit(1)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (state.step, state.limit, state.identity) == (1, 12.5, read(POD))
    assert state.description == {"kind": "v1/Pod", "name": "x" * module.FIELD_LENGTH}
    state.clear()
    assert (state.step, state.description, state.identity) == (0, {}, b"")
    os.close(ready)
    os.close(tell)


@pytest.mark.parametrize("torn", [b'{"kind": "P', b"[1]", b"\xff"])
def test_a_torn_description_is_ignored(torn: bytes) -> None:
    state = WorkerState()
    state.begin(SOME, torn, 1.0)
    assert state.description == {}
