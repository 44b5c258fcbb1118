"""Situations in which models of other pullers were missing, stale or incomplete.

A real store and a real model server (over HTTP, in this process) fail on demand; the reconciler is the
real one, with short times.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web

from puller.plan import ModelState
from puller.reasons import StatusReason
from puller.reconcile import Timers
from puller.servers.base import ServerHealth
from puller.store import ModelStore
from tests.puller.conftest import World
from tests.puller.fakes import logged, until
from tests.puller.servers.test_servers import TensorFlowServing
from tests.puller.storage.fetching import zipped

MB = 1 << 20


# 1. Changes while the puller was down.


async def test_changes_while_the_puller_was_down(world: World) -> None:
    await world.serve(removed="R", changed="1", kept="K")
    await world.stop()
    world.config.write({"changed": world.put("new", "2"), "kept": "s3://bucket/kept"})
    world.start()
    await world.serves({"changed": "2", "kept": "K"})
    assert world.server.files_at_unload == {"removed": True}, "unloaded, then deleted"
    assert set(world.store.gets.values()) == {1}
    assert world.server.loads == {"removed": 1, "changed": 2, "kept": 1}


async def test_a_model_removed_while_puller_and_server_were_down_is_not_served_again(world: World) -> None:
    await world.serve(a="A")
    await world.stop()
    await world.server.stop()
    world.config.write({})
    world.start()
    await until(lambda: not (world.model_dir / "a").exists())
    await world.server.start()  # it still has `a`: it had read it before its files were deleted
    await world.serves({})


# 2. Many models at the start.


E2E = pytest.mark.e2e


@pytest.mark.parametrize(
    "count",
    [
        101,
        pytest.param(1000, marks=E2E, id="1000"),
        pytest.param(5000, marks=[E2E, pytest.mark.scheduled], id="5000"),
    ],
)
async def test_many_models_at_the_start(world: World, count: int) -> None:
    world.set(num_workers=8, resync=600.0, server_poll=1.0)
    world.config.write({f"m{index}": world.put(f"m{index}", str(index)) for index in range(count)})
    world.start()
    await until(lambda: len(world.server.serving) == count, seconds=240)
    await until(world.ready)
    assert world.server.serving == {f"m{index}": str(index).encode() for index in range(count)}
    assert set(world.store.gets.values()) == {1}
    assert set(world.server.loads.values()) == {1}


# 3, 4. Edits.


async def test_only_changed_models_are_loaded_again(world: World) -> None:
    await world.serve(m="A")
    b = world.put("b", "B")
    world.config.write({"m": b})
    await world.serves({"m": "B"})
    world.config.write(
        {"m": {"storageUri": b, "memory": "2Mi", "priority": 7}, "other": world.put("other", "O")}
    )
    await world.serves({"m": "B", "other": "O"})
    assert world.server.loads["m"] == 2
    assert world.store.gets["b/model.bin"] == 1
    await world.serve(m="A")
    assert world.server.loads["m"] == 3


@pytest.mark.parametrize("moment", ["download", "load"])
async def test_an_edit_that_is_reverted_in_the_middle_of_a_step(world: World, moment: str) -> None:
    await world.serve(m="A")
    held = asyncio.Event()
    if moment == "download":
        world.store.gate = held
    else:
        world.server.hang_loads = held
    world.config.write({"m": world.put("b", "B")})
    await until(lambda: world.store.waiting or world.server.in_flight["m"])
    world.config.write({"m": "s3://bucket/m"})
    await until(lambda: world.desired("m") == "s3://bucket/m")
    assert world.server.serving == {"m": b"A"}
    held.set()
    await world.serves({"m": "A"})
    assert world.server.overlaps == 0


async def test_ten_edits_during_one_download_cost_one_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puller.plan.SUPERSEDED_GRACE", 600.0)
    uris = [world.put(f"v{index}", f"version {index}") for index in range(11)]
    world.store.gate = asyncio.Event()
    world.config.write({"m": uris[0]})
    world.start()
    await until(lambda: world.store.waiting)
    for uri in uris[1:]:
        world.config.write({"m": uri})
        await until(partial(lambda uri: world.desired("m") == uri, uri))
    world.store.gate.set()
    await world.serves({"m": "version 10"})
    assert world.store.gets == {"v0/model.bin": 1, "v10/model.bin": 1}
    assert world.server.loads == {"m": 1}


async def test_an_outdated_download_is_cancelled_after_its_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puller.plan.SUPERSEDED_GRACE", 0.2)
    world.store.gate = asyncio.Event()
    world.config.write({"m": world.put("old", "old")})
    world.start()
    await until(lambda: world.store.gets["old/model.bin"])
    world.config.write({"m": world.put("new", "new")})
    await until(lambda: world.store.gets["new/model.bin"])
    world.store.gate.set()
    await world.serves({"m": "new"})


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_reverted_edit_leaves_no_files(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("puller.plan.SUPERSEDED_GRACE", 0.05)
    world.set(limits=replace(world.options.limits, retry_timeout=0.2))
    await world.serve(m="A")
    if how == "cancelled":
        world.store.gate = asyncio.Event()
    else:
        world.store.cuts, world.store.cut_after = 10**6, 1000
    world.config.write({"m": world.put("b", b"B" * MB)})
    await until(lambda: world.store.waiting or world.entry("m")["state"] == "Failed")
    assert world.leftovers() == ["new/m"]
    world.config.write({"m": "s3://bucket/m"})
    assert world.puller is not None
    actions = world.puller.actions
    await until(lambda: actions.fetches == {})
    await world.serves({"m": "A"})
    assert world.leftovers() == []
    assert actions.storage.budget.used == 1


async def test_the_old_version_serves_until_the_new_one_is_on_disk(world: World) -> None:
    await world.serve(m="A")
    world.store.gate = asyncio.Event()
    world.config.write({"m": world.put("b", "B")})
    await until(lambda: world.store.waiting)
    assert world.on_disk("m") == b"A"
    assert world.server.serving == {"m": b"A"}
    assert world.ready(), "the pod stays ready during an update"
    world.store.gate.set()
    await world.serves({"m": "B"})
    assert world.server.unloads == {}
    assert world.leftovers() == []


async def test_an_edit_during_the_startup_download_is_not_lost(world: World) -> None:
    world.store.gate = asyncio.Event()
    world.config.write({"a": world.put("a", "A"), "b": world.put("b", "B")})
    world.start()
    await until(lambda: world.store.waiting == 2)
    c = world.put("c", "C")
    world.config.write({"b": c, "c": c})
    await until(lambda: world.store.gets["c/model.bin"])
    world.store.gate.set()
    await world.serves({"b": "C", "c": "C"})
    assert world.leftovers() == []


# 5, 7. The model server.


async def test_the_server_starts_after_the_models_are_on_disk(world: World) -> None:
    await world.server.stop()
    world.config.write({name: world.put(name, name) for name in "abc"})
    world.start()
    await until(lambda: [world.on_disk(name) for name in "abc"] == [b"a", b"b", b"c"])
    await world.reports("a", "WaitingForServer")
    assert not world.ready()
    assert world.server.loads == {}
    await world.server.start()
    await world.serves({"a": "a", "b": "b", "c": "c"})
    assert set(world.server.loads.values()) == {1}


@pytest.mark.parametrize("how", ["at once", "after a while", "with the puller"])
async def test_a_restarted_server_gets_all_models_without_an_edit(world: World, how: str) -> None:
    await world.serve(a="a", b="b", c="c")
    if how == "with the puller":
        await world.stop()
    if how == "after a while":
        await world.server.stop()
        world.server.serving.clear()
        await until(lambda: not world.ready())
        await world.server.start()
    else:
        await world.server.restart()
    if how == "with the puller":
        world.start()
    await world.serves({"a": "a", "b": "b", "c": "c"})
    await until(world.ready)
    assert set(world.server.loads.values()) == {2}
    assert set(world.store.gets.values()) == {1}


@pytest.mark.parametrize("how", ["server", "both"])
async def test_a_restarted_server_gets_the_present_version_while_the_new_one_cannot_be_downloaded(
    world: World, how: str
) -> None:
    await world.serve(a="A", b="B")
    world.config.write({"a": "s3://bucket/missing", "b": "s3://bucket/b"})
    await world.reports("a", "NotFound")
    if how == "both":
        await world.stop()
    await world.server.restart()
    if how == "both":
        world.start()
    await until(lambda: world.server.serving == {"a": b"A", "b": b"B"})
    await until(world.ready)
    assert (await world.reports("a", "NotFound"))["state"] == "Failed"
    world.config.write({"a": world.put("a2", "A2"), "b": "s3://bucket/b"})
    await world.serves({"a": "A2", "b": "B"})


async def test_a_present_version_that_is_refused_is_tried_again_after_a_pause(world: World) -> None:
    world.set(backoff_max=0.2)
    await world.serve(a="A")
    world.config.write({"a": "s3://bucket/missing"})
    await world.reports("a", "NotFound")
    world.server.refuse_loads["a"] = 2
    began = time.monotonic()
    await world.server.restart()
    await until(lambda: world.server.serving == {"a": b"A"})
    assert world.server.loads["a"] == 4
    assert time.monotonic() - began >= 0.4
    await world.reports("a", "NotFound")


async def test_a_refused_load_is_retried(world: World) -> None:
    world.config.write({"a": world.put("a", "A"), "b": world.put("b", "B")})
    world.server.refuse_loads["a"] = 3
    world.start()
    assert "cannot load" in (await world.reports("a", "LoadFailed"))["message"]
    await world.serves({"a": "A", "b": "B"})
    assert world.server.loads == {"a": 4, "b": 1}


async def test_a_refused_reload_is_not_taken_for_the_new_version(world: World) -> None:
    await world.serve(m="A")
    world.server.refuse_loads["m"] = 2
    world.config.write({"m": world.put("b", "B")})
    await until(lambda: world.entry("m")["state"] == "Failed")
    assert world.server.serving == {"m": b"A"}
    await world.serves({"m": "B"})


async def test_a_model_that_the_puller_did_not_load_is_not_taken_for_the_listed_one(world: World) -> None:
    world.server.serving["m"] = b"another"
    world.server.refuse_loads["m"] = 2
    await world.serve(m="M")
    assert world.server.loads["m"] == 3


async def test_a_server_that_hangs_gets_no_loads_until_it_responds(world: World) -> None:
    await world.serve(a="A")
    world.server.hung = asyncio.Event()
    world.hurry(probe=0.3)
    await until(lambda: world.puller and world.puller.health is ServerHealth.HUNG)
    world.config.write({"a": "s3://bucket/a", "b": world.put("b", "B")})
    await until(lambda: world.on_disk("b") == b"B")
    assert dict(world.server.loads) == {"a": 1}
    world.server.hung.set()
    world.server.hung = None
    await world.serves({"a": "A", "b": "B"})


@pytest.mark.parametrize("silent", ["server", "model"])
async def test_a_load_whose_response_is_lost_is_not_repeated(world: World, silent: str) -> None:
    """A busy server responds late. It has loaded the model by then."""
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
        await until(
            lambda: puller.health is ServerHealth.HUNG and bool(model.failure) and not model.in_flight
        )
    else:
        await until(lambda: model.failure is not None and model.failure.attempts > 2)
    assert model.failure is not None
    assert model.failure.reason is StatusReason.SERVER_TIMEOUT
    held.set()
    world.server.hung = world.server.hang_ready = None
    await world.serves({"a": "A"})
    assert world.server.loads == {"a": 1}


# 6. The store fails.


async def test_a_store_that_responds_503_for_a_while(world: World) -> None:
    world.store.refuse = 12
    world.set(limits=replace(world.options.limits, retry_timeout=0.2))
    world.config.write({"m": world.put("m", "M")})
    world.start()
    entry = await world.reports("m", "StorageUnavailable")
    assert "503" in entry["message"]
    assert entry["state"] == "Failed"
    assert entry["attempts"] >= 1
    await world.serves({"m": "M"})
    assert world.entry("m")["attempts"] == 0


async def test_a_broken_download_resumes(world: World) -> None:
    world.store.cuts, world.store.cut_after = 5, MB // 2
    await world.serve(m=os.urandom(6 * MB))
    assert world.store.cuts == 0
    assert world.store.bytes_sent < 7.5 * MB, "only bytes on the wire are sent again"


async def test_an_object_replaced_during_its_download_is_never_mixed(world: World) -> None:
    world.config.write({"m": world.put("m", os.urandom(4 * MB))})
    world.store.cuts, world.store.cut_after = 4, MB // 4
    world.start()
    await until(lambda: world.store.cuts < 4)
    new = os.urandom(4 * MB)
    world.put("m", new)
    await world.serves({"m": new})


# 8, 9. Files that a crash leaves on disk.


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("marker", [None, "", "{", "[]", '{"storageUri": 7}'], ids=repr)
async def test_an_incomplete_directory_is_removed(world: World, listed: bool, marker: str | None) -> None:
    incomplete = world.model_dir / "m"
    incomplete.mkdir(parents=True)
    (incomplete / "model.bin").write_text("hal")
    if marker is not None:
        (incomplete / "SUCCESS.abc").write_text(marker)
    await world.serve(**({"m": "whole"} if listed else {}))


async def test_kserves_own_marker_counts(world: World) -> None:
    directory = world.model_dir / "m"
    directory.mkdir(parents=True)
    (directory / "model.bin").write_text("from before")
    spec = {"storageUri": "s3://bucket/m", "framework": "sklearn", "memory": "1Mi"}
    (directory / "SUCCESS.0a1b2c").write_text(json.dumps(spec))
    world.put("m", "from the store")
    world.config.write({"m": spec})
    world.start()
    await world.serves({"m": "from before"})
    assert world.store.requests == []


async def test_a_crash_between_swap_and_load_does_not_leave_the_old_version_serving(world: World) -> None:
    await world.serve(m="A")
    world.server.hang_loads = asyncio.Event()
    world.config.write({"m": world.put("b", "B")})
    await until(lambda: world.server.in_flight["m"])
    await world.kill()
    assert world.on_disk("m") == b"B"
    world.server.refuse_loads["m"] = 1  # the load in flight fails
    world.server.hang_loads.set()
    await until(lambda: not world.server.in_flight["m"])
    assert world.server.serving == {"m": b"A"}
    world.start()
    await world.serves({"m": "B"})


async def test_leftovers_of_a_crash_are_deleted_and_other_files_stay(world: World) -> None:
    for name in (".puller/new/m/tree", ".puller/old/tmp1/tree", "lost+found"):
        (world.model_dir / name).mkdir(parents=True)
        (world.model_dir / name / "model.bin").write_text("half")
    (world.model_dir / "notes.txt").write_text("mine")
    world.config.write({"a": world.put("a", "A")})
    world.start()
    await until(lambda: world.server.serving == {"a": b"A"})
    assert world.leftovers() == []
    assert (world.model_dir / "lost+found" / "model.bin").exists()
    assert (world.model_dir / "notes.txt").read_text() == "mine"


# 10. The model directory.


async def test_an_unusable_model_directory_is_reported_and_waited_for(world: World) -> None:
    blocked = world.model_dir
    blocked.write_text("a file")
    world.set(model_dir=blocked / "deep" / "er")
    world.server.model_dir = world.model_dir
    world.config.write({"a": world.put("a", "A")})
    puller = world.start()
    await until(lambda: puller.status.model_dir_error)
    assert puller.status.healthy()[0]
    assert not world.ready()
    blocked.unlink()
    await world.serves({"a": "A"})


async def test_what_is_complete_on_a_read_only_directory_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.serve(kept="K", unlisted="U")
    await world.stop()
    await world.server.stop()
    await world.server.start()
    refusal = OSError(errno.EROFS, "Read-only file system", str(world.model_dir / ".puller"))
    monkeypatch.setattr(ModelStore, "open", Mock(side_effect=refusal))
    monkeypatch.setattr("puller.store.write_file", Mock(side_effect=refusal))
    world.config.write({"kept": "s3://bucket/kept", "new": world.put("new", "N")})
    puller = world.start()
    await until(lambda: world.server.serving == {"kept": b"K"})
    entry = await world.reports("new", "ModelDirUnusable")
    assert entry["state"] == "Failed"
    assert "Read-only file system" in entry["message"]
    await until(lambda: puller.models.keys() == {"kept", "new"})
    assert world.on_disk("unlisted") == b"U"
    assert puller.health is ServerHealth.UP
    assert puller.status.healthy()[0]
    assert not world.ready()
    puller.status._changed = True
    await until(lambda: puller.status.metrics.ready is False and puller.status.metrics.refused == 0)

    world.config.write({"kept": "s3://bucket/kept"})
    await until(world.ready)
    world.config.write({"kept": "s3://bucket/kept", "new": "s3://bucket/new"})
    await world.reports("new", "ModelDirUnusable")
    loads = world.server.loads["kept"]
    monkeypatch.undo()
    await world.serves({"kept": "K", "new": "N"})
    assert world.server.loads["kept"] == loads, "not again when the directory became writable"


async def test_every_model_says_that_the_directory_is_unusable(world: World) -> None:
    world.model_dir.write_text("a file")
    world.config.write({name: world.put(name, name) for name in "abc"})
    world.start()
    for name in "abc":
        await world.reports(name, "ModelDirUnusable")
    assert world.store.gets == {}


async def test_a_full_disk_fails_one_model_until_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    free = {"bytes": MB // 2}
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free["bytes"]))
    world.config.write({"big": world.put("big", b"x" * MB), "small": world.put("small", "s")})
    world.start()
    await until(lambda: world.server.serving == {"small": b"s"})
    await world.reports("big", "DiskFull")
    assert world.store.gets["big/model.bin"] == 0
    free["bytes"] = 10 * MB
    await world.serves({"big": b"x" * MB, "small": "s"})


async def test_a_write_that_fails_half_way_leaves_no_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 2

    def failing(descriptor: int, data: bytes, offset: int) -> int:
        if failures:
            raise failures.pop()
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr("os.pwrite", failing)
    world.config.write({"m": world.put("m", b"x" * MB)})
    world.start()
    await world.reports("m", "DiskFull")
    assert world.on_disk("m") is None
    await world.serves({"m": b"x" * MB})


async def test_max_disk_refuses_a_model_until_there_is_room(world: World) -> None:
    world.set(max_disk=3 * MB)
    await world.serve(a=b"a" * 2 * MB)
    b = world.put("b", b"b" * 2 * MB)
    world.config.write({"a": "s3://bucket/a", "b": b})
    entry = await world.reports("b", "OverMaxDisk")
    assert "2.0 MiB do not fit: models take 2.0 MiB of 3.0 MiB" in entry["message"]
    world.config.write({"b": b})
    await world.serves({"b": b"b" * 2 * MB})


async def two_for_the_memory_of_one(world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of the models `a`, which is served, and `b`, for which no memory is left."""
    world.set(max_memory=3 * MB)
    a = {"storageUri": world.put("a", "A"), "memory": "2Mi", "priority": 1}
    b = {"storageUri": world.put("b", "B"), "memory": "2Mi"}
    world.config.write({"a": a})
    world.start()
    await world.serves({"a": "A"})
    world.config.write({"a": a, "b": b})
    return a, b


