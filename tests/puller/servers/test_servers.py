"""Each protocol against a server that speaks it, answer by answer."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web

from puller.servers.base import ModelServer, ServerError, ServerHealth, Timeouts
from puller.servers.tfserving import CONFIG_NAME, TfServing, render
from puller.servers.v2 import TritonServer, V2Server
from tests.puller.errors import refused
from tests.puller.fakes import Listening, until

PATIENT = Timeouts(probe=60.0, load=60.0, unload=60.0)
QUICK = Timeouts(probe=0.3, load=0.3, unload=0.3)
"""For what does not come: everything else takes as long as the machine needs."""
Answer = Callable[[web.Request], Any]


class Scripted(Listening):
    """Responses by method and path: a status, a (status, JSON) pair, a list of these in turn, or a
    function."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.calls: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = f"{request.method} {request.path}"
        self.calls.append(call)
        answer = self.answers.get(call, 404)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = await answer(request)
        if isinstance(answer, web.StreamResponse):
            return answer
        status, body = answer if isinstance(answer, tuple) else (answer, {})
        return web.json_response(body, status=status)


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def v2(server: Scripted) -> AsyncIterator[V2Server]:
    client = V2Server(server.url, PATIENT)
    yield client
    await client.close()


LOAD, UNLOAD, READY = (
    "POST /v2/repository/models/m/load",
    "POST /v2/repository/models/m/unload",
    "GET /v2/models/m/ready",
)


async def hang(_: web.Request) -> int:
    await asyncio.Event().wait()
    return 200


def quick_from_here(client: V2Server) -> Answer:
    """200, and the client takes this for the last thing that may take long."""

    async def answer(_: web.Request) -> int:
        client.timeouts = replace(QUICK, probe=PATIENT.probe)
        return 200

    return answer


@pytest.mark.parametrize("status", [200, 404, 500, 503])
async def test_any_answer_means_up(server: Scripted, v2: V2Server, status: int) -> None:
    server.answers["GET /v2/health/live"] = status
    assert await v2.health() is ServerHealth.UP


async def test_silence_means_hung_and_a_closed_port_down(server: Scripted, v2: V2Server) -> None:
    server.answers["GET /v2/health/live"] = hang
    v2.timeouts = QUICK
    assert await v2.health() is ServerHealth.HUNG
    server.answers["GET /v2/health/live"] = die
    assert await v2.health() is ServerHealth.HUNG
    closed = V2Server("http://127.0.0.1:1", PATIENT)
    assert await closed.health() is ServerHealth.DOWN
    with refused("ServerUnavailable"):
        await closed.ready("m")
    await closed.close()


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (200, True),
        ((200, {"ready": True}), True),
        ((200, {"ready": False}), False),
        (404, False),
        (503, False),
    ],
)
async def test_responses_that_count_as_ready(
    server: Scripted, v2: V2Server, answer: Any, ready: bool
) -> None:
    server.answers[READY] = answer
    assert await v2.ready("m") is ready


async def test_a_load_is_over_when_the_model_is_ready(server: Scripted, v2: V2Server) -> None:
    server.answers |= {LOAD: 200, READY: [404, 404, 200]}
    await v2.load("m", was_ready=False)
    assert server.calls == [LOAD, READY, READY, READY]


async def test_a_load_fails_if_the_model_is_not_ready_in_time(server: Scripted, v2: V2Server) -> None:
    server.answers |= {LOAD: quick_from_here(v2), READY: 404}
    with refused("NotReady"):
        await v2.load("m", was_ready=False)


async def test_a_refused_load_fails_unless_the_model_got_ready_anyway(server: Scripted, v2: V2Server) -> None:
    server.answers |= {LOAD: (503, {"error": "out of memory"}), READY: 404}
    with pytest.raises(ServerError, match="503: out of memory"):
        await v2.load("m", was_ready=False)
    server.answers[READY] = 200
    await v2.load("m", was_ready=False)
    with pytest.raises(ServerError, match="out of memory"):
        await v2.load("m", was_ready=True)  # the ready one may be the previous version


async def test_a_load_has_a_timeout(server: Scripted, v2: V2Server) -> None:
    server.answers[LOAD] = hang
    v2.timeouts = QUICK
    with refused("ServerTimeout"):
        await v2.load("m", was_ready=False)


async def die(request: web.Request) -> int:
    assert request.transport is not None
    request.transport.abort()
    return 200


async def test_an_answer_may_come_in_pieces(server: Scripted, v2: V2Server) -> None:
    async def in_pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in (b'{"name": "m",', b' "ready": false}'):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    server.answers[READY] = in_pieces
    assert not await v2.ready("m")


@pytest.mark.parametrize("body", [b'{"error": "\\ud800"}', b'{"error":' + b"[" * 30_000, b"\xff"])
async def test_any_answer_of_a_server_can_be_reported(server: Scripted, v2: V2Server, body: bytes) -> None:
    async def failing(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500, body=body)

    server.answers |= {LOAD: failing, READY: 404}
    with pytest.raises(ServerError, match="the server answers 500: ") as caught:
        await v2.load("m", was_ready=False)
    assert str(caught.value).encode()


async def test_a_server_that_dies_during_a_load(server: Scripted, v2: V2Server) -> None:
    server.answers[LOAD] = die
    with refused("ServerLost"):
        await v2.load("m", was_ready=False)


