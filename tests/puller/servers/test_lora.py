"""LoRA adapters: the calls of the puller, and the adapters that count as loaded."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from puller.plan import ModelState
from puller.reasons import StatusReason
from puller.servers import lora as lora_module
from puller.servers.base import ServerError, ServerHealth, Timeouts
from puller.servers.lora import LoraServer, SglangServer
from tests.puller.conftest import World
from tests.puller.errors import refused
from tests.puller.fakes import tree_bytes, until
from tests.puller.servers.lora_server import FakeLoraServer, FakeSglangServer

PATIENT = Timeouts(probe=60.0, load=60.0, unload=60.0)
Fake = TypeVar("Fake", bound=FakeLoraServer)
KINDS = {"vllm": FakeLoraServer, "sglang": FakeSglangServer}


@dataclass
class Loads(Generic[Fake]):
    """A fake server, its client, and a model directory."""

    fake: Fake
    models: Path
    server: LoraServer

    async def load(self, name: str, weights: str, *, was_ready: bool = False) -> bytes:
        content = self.adapter(name, weights)
        await self.server.load(name, was_ready=was_ready)
        return content

    def adapter(self, name: str, weights: str) -> bytes:
        """Install an adapter as the store does: in a new directory with a marker."""
        directory = self.models / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text("{}")
        (directory / "weights").write_text(weights)
        (directory / f"SUCCESS.{weights}").write_text("{}")
        return tree_bytes(directory) or b""


@asynccontextmanager
async def loading(fake: Fake, models: Path, key: str = "") -> AsyncIterator[Loads[Fake]]:
    await fake.start()
    client = SglangServer if isinstance(fake, FakeSglangServer) else LoraServer
    server = client(fake.url, PATIENT, models, models, key)
    yield Loads(fake, models, server)
    await server.close()
    await fake.stop()


@pytest.fixture(params=list(KINDS))
async def loads(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Loads[FakeLoraServer]]:
    async with loading(KINDS[request.param](), tmp_path) as made:
        yield made


@pytest.fixture
async def vllm(tmp_path: Path) -> AsyncIterator[Loads[FakeLoraServer]]:
    async with loading(FakeLoraServer(), tmp_path) as made:
        yield made


@pytest.fixture
async def sglang(tmp_path: Path) -> AsyncIterator[Loads[FakeSglangServer]]:
    async with loading(FakeSglangServer(), tmp_path) as made:
        yield made


async def test_an_adapter_is_loaded_replaced_and_unloaded(loads: Loads[FakeLoraServer]) -> None:
    server, fake = loads.server, loads.fake
    assert await server.health() is ServerHealth.UP
    first = loads.adapter("a", "1")
    assert not await server.ready("a")
    await server.load("a", was_ready=False)
    assert await server.ready("a")
    assert fake.serving == {"a": first}
    before = fake.adapters["a"][0]
    keeps = not isinstance(fake, FakeSglangServer)
    second = loads.adapter("a", "2")
    await server.load("a", was_ready=True)
    assert fake.serving == {"a": second}
    assert fake.adapters["a"][0] != before, "a path of its own: the server caches by path"
    assert (tree_bytes(Path(before)) == first) == keeps, "a request in vLLM may still need it"
    await server.unload("a")
    assert fake.serving == {}
    await server.unload("a")
    assert not await server.ready("a")


async def test_a_loaded_adapter_is_not_loaded_again(loads: Loads[FakeLoraServer]) -> None:
    await loads.load("a", "1")
    count = loads.fake.calls[f"POST {loads.server.load_path}"]
    await loads.server.load("a", was_ready=True)
    assert loads.fake.calls[f"POST {loads.server.load_path}"] == count


async def test_a_failed_load_of_an_adapter_is_reported(loads: Loads[FakeLoraServer]) -> None:
    loads.fake.broken.add(loads.adapter("a", "1"))
    with refused(StatusReason.LOAD_FAILED, "bad weights"):
        await loads.server.load("a", was_ready=False)


async def test_a_bad_version_does_not_replace_a_good_one(vllm: Loads[FakeLoraServer]) -> None:
    loads = vllm
    good = await loads.load("a", "1")
    loads.fake.broken.add(loads.adapter("a", "2"))
    with pytest.raises(ServerError, match="bad weights"):
        await loads.server.load("a", was_ready=True)
    assert loads.fake.serving == {"a": good}
    # A puller that was killed during a trial left it in the server.
    loads.fake.adapters["a.next"] = loads.fake.adapters["a"]
    better = await loads.load("a", "3", was_ready=True)
    assert loads.fake.serving == {"a": better}


async def test_old_versions_are_deleted_after_a_while_or_when_the_server_stops(
    vllm: Loads[FakeLoraServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = vllm
    monkeypatch.setattr(lora_module, "_SWEEP_INTERVAL", -1.0)

    def kept() -> int:
        return len(list(loads.models.glob(".puller/adapters/*/*")))

    for version in "123":
        loads.adapter("a", version)
        await loads.server.load("a", was_ready=version != "1")
        assert await loads.server.health() is ServerHealth.UP
    assert kept() == 3
    monkeypatch.setattr(LoraServer, "retention", 0.0)
    await loads.server.health()
    assert kept() == 1
    shutil.rmtree(loads.models / "a")
    monkeypatch.setattr(LoraServer, "retention", 3600.0)
    await loads.server.health()
    assert kept() == 1
    await loads.fake.stop()
    assert await loads.server.health() is ServerHealth.DOWN
    assert kept() == 0


@pytest.mark.parametrize("link", ["adapters", "adapters/a"])
async def test_a_link_in_place_of_the_versions_is_not_followed(
    vllm: Loads[FakeLoraServer], tmp_path: Path, link: str
) -> None:
    """The server can write there, and what the puller deletes must not be files of others."""
    others = tmp_path / "others"
    (others / "x" / "y").mkdir(parents=True)
    path = vllm.models / ".puller" / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(others)
    await vllm.fake.stop()
    assert await vllm.server.health() is ServerHealth.DOWN
    assert (others / "x" / "y").exists()


async def test_a_file_system_without_hard_links(
    loads: Loads[FakeLoraServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(1, "Operation not permitted")

    content = loads.adapter("a", "1")
    monkeypatch.setattr(os, "link", link)
    await loads.server.load("a", was_ready=False)
    assert loads.fake.serving == {"a": content}


async def test_a_tree_without_adapter_config_is_refused(loads: Loads[FakeLoraServer]) -> None:
    (loads.models / "a").mkdir()
    with pytest.raises(ServerError, match=r"no adapter_config\.json"):
        await loads.server.load("a", was_ready=False)
    assert loads.fake.calls[f"POST {loads.server.load_path}"] == 0


async def test_adapters_of_the_server_itself_stay(loads: Loads[FakeLoraServer]) -> None:
    """The base model, and adapters that the server's own arguments name."""
    loads.fake.adapters["theirs"] = ("/adapters/theirs", b"theirs")
    for name in ("base", "theirs"):
        loads.adapter(name, "1")
        assert not await loads.server.ready(name)
        with pytest.raises(ServerError, match="under another name"):
            await loads.server.load(name, was_ready=False)
        await loads.server.unload(name)
    assert loads.fake.serving == {"theirs": b"theirs"}