async def test_max_memory_refuses_a_load_until_another_model_is_removed(world: World) -> None:
    _, b = await two_for_the_memory_of_one(world)
    assert (await world.reports("b", "OverMaxMemory"))["state"] == "Failed"
    assert world.server.loads["b"] == 0
    assert world.on_disk("b") == b"B"
    world.config.write({"b": b})
    await world.serves({"b": "B"})


async def test_a_model_removed_while_the_server_refuses_all_requests_is_unloaded_later(world: World) -> None:
    await world.serve(a="A", b="B")
    really = world.server.handle

    async def busy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    world.server.handle = busy  # type: ignore[method-assign, assignment]
    await world.server.stop()
    await world.server.start()  # it has its models, and is overloaded
    world.config.write({"b": "s3://bucket/b"})
    await world.reports("a", "UnloadFailed")
    assert world.on_disk("a") == b"A"
    world.server.handle = really  # type: ignore[method-assign]
    await world.server.stop()
    await world.server.start()
    await world.serves({"b": "B"})


async def test_less_memory_for_one_model_makes_room_for_another(world: World) -> None:
    a, b = await two_for_the_memory_of_one(world)
    await world.reports("b", "OverMaxMemory")
    world.config.write({"a": a | {"memory": "1Mi"}, "b": b})
    await world.serves({"a": "A", "b": "B"})


