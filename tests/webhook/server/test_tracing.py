"""Traces: spans reach a collector, in the trace of the caller, for what the caller traces."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.webhook.server.test_worker import _unverified, served
from tests.webhook.server.wired import REVIEW
from webhook.errors import UserError
from webhook.server import tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = "01", "00"


@asynccontextmanager
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Queue[Span]]:
    """An OTLP collector over HTTP, and what it was sent."""
    spans: asyncio.Queue[Span] = asyncio.Queue()

    async def take(http: web.Request) -> web.Response:
        assert http.headers["Content-Type"] == "application/x-protobuf"
        for resource in ExportTraceServiceRequest.FromString(await http.read()).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    spans.put_nowait(span)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    try:
        yield spans
    finally:
        await runner.cleanup()


async def test_a_review_is_a_span_of_the_api_servers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector(monkeypatch) as spans, served("--self-signed", "--tracing") as chassis:
        await chassis.until("/readyz", "ok")
        port = (await chassis.logged("listening"))["port"]
        async with aiohttp.ClientSession() as session:
            for flags in (NOT_SAMPLED, SAMPLED, None):
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"} if flags else {}
                url = f"https://127.0.0.1:{port}/mutate"
                async with session.post(url, json=REVIEW, headers=headers, ssl=_unverified()) as answer:
                    assert (await answer.json())["response"]["allowed"]
        async with asyncio.timeout(60):
            span = await spans.get()
        line = await chassis.logged("changed")
        assert (line["endpoint"], line["name"]) == ("mutate", "vllm"), "the log says it as ever"
        assert await chassis.stop() == 0
        assert spans.empty(), "what the caller does not trace is not traced"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert (span.name, span.kind) == ("admission mutate", Span.SPAN_KIND_SERVER)
    told = {each.key: each.value.string_value or each.value.bool_value for each in span.attributes}
    assert told == {
        "chassis.outcome": "changed",
        "chassis.operation": "CREATE",
        "chassis.kind": "Pod",
        "chassis.namespace": "ml",
        "chassis.name": "vllm",
        "chassis.user": "ada",
        "chassis.dryRun": False,
    }


async def test_a_collector_that_is_away_costs_no_review(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with served("--self-signed", "--tracing") as chassis:
        await chassis.until("/readyz", "ok")
        assert (await chassis.post("mutate"))["allowed"] is True
        assert await chassis.stop() == 0


def test_without_the_extra_one_sentence_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UserError, match=r"pip install 'ml-chassis\[tracing\]'"):
        tracing.otlp()
