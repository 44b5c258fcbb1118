"""The HTTP side over real sockets: every review gets an answer, every other body a plain sentence."""

from __future__ import annotations

import asyncio
import gc
import gzip
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import structlog

from tests.steady import pass_over
from tests.webhook.server.running import HEAD, Running, review, serving
from webhook.admission.answer import Answer, Response, allowed, denied, patched
from webhook.admission.envelope import MAX_VALUES, Request
from webhook.server import admission_server as module
from webhook.server import connections
from webhook.server.bodies import LIMIT as BODY_LIMIT
from webhook.server.log import LINES_A_MINUTE
from webhook.server.reviews import time_limit


@pytest.fixture(autouse=True)
def _no_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain HTTP has none to wait for."""
    monkeypatch.setattr(module, "LAST_HANDSHAKES_SECONDS", 0)


# --- answers -------------------------------------------------------------------------------------------


async def test_a_review_is_answered_with_its_uid(running: Running) -> None:
    assert await running.review() == {"uid": "0f1e", "allowed": True}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (allowed(), "allowed"),
        (allowed(["careful"]), "warned"),
        (patched([{"op": "add", "path": "/spec/a", "value": 1}]), "changed"),
        (denied("no"), "denied"),
    ],
)
async def test_each_outcome_is_counted(running: Running, response: Response, outcome: str) -> None:
    def answer(_: Request, __: float) -> Answer:
        return Answer(response)

    running.answer = answer
    assert (await running.review())["allowed"] is response.allowed
    labels = {"endpoint": "validate", "outcome": outcome, "kind": "Pod"}
    assert running.metric("chassis_admission_requests_total", **labels) == 1
    assert running.metric("chassis_admission_seconds_count", endpoint="validate") == 1


async def test_a_kind_from_outside_does_not_become_a_label(running: Running) -> None:
    for kind in ("Widget", "Gadget"):
        await running.review(kind={"group": "example.com", "version": "v1", "kind": kind})
    labels = {"endpoint": "validate", "outcome": "allowed", "kind": "other"}
    assert running.metric("chassis_admission_requests_total", **labels) == 2


@pytest.mark.parametrize("wrong", ["raises", "can't be rendered"])
async def test_a_crash_is_answered_and_the_connection_lives(running: Running, wrong: str) -> None:
    def answer(_: Request, __: float) -> Answer:
        if wrong == "raises":
            raise RecursionError("a bug")
        return Answer(allowed(audit={"findings": "\ud800"}))

    running.answer = answer
    assert await running.review() == {"uid": "0f1e", "allowed": True, "warnings": ["validate failed"]}
    labels = {"endpoint": "validate", "outcome": "failed", "kind": "Pod"}
    assert running.metric("chassis_admission_requests_total", **labels) == 1


# --- deadlines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5),
        ("1m0s", 30),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("", 10),
        ("0s", 10),
        ("-1s", 10),
        ("rubbish", 10),
    ],
)
def test_timeouts_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert time_limit(text) == pytest.approx(seconds * 0.9)


async def test_the_deadline_lies_inside_the_caller_s_timeout(running: Running) -> None:
    clock, given, latest = asyncio.get_running_loop().time, 0.0, 0.0

    def answer(_: Request, deadline: float) -> Answer:
        nonlocal given, latest
        given, latest = deadline, clock()
        return Answer(allowed())

    running.answer = answer
    earliest = clock()
    await running.review("/validate?timeout=2s")
    assert earliest + 1.8 <= given <= latest + 1.8


async def test_an_answer_that_does_not_come_in_time_is_given_without_it(waiting: Running) -> None:
    async def answer(_: Request, __: float) -> Answer:
        pass_over(10)
        await asyncio.Event().wait()
        raise AssertionError

    waiting.answer = answer
    assert (await waiting.review("/validate?timeout=10s"))["warnings"] == ["validate failed"]


async def test_a_body_that_never_arrives_is_given_up(running: Running) -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield b'{"kind":'
        await asyncio.Event().wait()

    status, text = await running.post(stalled(), "/validate?timeout=100ms")
    assert (status, text) == (408, "the body didn't arrive within the time that the request allowed\n")


# --- other bodies than reviews -------------------------------------------------------------------------

DEEP = b"[" * 100_000
BAD_BODIES = {
    "empty": b"",
    "broken off": json.dumps(review()).encode()[:-5],
    "an array": b"[]",
    "object of another type": json.dumps(review(object="x")).encode(),
    "deep nesting": json.dumps(review()).replace('"spec": {}', '"spec": ' + DEEP.decode()).encode(),
    "balanced deep nesting": DEEP + b"]" * len(DEEP),
    "duplicate keys": json.dumps(review()).replace('"spec": {}', '"spec": {"a": 1, "a": 2}').encode(),
}
"""Others are in `tests.webhook.admission.test_envelope`."""


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a_malformed_review_is_a_400_with_one_plain_sentence(running: Running, body: bytes) -> None:
    status, text = await running.post(body)
    assert status == 400
    assert text.count("\n") == 1
    assert 10 < len(text) < 200
    assert "Traceback" not in text
    assert await running.review() == {"uid": "0f1e", "allowed": True}, "and the connection still works"


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(review()).replace('"spec": {}', '"spec": {"a": ' + "9" * 400 + "}"),
        json.dumps(review()).replace('"spec": {}', '"spec": ' + '{"a":' * 900 + "1" + "}" * 900),
    ],
    ids=["a huge number", "nesting that the parser takes"],
)
async def test_odd_but_readable_bodies_are_answered(running: Running, body: str) -> None:
    status, text = await running.post(body)
    assert status in (200, 400)
    if status == 200:
        assert json.loads(text)["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/yaml", 415),
        ("application/json; charset=utf-8", 200),
    ],
)
async def test_another_content_type_is_a_415(running: Running, content_type: str, status: int) -> None:
    found, text = await running.post(json.dumps(review()), **{"Content-Type": content_type})
    assert found == status
    assert status == 200 or text == f"the content type must be application/json, not {content_type}\n"


async def test_a_gzip_bomb_is_refused_by_its_header(running: Running) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert await running.post(bomb, **{"Content-Encoding": "gzip"}) == (
        415,
        "the body must not be compressed\n",
    )


async def test_lines_about_requests_that_are_none_are_few(running: Running) -> None:
    with structlog.testing.capture_logs() as lines:
        for _ in range(LINES_A_MINUTE + 3):
            assert (await running.post("rubbish"))[0] == 400
    said = [line for line in lines if line["event"] == "request refused"]
    assert [line["reason"] for line in said] == ["Bad Request"] * LINES_A_MINUTE
    assert (
        running.metric(
            "chassis_admission_requests_total", endpoint="validate", outcome="rejected", kind="other"
        )
        == LINES_A_MINUTE + 3
    )


async def test_a_chunked_body_is_read(running: Running) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        text = json.dumps(review()).encode()
        for start in range(0, len(text), 50):
            yield text[start : start + 50]

    status, _ = await running.post(chunks())
    assert status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413_that_the_sender_can_read(
    running: Running, chunked: bool
) -> None:
    size = BODY_LIMIT + 5_000_000

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(0, size, 1_000_000):
            yield b" " * 1_000_000

    status, text = await running.post(chunks() if chunked else io.BytesIO(b" " * size))
    assert (status, text) == (413, "the review is larger than 8 MiB\n")
    assert await running.review() == {"uid": "0f1e", "allowed": True}


async def test_a_body_just_under_the_limit_is_read(running: Running) -> None:
    text = json.dumps(review())
    status, _ = await running.post(io.BytesIO((text + " " * (BODY_LIMIT - len(text))).encode()))
    assert status == 200


ITEMS = [b"{}", b'{"a":1}', b'"abcdef"', b'{"\\u003a":1}']


@pytest.mark.parametrize("item", ITEMS, ids=[item.decode() for item in ITEMS])
async def test_no_body_within_the_limit_makes_more_than_a_bounded_number_of_objects(
    waiting: Running, item: bytes
) -> None:
    """The collector runs for each 700 of them. Without a bound it ran 8,000 times for one body."""
    collections, thresholds = 0, gc.get_threshold()

    def counted(phase: str, _: object) -> None:
        nonlocal collections
        collections += phase == "stop"

    head, end = json.dumps(review(object={"x": 0})).encode().split(b"0}}}")[0], b"]}}}"
    for values, read in ((MAX_VALUES // 2 - 50, True), (BODY_LIMIT, False)):
        times = min(values, (BODY_LIMIT - len(head) - len(end)) // (len(item) + 1) - 1)
        body = head + b"[" + b",".join([item] * times) + end
        gc.collect()
        gc.callbacks.append(counted)
        gc.set_threshold(700, 10_000)  # only for the youngest objects, which is cheap
        try:
            status, answer = await waiting.post(io.BytesIO(body))
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(counted)
        assert status == 200
        warnings = json.loads(answer)["response"].get("warnings", [])
        assert (warnings == []) is read
        assert read or "more than 300,000 values" in " ".join(" ".join(warnings).split())
    assert collections < 1_500
    undecidable = {"endpoint": "validate", "outcome": "undecidable", "kind": "other"}
    assert waiting.metric("chassis_admission_requests_total", **undecidable) == 1


async def test_a_body_of_too_many_values_and_without_a_uid_is_refused(running: Running) -> None:
    assert (await running.post(io.BytesIO(b"[" + b"{}," * MAX_VALUES + b"1]")))[0] == 400


async def raw(running: Running, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*running.address)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["negative length", "two lengths", "broken chunk", "huge header"],
)
async def test_broken_http_is_a_4xx_and_harms_nobody_else(running: Running, request_bytes: bytes) -> None:
    answer = await raw(running, request_bytes)
    assert answer.startswith(b"HTTP/1.") and answer.split()[1][:1] == b"4"  # noqa: PT018
    assert await running.review() == {"uid": "0f1e", "allowed": True}


async def test_a_length_over_the_limit_is_refused_before_the_body_comes(running: Running) -> None:
    reader, writer = await asyncio.open_connection(*running.address)
    writer.write(HEAD + b"Content-Length: 9000000000\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"8 MiB\n"), 60)
    assert answer.startswith(b"HTTP/1.1 413")
    writer.close()
    await writer.wait_closed()


async def test_a_caller_that_goes_away_in_the_middle_harms_nobody_else(running: Running) -> None:
    _, writer = await asyncio.open_connection(*running.address)
    writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()
    assert await running.review() == {"uid": "0f1e", "allowed": True}


async def test_other_paths_and_methods_are_4xx(running: Running) -> None:
    assert (await running.get("/validate"))[0] == 405
    assert (await running.get("/nothing"))[0] == 404


# --- health, metrics, drain ----------------------------------------------------------------------------


async def test_readiness_names_missing_parts_and_health_does_not_care(running: Running) -> None:
    running.problem, running.readiness.policy = "no serving certificate yet", False
    assert await running.get("/readyz") == (503, "no serving certificate yet; no policy yet\n")
    assert await running.get("/healthz") == (200, "ok\n")
    running.problem, running.readiness.policy = "", True
    assert await running.get("/readyz") == (200, "ok\n")


async def test_metrics_are_prometheus_text(running: Running) -> None:
    await running.review()
    async with running.session.get(running.url("/metrics")) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = await answer.text()
    expected = 'chassis_admission_requests_total{endpoint="validate",kind="Pod",outcome="allowed"} 1.0'
    assert expected in text.splitlines()


@pytest.mark.parametrize("request_", ["", "GET /healthz", "POST /validate"])
async def test_idle_connections_outlive_those_of_the_api_server(
    monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    assert connections.KEEP_ALIVE_SECONDS > 90
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.1)  # it is this that closes an idle connection
    async with serving() as running:
        reader, writer = await asyncio.open_connection(*running.address)
        if request_:
            head = f"{request_} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 0"
            writer.write(f"{head}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 ")
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()


async def test_while_it_drains_it_answers_unready_and_closes_each_connection(running: Running) -> None:
    drain = asyncio.create_task(running.server.drain(60))
    await asyncio.sleep(0)
    assert await running.get("/readyz") == (503, "shutting down\n")
    async with running.session.post(running.url("/validate"), json=review()) as answer:
        assert answer.status == 200
        assert answer.headers["Connection"] == "close"
    assert not drain.done()
    pass_over(60)
    await drain
    with pytest.raises(aiohttp.ClientConnectorError):
        await running.get("/healthz")


async def test_a_review_in_flight_is_answered_before_the_end(waiting: Running) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def answer(_: Request, __: float) -> Answer:
        began.set()
        await go_on.wait()
        return Answer(allowed(["late"]))

    waiting.answer = answer
    slow = asyncio.create_task(waiting.review())
    await began.wait()
    drain = asyncio.create_task(waiting.server.drain(0))
    await asyncio.sleep(0.05)
    assert not drain.done()
    go_on.set()
    assert (await slow)["warnings"] == ["late"]
    await asyncio.wait_for(drain, 60)