async def test_models_that_fail_for_long_do_not_take_the_slots_of_others(world: World) -> None:
    """Their pauses are shorter than their attempts, and their names and priorities come first."""
    world.set(load_workers=1, backoff_max=0.05)
    bad = [f"bad{number}" for number in range(4)]
    world.server.refuse_loads = dict.fromkeys(bad, 10**6)
    world.server.load_seconds = 0.2
    spec = {"priority": 5}
    world.config.write(
        {name: spec | {"storageUri": world.put(name, name)} for name in bad}
        | {"good": world.put("good", "G")}
    )
    world.start()
    await until(lambda: "good" in world.server.serving)
    loads = {name: world.server.loads[name] for name in bad}
    await until(lambda: all(world.server.loads[name] > loads[name] + 1 for name in bad), what="retried")


@pytest.mark.parametrize("name", ["n" * 253, "n" * 248])
@pytest.mark.parametrize("file", ["model.bin", "model.zip"])
async def test_a_name_may_have_253_characters(world: World, name: str, file: str) -> None:
    world.put("m", zipped({"model.bin": b"M"}) if file.endswith("zip") else "M", file)
    world.config.write({name: f"s3://bucket/m/{file}"})
    world.start()
    await world.serves({name: "M"})
    world.config.write({})
    await world.serves({})
    assert world.leftovers() == []


