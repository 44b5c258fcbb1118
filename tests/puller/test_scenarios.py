"""The situations in which models went missing, stale or half-written elsewhere, one test or more each.

A real store and a real model server (over HTTP, in this process) fail on demand; the reconciler is the
real one, with short times.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from puller.plan import State
from puller.reasons import Reason
from puller.servers.base import Health
from tests.puller.conftest import World
from tests.puller.fakes import logged, until
from tests.puller.servers.test_servers import TensorFlowServing

MB = 1 << 20


# 1. Removed while the puller was down.


async def test_a_model_removed_while_the_puller_was_down_is_unloaded_then_deleted(world: World) -> None:
    a, b = world.put("a", "A"), world.put("b", "B")
    world.config.write({"a": a, "b": b})
    world.start()
    await world.serves({"a": "A", "b": "B"})
    await world.stop()
    world.config.write({"b": b})
    world.start()
    await world.serves({"b": "B"})
    assert world.server.files_at_unload == {"a": True}
    assert world.store.gets == {"a/model.bin": 1, "b/model.bin": 1}
    assert world.server.loads == {"a": 1, "b": 1}


async def test_a_model_removed_while_puller_and_server_were_down_is_deleted_and_not_resurrected(
    world: World,
) -> None:
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    await world.stop()
    await world.server.stop()
    world.config.write({})
    world.start()
    await until(lambda: not (world.model_dir / "a").exists())
    await world.server.start()  # it still has `a`: it had read it before its files went
    await world.serves({})


# 2. Many models at the start.


E2E = pytest.mark.e2e


@pytest.mark.parametrize(
    "count", [101, pytest.param(1000, marks=E2E, id="1000"), pytest.param(5000, marks=E2E, id="5000")]
)
async def test_many_models_at_the_start(world: World, count: int) -> None:
    world.set(num_workers=8, resync=600.0, server_poll=1.0)
    models = {f"m{index}": world.put(f"m{index}", str(index)) for index in range(count)}
    world.config.write(models)
    world.start()
    await until(lambda: len(world.server.serving) == count, seconds=240)
    await until(world.ready)
    assert world.server.serving == {f"m{index}": str(index).encode() for index in range(count)}
    assert set(world.store.gets.values()) == {1}
    assert set(world.server.loads.values()) == {1}


# 3. Edits.


async def test_an_unrelated_edit_reloads_nothing(world: World) -> None:
    world.put("a1", "A"), world.put("a2", "B"), world.put("x", "X")
    world.config.write({"m": "s3://bucket/a1"})
    world.start()
    await world.serves({"m": "A"})
    world.config.write({"m": "s3://bucket/a2"})
    await world.serves({"m": "B"})
    world.config.write(
        {"m": {"storageUri": "s3://bucket/a2", "memory": "2Mi", "priority": 7}, "x": "s3://bucket/x"}
    )
    await world.serves({"m": "B", "x": "X"})
    assert world.server.loads["m"] == 2
    assert world.store.gets["a2/model.bin"] == 1


async def test_there_and_back_again_serves_the_first(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    world.config.write({"m": "s3://bucket/b"})
    await world.serves({"m": "B"})
    world.config.write({"m": "s3://bucket/a"})
    await world.serves({"m": "A"})
    assert world.server.loads["m"] == 3


@pytest.mark.parametrize("moment", ["download", "load"])
async def test_there_and_back_again_in_the_middle_of_a_step(world: World, moment: str) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    held = asyncio.Event()
    if moment == "download":
        world.store.gate = held
    else:
        world.server.hang_loads = held
    world.config.write({"m": "s3://bucket/b"})
    reached = (lambda: world.store.waiting) if moment == "download" else (lambda: world.server.in_flight["m"])
    await until(reached)
    world.config.write({"m": "s3://bucket/a"})
    await until(lambda: world.wants("m") == "s3://bucket/a")
    assert world.server.serving == {"m": b"A"}
    held.set()
    await world.serves({"m": "A"})
    assert world.server.overlaps == 0


async def test_ten_edits_during_one_download_cost_one_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puller.plan.SUPERSEDED_GRACE", 600.0)
    for index in range(11):
        world.put(f"v{index}", f"version {index}")
    world.store.gate = asyncio.Event()
    world.config.write({"m": "s3://bucket/v0"})
    world.start()
    await until(lambda: world.store.waiting)
    for index in range(1, 11):
        world.config.write({"m": f"s3://bucket/v{index}"})
        await until(partial(lambda index: world.wants("m") == f"s3://bucket/v{index}", index))
    world.store.gate.set()
    await world.serves({"m": "version 10"})
    assert world.store.gets == {"v0/model.bin": 1, "v10/model.bin": 1}
    assert world.server.loads == {"m": 1}


async def test_an_outdated_download_is_given_up_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puller.plan.SUPERSEDED_GRACE", 0.2)
    world.put("old", "old"), world.put("new", "new")
    world.store.gate = asyncio.Event()
    world.config.write({"m": "s3://bucket/old"})
    world.start()
    await until(lambda: world.store.gets["old/model.bin"])
    world.config.write({"m": "s3://bucket/new"})
    await until(lambda: world.store.gets["new/model.bin"])
    world.store.gate.set()
    await world.serves({"m": "new"})


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_there_and_back_again_leaves_nothing_of_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("puller.plan.SUPERSEDED_GRACE", 0.05)
    world.put("a", "A"), world.put("b", b"B" * MB)
    world.set(limits=replace(world.options.limits, retry_timeout=0.2))
    world.config.write({"m": "s3://bucket/a"})
    puller = world.start()
    await world.serves({"m": "A"})
    if how == "cancelled":
        world.store.gate = asyncio.Event()
    else:
        world.store.cuts, world.store.cut_after = 10**6, 1000
    world.config.write({"m": "s3://bucket/b"})
    await until(lambda: world.store.waiting or world.entry("m")["state"] == "Failed")
    assert world.leftovers() == ["new/m"]
    world.config.write({"m": "s3://bucket/a"})
    await until(lambda: puller.actions.fetches == {})
    await world.serves({"m": "A"})
    assert world.leftovers() == []
    assert puller.actions.storage.budget.used == 1


async def test_the_old_version_serves_until_the_new_one_is_on_disk(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    world.store.gate = asyncio.Event()
    world.config.write({"m": "s3://bucket/b"})
    await until(lambda: world.store.waiting)
    assert world.on_disk("m") == b"A"
    assert world.server.serving == {"m": b"A"}
    assert world.ready(), "an update takes no pod out of service"
    world.store.gate.set()
    await world.serves({"m": "B"})
    assert world.server.unloads == {}
    assert world.leftovers() == []


# 4. An edit during the startup download.


async def test_an_edit_during_the_startup_download_is_not_lost(world: World) -> None:
    world.put("a", "A"), world.put("b", "B"), world.put("c", "C")
    world.store.gate = asyncio.Event()
    world.config.write({"a": "s3://bucket/a", "b": "s3://bucket/b"})
    world.start()
    await until(lambda: world.store.waiting == 2)
    world.config.write({"b": "s3://bucket/c", "c": "s3://bucket/c"})
    await until(lambda: world.store.gets["c/model.bin"])
    world.store.gate.set()
    await world.serves({"b": "C", "c": "C"})
    assert world.leftovers() == []


# 5. The model server comes late.


async def test_the_server_comes_up_after_the_models_are_on_disk(world: World) -> None:
    await world.server.stop()
    world.config.write({name: world.put(name, name) for name in "abc"})
    world.start()
    await until(lambda: [world.on_disk(name) for name in "abc"] == [b"a", b"b", b"c"])
    await until(lambda: world.entry("a").get("reason") == "WaitingForServer")
    assert not world.ready()
    assert world.server.loads == {}
    await world.server.start()
    await world.serves({"a": "a", "b": "b", "c": "c"})
    assert set(world.server.loads.values()) == {1}


# 6. The store fails.


async def test_a_store_that_answers_503_for_a_while(world: World) -> None:
    world.config.write({"m": world.put("m", "M")})
    world.store.refuse = 12
    world.set(limits=replace(world.options.limits, retry_timeout=0.2))
    world.start()
    await until(lambda: world.entry("m").get("state") == "Failed")
    entry = world.entry("m")
    assert entry["reason"] == "StorageUnavailable"
    assert "503" in entry["message"]
    assert entry["attempts"] >= 1
    await world.serves({"m": "M"})
    assert world.entry("m")["attempts"] == 0


async def test_a_broken_download_goes_on_where_it_broke(world: World) -> None:
    content = os.urandom(6 * MB)
    world.config.write({"m": world.put("m", content)})
    world.store.cuts, world.store.cut_after = 5, MB // 2
    world.start()
    await world.serves({"m": content})
    assert world.store.cuts == 0
    assert world.store.bytes_sent < 7.5 * MB, "nothing is fetched twice but what was in the air"


async def test_a_download_that_breaks_for_long_resumes_in_the_next_attempt(world: World) -> None:
    content = os.urandom(4 * MB)
    world.config.write({"m": world.put("m", content)})
    world.store.cuts, world.store.cut_after = 10_000, 0
    world.set(limits=replace(world.options.limits, retry_timeout=0.2))
    world.start()
    await until(lambda: world.entry("m").get("state") == "Failed")
    world.store.cuts = 0
    await world.serves({"m": content})


async def test_an_object_replaced_during_its_download_is_never_mixed(world: World) -> None:
    old, new = os.urandom(4 * MB), os.urandom(4 * MB)
    world.config.write({"m": world.put("m", old)})
    world.store.cuts, world.store.cut_after = 4, MB // 4
    world.start()
    await until(lambda: world.store.cuts < 4)
    world.put("m", new)
    await world.serves({"m": new})


# 7. Restarts of the model server, and of both.


async def test_a_restarted_server_gets_everything_back_with_no_config_event(world: World) -> None:
    world.config.write({name: world.put(name, name) for name in "abc"})
    world.start()
    await world.serves({"a": "a", "b": "b", "c": "c"})
    await world.server.restart()
    await until(lambda: len(world.server.serving) == 3)
    assert set(world.server.loads.values()) == {2}
    assert set(world.store.gets.values()) == {1}


async def test_a_server_that_is_down_for_a_while(world: World) -> None:
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    await world.server.stop()
    world.server.serving.clear()
    await until(lambda: not world.ready())
    await world.server.start()
    await world.serves({"a": "A"})
    await until(world.ready)


async def test_both_restart(world: World) -> None:
    world.config.write({name: world.put(name, name) for name in "ab"})
    world.start()
    await world.serves({"a": "a", "b": "b"})
    await world.stop()
    await world.server.restart()
    world.start()
    await world.serves({"a": "a", "b": "b"})
    assert set(world.store.gets.values()) == {1}


async def test_a_server_that_refuses_a_load_is_asked_again(world: World) -> None:
    world.config.write({"a": world.put("a", "A"), "b": world.put("b", "B")})
    world.server.refuse_loads["a"] = 3
    world.start()
    await until(lambda: world.entry("a").get("state") == "Failed")
    assert world.entry("a")["reason"] == "LoadFailed"
    assert "cannot load" in world.entry("a")["message"]
    await world.serves({"a": "A", "b": "B"})
    assert world.server.loads == {"a": 4, "b": 1}


async def test_a_refused_reload_is_not_taken_for_the_new_version(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    world.server.refuse_loads["m"] = 2
    world.config.write({"m": "s3://bucket/b"})
    await until(lambda: world.entry("m")["state"] == "Failed")
    assert world.server.serving == {"m": b"A"}
    await world.serves({"m": "B"})


async def test_what_a_server_has_from_elsewhere_is_not_taken_for_the_model(world: World) -> None:
    """It was not on disk, and yet the server has a model of that name, and keeps it at first."""
    world.server.serving["m"] = b"another"
    world.server.refuse_loads["m"] = 2
    world.config.write({"m": world.put("m", "M")})
    world.start()
    await world.serves({"m": "M"})
    assert world.server.loads["m"] == 3


async def test_a_server_that_hangs_is_left_alone_until_it_answers(world: World) -> None:
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    world.server.hung = asyncio.Event()
    world.hurry(probe=0.3)
    await until(lambda: world.puller and world.puller.health.value == "hung")
    world.config.write({"a": "s3://bucket/a", "b": world.put("b", "B")})
    await until(lambda: world.on_disk("b") == b"B")
    loads = dict(world.server.loads)
    assert loads == {"a": 1}
    world.server.hung.set()
    world.server.hung = None
    await world.serves({"a": "A", "b": "B"})


@pytest.mark.parametrize("silent", ["server", "model"])
async def test_a_load_whose_answer_is_lost_is_not_sent_again(world: World, silent: str) -> None:
    """A busy server answers late. It has loaded the model by then, and a second load would do it again."""
    world.server.hang_loads = asyncio.Event()
    world.config.write({"a": world.put("a", "A")})
    puller = world.start()
    await until(lambda: world.server.in_flight["a"])
    held = asyncio.Event()
    if silent == "server":
        world.server.hung = held
    else:
        world.server.hang_ready = held
    world.hurry(probe=0.3)
    world.server.hang_loads.set()
    model = puller.models["a"]
    if silent == "server":
        await until(lambda: puller.health is Health.HUNG and bool(model.failure) and not model.in_flight)
    else:
        await until(lambda: model.failure is not None and model.failure.attempts > 2)
    assert model.failure is not None
    assert model.failure.reason is Reason.SERVER_TIMEOUT
    held.set()
    world.server.hung = world.server.hang_ready = None
    await world.serves({"a": "A"})
    assert world.server.loads == {"a": 1}


# 8, 9. What a crash leaves on disk.


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("marker", [None, "", "{", "[]", '{"storageUri": 7}'], ids=repr)
async def test_a_directory_that_is_not_complete_is_removed(
    world: World, listed: bool, marker: str | None
) -> None:
    half = world.model_dir / "m"
    half.mkdir(parents=True)
    (half / "model.bin").write_text("hal")
    if marker is not None:
        (half / "SUCCESS.abc").write_text(marker)
    uri = world.put("m", "whole")
    world.config.write({"m": uri} if listed else {})
    world.start()
    await world.serves({"m": "whole"} if listed else {})


async def test_kserves_own_marker_counts(world: World) -> None:
    kept = world.model_dir / "m"
    kept.mkdir(parents=True)
    (kept / "model.bin").write_text("from before")
    spec = {"storageUri": "s3://bucket/m", "framework": "sklearn", "memory": "1Mi"}
    (kept / "SUCCESS.0a1b2c").write_text(json.dumps(spec))
    world.put("m", "from the store")
    world.config.write({"m": spec})
    world.start()
    await world.serves({"m": "from before"})
    assert world.store.requests == []


async def test_a_complete_model_of_another_spec_is_replaced(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    await world.stop()
    world.config.write({"m": "s3://bucket/b"})
    world.start()
    await world.serves({"m": "B"})


async def test_a_crash_between_swap_and_load_does_not_leave_the_old_version_serving(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    world.server.hang_loads = asyncio.Event()
    world.config.write({"m": "s3://bucket/b"})
    await until(lambda: world.server.in_flight["m"])
    await world.kill()
    assert world.on_disk("m") == b"B"
    world.server.refuse_loads["m"] = 1  # the load that was in flight fails
    world.server.hang_loads.set()
    await until(lambda: not world.server.in_flight["m"])
    assert world.server.serving == {"m": b"A"}
    world.start()
    await world.serves({"m": "B"})


async def test_leftovers_of_a_crash_are_swept(world: World) -> None:
    for part in ("new/m/tree", "old/tmp1/tree"):
        directory = world.model_dir / ".puller" / part
        directory.mkdir(parents=True)
        (directory / "model.bin").write_text("half")
    world.config.write({})
    world.start()
    await until(lambda: world.leftovers() == [])


async def test_other_models_are_not_changed(world: World) -> None:
    other = world.model_dir / "lost+found"
    other.mkdir(parents=True)
    (world.model_dir / "notes.txt").write_text("mine")
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await until(lambda: world.server.serving == {"a": b"A"})
    assert other.is_dir()
    assert (world.model_dir / "notes.txt").read_text() == "mine"


# 10. The model directory.


async def test_a_missing_model_directory_is_made(world: World) -> None:
    world.set(model_dir=world.model_dir / "deep" / "er")
    world.server.model_dir = world.model_dir
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})


async def test_an_unusable_model_directory_is_reported_and_waited_for(world: World) -> None:
    world.model_dir.write_text("a file, of all things")
    world.config.write({"a": world.put("a", "A")})
    puller = world.start()
    await until(lambda: puller.status.model_dir_error)
    assert puller.status.healthy()[0]
    assert not world.ready()
    world.model_dir.unlink()
    await world.serves({"a": "A"})


async def test_a_full_disk_fails_one_model_and_heals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.config.write({"big": world.put("big", b"x" * MB), "small": world.put("small", "s")})
    usage = shutil.disk_usage("/")
    free = {"bytes": MB // 2}
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free["bytes"]))
    world.start()
    await until(lambda: world.server.serving == {"small": b"s"})
    await until(lambda: world.entry("big").get("reason") == "DiskFull")
    assert world.store.gets["big/model.bin"] == 0
    free["bytes"] = 10 * MB
    await world.serves({"big": b"x" * MB, "small": "s"})


async def test_a_write_that_fails_half_way_leaves_nothing_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.config.write({"m": world.put("m", b"x" * MB)})
    really = os.pwrite
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 2

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if failures:
            raise failures.pop()
        return really(descriptor, data, offset)

    monkeypatch.setattr("os.pwrite", pwrite)
    world.start()
    await until(lambda: world.entry("m").get("reason") == "DiskFull")
    assert world.on_disk("m") is None
    await world.serves({"m": b"x" * MB})


async def test_max_disk_refuses_clearly_and_takes_over_when_room_is_made(world: World) -> None:
    world.set(max_disk=3 * MB)
    a, b = world.put("a", b"a" * 2 * MB), world.put("b", b"b" * 2 * MB)
    world.config.write({"a": a})
    world.start()
    await world.serves({"a": b"a" * 2 * MB})
    world.config.write({"a": a, "b": b})
    await until(lambda: world.entry("b").get("reason") == "OverMaxDisk")
    assert "2.0 MiB do not fit: models take 2.0 MiB of 3.0 MiB" in world.entry("b")["message"]
    world.config.write({"b": b})
    await world.serves({"b": b"b" * 2 * MB})


async def test_max_memory_refuses_a_load_until_another_model_goes(world: World) -> None:
    world.set(max_memory=3 * MB)
    a = {"storageUri": world.put("a", "A"), "memory": "2Mi", "priority": 1}
    b = {"storageUri": world.put("b", "B"), "memory": "2Mi"}
    world.config.write({"a": a})
    world.start()
    await world.serves({"a": "A"})
    world.config.write({"a": a, "b": b})
    await until(lambda: world.entry("b").get("reason") == "OverMaxMemory")
    assert world.entry("b")["state"] == "Failed"
    assert world.server.loads["b"] == 0
    assert world.on_disk("b") == b"B"
    world.config.write({"b": b})
    await world.serves({"b": "B"})


async def test_models_beyond_the_memory_are_reported_once(world: World) -> None:
    """Each edit lets them ask again; the same result is no news."""
    world.set(max_memory=2 * MB, load_workers=8)
    models: dict[str, Any] = {name: world.put(name, name) for name in "abcdef"}  # a mebibyte each
    world.config.write(models)
    world.start()

    def settled() -> bool:
        states = list(world.states().values())
        return states.count(State.LOADED) == 2 and states.count(State.FAILED) == 4

    await until(settled)
    with logged() as lines:
        world.config.write(models | {"bad": "ftp://x"})
        await until(lambda: world.entry("bad"))
        last = max(name for name in "abcdef" if world.entry(name)["state"] == "Loaded")
        world.config.write({name: uri for name, uri in models.items() if name != last})
        await until(lambda: world.puller and last not in world.puller.models)
        await until(lambda: list(world.states().values()).count(State.LOADED) == 2)
    assert len(world.server.serving) == 2
    told = {line["model"] for line in lines if line["event"] == "model"}
    assert len(told) == 2, f"{last} went, and one came: {told}"


# 12. What a URI names.


async def test_a_single_object_is_a_model_and_siblings_stay_out(world: World) -> None:
    world.put("m1", "one"), world.put("m10", "ten")
    world.store.objects["m1.txt"] = b"text"
    world.store.objects["solo.joblib"] = b"solo"
    world.config.write({"m1": "s3://bucket/m1", "solo": "s3://bucket/solo.joblib"})
    world.start()
    await world.serves({"m1": "one", "solo": "solo"})
    assert (world.model_dir / "solo" / "solo.joblib").read_bytes() == b"solo"
    assert set(world.store.gets) == {"m1/model.bin", "solo.joblib"}


@pytest.mark.parametrize("key", ["m/../../evil", "m//evil", "m/a\x01b", "m/" + "x" * 300])
async def test_hostile_keys_are_refused(world: World, key: str) -> None:
    world.put("m", "good"), world.put("other", "O")
    world.store.objects[key] = b"evil"
    world.config.write({"m": "s3://bucket/m", "other": "s3://bucket/other"})
    world.start()
    await until(lambda: world.entry("m").get("state") == "Failed")
    assert world.entry("m")["reason"] == "HostilePath", world.entry("m")
    await until(lambda: world.server.serving == {"other": b"O"})
    assert not (world.model_dir / "m").exists()
    assert not list(world.model_dir.parent.rglob("evil"))


async def test_an_empty_source_is_reported(world: World) -> None:
    world.config.write({"m": "s3://bucket/nowhere"})
    world.start()
    await until(lambda: world.entry("m").get("reason") == "NotFound")
    world.put("nowhere", "now there")
    await world.serves({"m": "now there"})


# 13. Removed in the middle.


async def test_a_model_removed_while_it_downloads_leaves_nothing(world: World) -> None:
    world.store.gate = asyncio.Event()
    world.config.write({"m": world.put("m", "M")})
    world.start()
    await until(lambda: world.store.waiting)
    world.config.write({})
    await until(lambda: world.puller and not world.puller.models)
    assert world.leftovers() == []
    world.store.gate.set()
    await world.serves({})


async def test_removed_and_added_again_at_once(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await world.serves({"m": "A"})
    world.server.hang_unloads = asyncio.Event()
    world.config.write({})
    await until(lambda: world.server.unloads["m"])
    world.config.write({"m": "s3://bucket/b"})
    await until(lambda: world.puller and world.puller.models["m"].desired)
    world.server.hang_unloads.set()
    await world.serves({"m": "B"})


async def test_an_unload_that_hangs_holds_up_nobody_else_and_keeps_the_files(world: World) -> None:
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    world.server.hang_unloads = asyncio.Event()
    world.hurry(unload=0.3)
    world.config.write({"b": world.put("b", "B")})
    await until(lambda: world.server.serving.get("b") == b"B")
    await until(lambda: world.entry("a").get("state") == "Failed")
    assert world.entry("a")["reason"] == "ServerTimeout"
    assert world.on_disk("a") == b"A", "unload comes before the files go"
    world.server.hang_unloads.set()
    await world.serves({"b": "B"})


async def test_a_hanging_unload_of_a_model_added_again(world: World) -> None:
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    world.server.hang_unloads = asyncio.Event()
    world.hurry(unload=0.3)
    world.config.write({})
    await until(lambda: world.server.unloads["a"])
    world.config.write({"a": "s3://bucket/a"})
    await until(lambda: world.states().get("a") is State.LOADED)
    world.server.hang_unloads.set()
    await world.serves({"a": "A"})


# 14. Two pullers, and the end of one (see also the kill -9 test, which uses processes).


async def test_no_two_loads_of_one_model_are_in_flight(world: World) -> None:
    world.server.load_seconds = 0.1
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"m": "s3://bucket/a"})
    world.start()
    await until(lambda: world.server.in_flight["m"])
    world.config.write({"m": "s3://bucket/b"})
    await world.serves({"m": "B"})
    assert world.server.overlaps == 0


@pytest.mark.parametrize("reload", [False, True])
async def test_a_load_that_outlives_a_crash_of_the_puller_is_waited_for(world: World, reload: bool) -> None:
    world.put("a", "A"), world.put("b", "B")
    if reload:
        world.config.write({"m": "s3://bucket/b"})
        world.start()
        await world.serves({"m": "B"})
    before = world.server.loads["m"]
    world.server.load_seconds = 0.5
    world.config.write({"m": "s3://bucket/a"})
    if not reload:
        world.start()
    await until(lambda: world.server.in_flight["m"])
    await world.kill()
    puller = world.start()
    if reload:  # nothing shows when the load ends
        puller.actions.load_wait = 1.0
    else:
        puller.actions.load_wait = 60.0
    await world.serves({"m": "A"})
    assert world.server.overlaps == 0
    assert world.server.loads["m"] - before == (2 if reload else 1)


async def test_a_load_that_timed_out_is_not_begun_again_while_it_goes_on(world: World) -> None:
    world.set(timeouts=replace(world.options.timeouts, load=0.2))
    world.server.load_seconds = 0.8
    world.config.write({"m": world.put("m", "M")})
    world.start()
    await world.serves({"m": "M"})
    assert world.server.loads == {"m": 1}


async def test_a_second_puller_on_the_same_directory_waits(world: World) -> None:
    world.config.write({"a": world.put("a", "A")})
    first = world.start()
    await world.serves({"a": "A"})
    task, world._task = world._task, None
    second = world.start()
    await until(lambda: second.status.model_dir_error)
    first.stop()
    assert task is not None
    await task
    await first.actions.server.close()
    await world.serves({"a": "A"})


async def test_stopping_ends_downloads_and_lets_a_load_finish(world: World) -> None:
    world.server.load_seconds = 0.3
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await until(lambda: world.server.in_flight["a"])
    world.store.gate = asyncio.Event()
    world.config.write({"a": "s3://bucket/a", "b": world.put("b", "B")})
    await until(lambda: world.store.waiting)
    await world.stop()
    assert world.server.serving == {"a": b"A"}
    assert world.leftovers() == []
    status = json.loads((world.model_dir / ".status.json").read_text())
    assert {entry["name"]: entry["state"] for entry in status["models"]}["a"] == "Loaded"


# The config itself.


async def test_a_bad_entry_is_reported_and_served_models_stay(world: World) -> None:
    world.put("a", "A"), world.put("b", "B")
    world.config.write({"a": "s3://bucket/a"})
    world.start()
    await world.serves({"a": "A"})
    world.config.write(
        {"a": {"storageUri": "s3://bucket/b", "memory": "-1"}, "b": "s3://bucket/b", "c": "ftp://x/y"}
    )
    await until(lambda: world.server.serving == {"a": b"A", "b": b"B"})
    assert world.entry("a")["state"] == "Loaded"
    assert "models.json[0].modelSpec.memory" in world.entry("a")["message"]
    assert world.entry("c")["state"] == "Failed"
    assert world.entry("c")["reason"] == "InvalidSpec"


async def test_a_broken_list_keeps_the_last_good_one_also_over_a_restart(world: World) -> None:
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    world.config.write('[{"modelName": "a", ')
    await until(lambda: world.puller and world.puller.status.document({}, {})["errors"])
    assert world.server.serving == {"a": b"A"}
    await world.stop()
    await world.server.restart()
    world.start()
    await until(lambda: world.server.serving == {"a": b"A"})
    world.config.write({})
    await world.serves({})


async def test_a_config_directory_that_appears_late(world: World) -> None:
    world.start()
    await until(lambda: world.puller and world.puller.status.config_error)
    assert not world.ready()
    world.config.write({"a": world.put("a", "A")})
    await world.serves({"a": "A"})


async def test_what_changes_on_disk_behind_our_back_is_mended(world: World) -> None:
    world.set(resync=0.3)
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await world.serves({"a": "A"})
    shutil.rmtree(world.model_dir / "a")
    await until(lambda: world.store.gets["a/model.bin"] == 2)
    await world.serves({"a": "A"})


@pytest.mark.parametrize("what", [".", ".puller"])
async def test_a_model_directory_that_is_emptied_behind_our_back_is_filled_again(
    world: World, what: str
) -> None:
    world.set(resync=0.3)
    world.config.write({"a": world.put("a", "A"), "b": world.put("b", "B")})
    world.start()
    await world.serves({"a": "A", "b": "B"})
    shutil.rmtree(world.model_dir / what)
    world.config.write({"a": world.put("a2", "A2")})
    await world.serves({"a": "A2"})


async def test_local_models_are_linked_or_copied(world: World, tmp_path: Path) -> None:
    for where in (tmp_path / "local" / "m", world.options.pvc_dir / "claim" / "n"):
        (where / "sub").mkdir(parents=True)
        (where / "sub" / "model.bin").write_text(where.name)
    world.config.write({"m": f"file://{tmp_path}/local/m", "n": "pvc://claim/n", "o": "pvc://claim/none"})
    world.start()
    await until(lambda: world.server.serving == {"m": b"m", "n": b"n"})
    assert (world.model_dir / "n" / "sub" / "model.bin").read_text() == "n"
    await until(lambda: world.entry("o").get("reason") == "NotFound")


async def test_higher_priorities_come_first(world: World) -> None:
    world.set(num_workers=1, load_workers=1)
    world.store.gate = asyncio.Event()
    models = {
        name: {"storageUri": world.put(name, name), "priority": rank} for rank, name in enumerate("abcde")
    }
    world.config.write(models)
    world.start()
    await until(lambda: world.store.waiting)
    world.store.gate.set()
    await until(lambda: len(world.server.serving) == 5)
    assert [name for _, name in world.server.log] == ["e", "d", "c", "b", "a"]


async def test_tensorflow_serving_keeps_what_it_serves_when_the_puller_restarts(world: World) -> None:
    """The file lists the whole set from the first write on, so a restart takes nothing away."""
    serving = TensorFlowServing(world.model_dir)
    world.server.other = serving.answer
    world.set(server="tfserving")
    for name in "abc":
        world.put(name, name, "1/saved_model.pb")
    world.config.write({"a": "s3://bucket/a", "b": "s3://bucket/b"})
    world.start()
    await until(lambda: serving.served == {"a": "a", "b": "b"})
    await until(world.ready)
    await world.stop()
    del serving.history[:]
    world.config.write({"b": "s3://bucket/b", "c": "s3://bucket/c"})
    world.start()
    await until(lambda: serving.served == {"b": "b", "c": "c"})
    await until(lambda: world.directories() == ["b", "c", "models.config"])
    assert all("b" in names for names in serving.history), serving.history
    world.put("b2", "b new", "1/saved_model.pb")
    world.config.write({"b": "s3://bucket/b2", "c": "s3://bucket/c"})
    await until(lambda: serving.served == {"b": "b new", "c": "c"})