async def test_a_missing_server_flag_is_reported(loads: Loads[FakeLoraServer]) -> None:
    loads.fake.enabled = False
    loads.adapter("a", "1")
    with pytest.raises(ServerError, match="--enable-lora"):
        await loads.server.load("a", was_ready=False)


async def test_a_refused_list_is_an_error(loads: Loads[FakeLoraServer]) -> None:
    loads.fake.key = "secret"
    with pytest.raises(ServerError, match="CHASSIS_PULLER_SERVER_API_KEY"):
        await loads.server.ready("a")


async def test_the_key_is_sent(tmp_path: Path) -> None:
    async with loading(FakeLoraServer(key="secret"), tmp_path, "secret") as loads:
        await loads.load("a", "1")
        assert list(loads.fake.serving) == ["a"]


async def test_a_long_list_is_read_whole_and_once(
    vllm: Loads[FakeLoraServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora_module, "_LIST_TTL", 60.0)
    root = vllm.models / ".puller/adapters"
    vllm.fake.adapters |= {f"x{n}": (str(root / f"x{n}/1"), b"") for n in range(5000)}
    assert await vllm.server.ready("x4999")
    assert await vllm.server.ready("x0")
    assert vllm.fake.calls["GET /v1/models"] == 1


# --- SGLang, which loads again what a request names -----------------------------------------------


async def test_an_update_ends_although_requests_come_all_the_time(sglang: Loads[FakeSglangServer]) -> None:
    """They would load the version before again, between the unload and the load."""
    fake = sglang.fake
    await sglang.load("a", "1")
    fake.wanted.add("a")
    second = await sglang.load("a", "2", was_ready=True)
    assert await fake.request("a") == second


async def test_a_removed_adapter_does_not_come_back_with_a_request(sglang: Loads[FakeSglangServer]) -> None:
    fake = sglang.fake
    await sglang.load("a", "1")
    fake.wanted.add("a")
    await sglang.server.unload("a")
    with pytest.raises(LookupError):
        await fake.request("a")
    assert fake.serving == {}
    content = await sglang.load("a", "1")
    assert await fake.request("a") == content


async def test_an_evicted_adapter_is_not_loaded_again(
    sglang: Loads[FakeSglangServer],
) -> None:
    """Each load would put away another one, for ever."""
    fake = sglang.fake
    fake.most = 2
    contents = {name: sglang.adapter(name, name) for name in "abcde"}
    for name in contents:
        await sglang.server.load(name, was_ready=False)
    for name in contents:
        assert await sglang.server.ready(name)
        await sglang.server.load(name, was_ready=True)
    assert fake.calls["POST /load_lora_adapter"] == len(contents)
    assert {name: await fake.request(name) for name in contents} == contents
    await sglang.server.unload("a")
    with pytest.raises(LookupError):
        await fake.request("a")


async def test_no_adapter_counts_as_evicted_after_a_restart(sglang: Loads[FakeSglangServer]) -> None:
    fake = sglang.fake
    fake.most = 1
    for name in "ab":
        sglang.adapter(name, name)
        await sglang.server.load(name, was_ready=False)
    await fake.restart()
    await asyncio.sleep(lora_module._LIST_TTL)
    assert [await sglang.server.ready(name) for name in "ab"] == [False, False]
    await fake.stop()
    assert await sglang.server.health() is ServerHealth.DOWN
    await fake.start()


async def test_a_partial_load_succeeds_later(sglang: Loads[FakeSglangServer]) -> None:
    fake = sglang.fake
    content = sglang.adapter("a", "1")
    fake.partial.add("a")
    with pytest.raises(ServerError, match="out of memory"):
        await sglang.server.load("a", was_ready=False)
    await sglang.server.load("a", was_ready=False)
    assert fake.serving == {"a": content}


async def test_data_parallel_servers_are_explained(sglang: Loads[FakeSglangServer]) -> None:
    sglang.fake.data_parallel = 2
    sglang.adapter("a", "1")
    with pytest.raises(ServerError, match="--dp-size 1"):
        await sglang.server.load("a", was_ready=False)


async def test_the_health_check_of_sglang_logs_no_warning(sglang: Loads[FakeSglangServer]) -> None:
    """It logs a warning for each GET /get_model_info, and generates a token for /health."""
    assert await sglang.server.health() is ServerHealth.UP
    assert list(sglang.fake.calls) == ["GET /model_info"]


# --- the whole puller -----------------------------------------------------------------------------


@pytest.fixture(params=list(KINDS))
async def lora(request: pytest.FixtureRequest, world: World) -> AsyncIterator[FakeLoraServer]:
    fake = KINDS[request.param]()
    await fake.start()
    world.server = fake  # type: ignore[assignment]
    world.set(server=request.param, server_url=fake.url)
    yield fake
    await world.stop()
    await fake.stop()


def adapter(world: World, name: str, weights: str) -> str:
    world.put(name, "{}", "adapter_config.json")
    return world.put(name, weights, "weights")


async def test_adapters_follow_the_config(world: World, lora: FakeLoraServer) -> None:
    world.config.write({"a": adapter(world, "a", "A"), "b": adapter(world, "b", "B")})
    world.start()
    await world.serves({"a": "{}A", "b": "{}B"})
    gets = sum(world.store.gets.values())
    await lora.restart()
    await world.serves({"a": "{}A", "b": "{}B"})
    assert sum(world.store.gets.values()) == gets, "not downloaded again"
    world.config.write({"a": {"storageUri": adapter(world, "a2", "A2"), "version": "2"}})
    await world.serves({"a": "{}A2"})
    world.config.write({})
    await world.serves({})
    assert all(tree_bytes(Path(path)) for path in lora.paths), "vLLM may read any of them again"


async def test_a_bad_adapter_is_retried_and_does_not_affect_others(
    world: World, lora: FakeLoraServer
) -> None:
    lora.broken.add(b"{}B")
    world.config.write({"bad": adapter(world, "bad", "B"), "good": adapter(world, "good", "G")})
    world.start()
    await until(lambda: world.states().get("good") is ModelState.LOADED)
    await until(lambda: "bad weights" in world.entry("bad")["message"])
    lora.broken.clear()
    await world.serves({"bad": "{}B", "good": "{}G"})