async def test_a_download_is_tried_again_although_the_present_version_does_not_fit(world: World) -> None:
    world.set(max_memory=3 * MB, resync=3600)
    await world.serve(m="1")
    world.config.write({"m": {"storageUri": "s3://bucket/update", "memory": "4Mi"}})
    await world.reports("m", "NotFound")
    assert world.puller is not None
    model = world.puller.models["m"]
    del world.server.serving["m"]
    for _ in range(2):  # the first time a timer of the download is left
        tried = model.fallback_at
        await until(lambda: model.fallback_at > tried)  # noqa: B023
    world.put("update", "2")
    await until(lambda: world.on_disk("m") == b"2")
    await world.reports("m", "OverMaxMemory")


@pytest.mark.parametrize("waits", ["for a time", "for the slot"])
async def test_a_download_is_tried_again_while_the_present_version_waits_for_a_slot(
    world: World, waits: str
) -> None:
    world.set(load_workers=1, resync=3600)
    await world.serve(m="1")
    world.server.hang_loads = asyncio.Event()
    world.config.write({"m": "s3://bucket/update", "a": world.put("a", "A")})
    await world.reports("m", "NotFound")
    assert world.puller is not None
    models = world.puller.models
    await until(lambda: models["a"].loading)
    del world.server.serving["m"]
    await until(lambda: not models["m"].available)
    failure = models["m"].failure
    assert failure is not None
    if waits == "for the slot":
        world.puller._timers = Timers()  # as if none had been armed
        await until(lambda: time.monotonic() > failure.retry_at)
        world.put("update", "2")
    else:
        await until(lambda: models["m"].failure not in (None, failure))
        world.put("update", "2")
        await until(lambda: world.on_disk("m") == b"2")
    world.server.hang_loads.set()
    await world.serves({"m": "2", "a": "A"})