async def test_unloading(server: Scripted, v2: V2Server) -> None:
    await v2.unload("m")  # 404: it is not there, as wanted
    server.answers |= {UNLOAD: 200, READY: [200, 404]}
    await v2.unload("m")
    server.answers |= {UNLOAD: 400, READY: 400}
    await v2.unload("m")
    server.answers |= {UNLOAD: (500, {"error": "busy"}), READY: 200}
    with pytest.raises(ServerError, match="500: busy"):
        await v2.unload("m")
    server.answers |= {UNLOAD: quick_from_here(v2), READY: 200}
    with pytest.raises(ServerError, match="still ready"):
        await v2.unload("m")


async def test_triton_in_the_wrong_mode_gets_a_hint(server: Scripted) -> None:
    triton = TritonServer(server.url, PATIENT)
    message = "explicit model load / unload is not allowed if polling is enabled"
    server.answers |= {LOAD: (503, {"error": message}), READY: 404}
    with pytest.raises(ServerError, match=re.escape("--model-control-mode=explicit")):
        await triton.load("m", was_ready=False)
    await triton.close()


async def test_without_a_server_every_model_is_ready() -> None:
    none = ModelServer()
    assert await none.health() is ServerHealth.UP
    assert await none.ready("m")
    await none.load("m", was_ready=False)
    await none.unload("m")
    await none.declare(frozenset())
    await none.close()


class TensorFlowServing:
    """Reads the config file as the real one does, and answers for its content."""

    def __init__(self, model_dir: Path) -> None:
        self.file = model_dir / CONFIG_NAME
        self.model_dir = model_dir
        self.served: dict[str, str] = {}
        self.history: list[list[str]] = []

    def poll(self) -> None:
        names = re.findall(r'name: "([^"]+)"', self.file.read_text()) if self.file.exists() else []
        if not self.history or self.history[-1] != names:
            self.history.append(names)
        for name in self.served.keys() - set(names):
            del self.served[name]
        for name in names:  # a version that is served is not read again
            self.served.setdefault(name, (self.model_dir / name / "1" / "saved_model.pb").read_text())

    async def answer(self, request: web.Request) -> tuple[int, Any]:
        self.poll()
        name = request.path.rsplit("/", 1)[1]
        if name not in self.served:
            return 404, {"error": "no such model"}
        return 200, {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}


async def test_tensorflow_serving_gets_the_whole_set(server: Scripted, tmp_path: Path) -> None:
    serving = TensorFlowServing(tmp_path)
    for name in "ab":
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "saved_model.pb").write_text(f"{name} old")
        server.answers[f"GET /v1/models/{name}"] = serving.answer
    client = TfServing(server.url, PATIENT, tmp_path, Path("/models"))
    await client.declare(frozenset("ab"))
    await client.load("a", was_ready=False)
    await client.load("b", was_ready=False)
    assert serving.served == {"a": "a old", "b": "b old"}
    assert (tmp_path / CONFIG_NAME).read_text() == render(["a", "b"], Path("/models"))

    (tmp_path / "a" / "1" / "saved_model.pb").write_text("a new")
    await client.load("a", was_ready=True)
    assert serving.served == {"a": "a new", "b": "b old"}, (
        "the same version number is taken away and given back"
    )
    assert serving.history == [["a", "b"], ["b"], ["a", "b"]]

    await client.unload("a")
    assert serving.served == {"b": "b old"}
    assert not await client.ready("a")
    await client.close()


async def test_tensorflow_serving_needs_a_version_directory(server: Scripted, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    client = TfServing(server.url, PATIENT, tmp_path, tmp_path)
    with refused("NoVersion"):
        await client.load("a", was_ready=False)
    await client.close()


def test_the_config_file_is_text_protobuf() -> None:
    assert render([], Path("/m")) == "model_config_list {\n}\n"
    assert render(["a"], Path('/m "ü\\')) == (
        'model_config_list {\n  config {\n    name: "a"\n    base_path: "/m \\042\\303\\274\\134/a"\n'
        '    model_platform: "tensorflow"\n  }\n}\n'
    )


async def test_the_config_file_is_replaced_in_one_step(server: Scripted, tmp_path: Path) -> None:
    """A reader that opens it again and again never sees a part of it."""
    client = TfServing(server.url, PATIENT, tmp_path, tmp_path)
    sets = [frozenset(f"model-{index}" for index in range(count)) for count in (0, 50, 200)]
    whole = {render(sorted(names), tmp_path) for names in sets}
    seen: set[str] = set()
    done = asyncio.Event()

    def read() -> None:
        while not done.is_set():
            if (tmp_path / CONFIG_NAME).exists():
                seen.add((tmp_path / CONFIG_NAME).read_text())

    reader = asyncio.create_task(asyncio.to_thread(read))
    for index in range(60):
        await client.declare(sets[index % 3])
    await until(lambda: len(seen) > 1)
    done.set()
    await reader
    assert seen <= whole
    await client.close()


async def test_a_list_on_a_read_only_volume_that_is_right_already_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CONFIG_NAME).write_text(render(["a"], tmp_path))
    refusal = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr("puller.servers.tfserving.write_atomically", Mock(side_effect=refusal))
    client = TfServing("http://127.0.0.1:1", QUICK, tmp_path, tmp_path)
    await client.declare(frozenset({"a"}))
    assert (tmp_path / CONFIG_NAME).read_text() == render(["a"], tmp_path)
    with pytest.raises(ServerError, match="cannot be written: Read-only file system"):
        await client.declare(frozenset({"a", "b"}))