async def test_models_over_the_memory_limit_are_logged_once(world: World) -> None:
    """Each edit retries them; the same result is not logged again."""
    world.set(max_memory=2 * MB, load_workers=8)
    models: dict[str, Any] = {name: world.put(name, name) for name in "abcdef"}  # a mebibyte each
    world.config.write(models)
    with logged() as lines:
        world.start()

        def settled() -> bool:
            states = list(world.states().values())
            failed = [line for line in lines if line.get("state") == ModelState.FAILED.value]
            return states.count(ModelState.LOADED) == 2 and len(failed) == 4

        await until(settled)
        lines.clear()
        world.config.write(models | {"bad": "ftp://x"})
        await until(lambda: world.entry("bad"))
        last = max(name for name in "abcdef" if world.entry(name)["state"] == "Loaded")
        world.config.write({name: uri for name, uri in models.items() if name != last})
        await until(lambda: world.puller and last not in world.puller.models)
        await until(lambda: list(world.states().values()).count(ModelState.LOADED) == 2)
    assert len(world.server.serving) == 2
    changed = {line["model"] for line in lines if line["event"] == "model"}
    assert len(changed) == 2, f"{last} was removed, and one was loaded: {changed}"


# 12. The content of a URI.


async def test_a_single_object_is_a_model_and_siblings_are_not_part_of_it(world: World) -> None:
    world.put("m10", "ten")
    world.store.objects |= {"m1.txt": b"text", "solo.joblib": b"solo"}
    world.config.write({"m1": world.put("m1", "one"), "solo": "s3://bucket/solo.joblib"})
    world.start()
    await world.serves({"m1": "one", "solo": "solo"})
    assert (world.model_dir / "solo" / "solo.joblib").read_bytes() == b"solo"
    assert set(world.store.gets) == {"m1/model.bin", "solo.joblib"}


@pytest.mark.parametrize("key", ["m/../../evil", "m//evil", "m/a\x01b", "m/" + "x" * 300])
async def test_hostile_keys_are_refused(world: World, key: str) -> None:
    world.store.objects[key] = b"evil"
    world.config.write({"m": world.put("m", "good"), "other": world.put("other", "O")})
    world.start()
    assert (await world.reports("m", "HostilePath"))["state"] == "Failed"
    await until(lambda: world.server.serving == {"other": b"O"})
    assert not (world.model_dir / "m").exists()
    assert not list(world.model_dir.parent.rglob("evil"))


async def test_an_empty_source_is_reported(world: World) -> None:
    world.config.write({"m": "s3://bucket/nowhere"})
    world.start()
    await world.reports("m", "NotFound")
    world.put("nowhere", "now there")
    await world.serves({"m": "now there"})


# 13. Models that are removed in the middle of a step.


async def test_a_model_removed_while_it_downloads_leaves_no_files(world: World) -> None:
    world.store.gate = asyncio.Event()
    world.config.write({"m": world.put("m", "M")})
    world.start()
    await until(lambda: world.store.waiting)
    world.config.write({})
    await until(lambda: world.puller and not world.puller.models)
    assert world.leftovers() == []
    world.store.gate.set()
    await world.serves({})


@pytest.mark.parametrize("changed", [True, False])
async def test_a_model_removed_and_added_again_during_its_unload(world: World, changed: bool) -> None:
    await world.serve(m="A")
    world.server.hang_unloads = asyncio.Event()
    if not changed:
        world.hurry(unload=0.3)
    world.config.write({})
    await until(lambda: world.server.unloads["m"])
    world.config.write({"m": world.put("b", "B") if changed else "s3://bucket/m"})
    if changed:
        await until(lambda: world.desired("m"))
    else:
        await until(lambda: world.states().get("m") is ModelState.LOADED)
    world.server.hang_unloads.set()
    await world.serves({"m": "B" if changed else "A"})


async def test_an_unload_that_hangs_delays_no_other_model_and_keeps_the_files(world: World) -> None:
    await world.serve(a="A")
    world.server.hang_unloads = asyncio.Event()
    world.hurry(unload=0.3)
    world.config.write({"b": world.put("b", "B")})
    await until(lambda: world.server.serving.get("b") == b"B")
    assert (await world.reports("a", "ServerTimeout"))["state"] == "Failed"
    assert world.on_disk("a") == b"A", "files are deleted after the unload"
    world.server.hang_unloads.set()
    await world.serves({"b": "B"})


# 14. Two pullers, and crashes (see also the kill -9 test, which uses processes).


@pytest.mark.parametrize("reload", [False, True])
async def test_a_load_that_outlives_a_crash_of_the_puller_is_waited_for(world: World, reload: bool) -> None:
    if reload:
        await world.serve(m="B")
    before = world.server.loads["m"]
    world.server.load_seconds = 0.5
    world.config.write({"m": world.put("a", "A")})
    if not reload:
        world.start()
    await until(lambda: world.server.in_flight["m"])
    await world.kill()
    puller = world.start()
    puller.actions.load_wait = 1.0 if reload else 60.0  # the end of a reload cannot be observed
    await world.serves({"m": "A"})
    assert world.server.overlaps == 0
    assert world.server.loads["m"] - before == (2 if reload else 1)


async def test_a_load_that_timed_out_is_not_repeated_while_it_continues(world: World) -> None:
    world.set(timeouts=replace(world.options.timeouts, load=0.2))
    world.server.load_seconds = 0.8
    await world.serve(m="M")
    assert world.server.loads == {"m": 1}


async def test_a_second_puller_on_the_same_directory_waits(world: World) -> None:
    await world.serve(a="A")
    first, task, world._task = world.puller, world._task, None
    world.set(resync=0.05)
    second = world.start()
    await until(lambda: second.status.model_dir_error)
    for _ in range(30):  # however often it compares its models with the disk
        await asyncio.sleep(0.02)
        assert world.states() in ({}, {"a": ModelState.FAILED})
        assert not world.ready()
    assert first is not None
    assert task is not None
    first.stop()
    await task
    await first.actions.server.close()
    await world.serves({"a": "A"})


async def test_stopping_cancels_downloads_and_lets_a_load_finish(world: World) -> None:
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


# The config.


async def test_a_bad_entry_is_reported_and_served_models_stay(world: World) -> None:
    await world.serve(a="A")
    b = world.put("b", "B")
    world.config.write({"a": {"storageUri": b, "memory": "-1"}, "b": b, "c": "ftp://x/y"})
    await until(lambda: world.server.serving == {"a": b"A", "b": b"B"})
    assert world.entry("a")["state"] == "Loaded"
    assert "models.json[0].modelSpec.memory" in world.entry("a")["message"]
    assert (world.entry("c")["state"], world.entry("c")["reason"]) == ("Failed", "InvalidSpec")


async def test_a_broken_list_keeps_the_last_good_one_also_after_a_restart(world: World) -> None:
    await world.serve(a="A")
    world.config.write('[{"modelName": "a", ')
    await until(lambda: world.puller and world.puller.status.document({}, {})["errors"])
    assert world.server.serving == {"a": b"A"}
    await world.stop()
    await world.server.restart()
    world.start()
    await until(lambda: world.server.serving == {"a": b"A"})
    world.config.write({})
    await world.serves({})


async def test_a_config_directory_that_is_created_late(world: World) -> None:
    world.start()
    await until(lambda: world.puller and world.puller.status.config_error)
    assert not world.ready()
    await world.serve(a="A")


@pytest.mark.parametrize("deleted", ["a", ".", ".puller"])
async def test_files_that_somebody_else_deletes_are_downloaded_again(world: World, deleted: str) -> None:
    world.set(resync=0.3)
    await world.serve(a="A", b="B")
    shutil.rmtree(world.model_dir / deleted)
    if deleted == "a":
        await until(lambda: world.store.gets["a/model.bin"] == 2)
        await world.serves({"a": "A", "b": "B"})
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
    await world.reports("o", "NotFound")


async def test_higher_priorities_come_first(world: World) -> None:
    world.set(num_workers=1, load_workers=1)
    world.store.gate = asyncio.Event()
    world.config.write(
        {name: {"storageUri": world.put(name, name), "priority": rank} for rank, name in enumerate("abcde")}
    )
    world.start()
    await until(lambda: world.store.waiting)
    world.store.gate.set()
    await until(lambda: len(world.server.serving) == 5)
    assert [name for _, name in world.server.log] == ["e", "d", "c", "b", "a"]


async def test_tensorflow_serving_keeps_its_models_when_the_puller_restarts(world: World) -> None:
    """The file lists the whole set from the first write on."""
    serving = TensorFlowServing(world.model_dir)
    world.server.other = serving.answer
    world.set(server="tfserving")
    a, b, c, new = (world.put(name, name, "1/saved_model.pb") for name in ("a", "b", "c", "new"))
    world.config.write({"a": a, "b": b})
    world.start()
    await until(lambda: serving.served == {"a": "a", "b": "b"})
    await until(world.ready)
    await world.stop()
    del serving.history[:]
    world.config.write({"b": b, "c": c})
    world.start()
    await until(lambda: serving.served == {"b": "b", "c": "c"})
    await until(lambda: world.directories() == ["b", "c", "models.config"])
    assert all("b" in names for names in serving.history), serving.history
    world.config.write({"b": new, "c": c})
    await until(lambda: serving.served == {"b": "new", "c": "c"})


@pytest.mark.parametrize("ticks", range(4))
async def test_the_end_is_not_lost_if_something_happens_at_that_moment(world: World, ticks: int) -> None:
    """Before Python 3.12, asyncio.wait_for swallows a cancellation then: SIGTERM would not end the puller."""
    puller = world.start()
    await until(lambda: puller.health is ServerHealth.UP)
    task = asyncio.create_task(puller._follow_server())
    await asyncio.sleep(0.05)
    puller._probe_now.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=1)
    assert task.done()
