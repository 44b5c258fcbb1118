"""The config directory: read whole, however it is swapped, and heard of soon."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from pathlib import Path

import orjson
import pytest

from puller import config
from puller.config import ConfigUnreadableError, changes, read
from puller.model_config import parse
from tests.puller.fakes import ConfigVolume


def test_a_configmap_volume_is_read_through_its_data_link(tmp_path: Path) -> None:
    volume = ConfigVolume(tmp_path / "c")
    volume.write_files({"models.json": "[]", "a.json": "{}", "README": "no model"})
    assert read(volume.path) == {"models.json": "[]", "a.json": "{}"}


def test_a_plain_directory_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("[]")
    (tmp_path / "sub.json").mkdir()
    assert read(tmp_path) == {"models.json": "[]"}


def test_an_empty_directory_has_no_models_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    with pytest.raises(ConfigUnreadableError, match="there is no directory"):
        read(tmp_path / "none")


def test_unusual_files_are_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_BYTES", 100)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff{}")
    (tmp_path / "giant.json").write_bytes(b" " * 101)
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff.json")).write_text("{}")
    found = read(tmp_path)
    assert found == {"bytes.json": "\udcff{}", "giant.json": "", "\ufffd.json": "{}"}
    assert orjson.dumps([str(error) for error in parse(found).errors])


def test_a_read_is_consistent_while_the_volume_is_swapped(tmp_path: Path) -> None:
    """Both keys always have the same number."""
    volume = ConfigVolume(tmp_path / "c")
    volume.write_files({"a.json": "0", "b.json": "0"})
    done = threading.Event()

    def swap() -> None:
        count = 0
        while not done.is_set():
            count += 1
            volume.write_files({"a.json": str(count), "b.json": str(count)})

    writer = threading.Thread(target=swap)
    writer.start()
    try:
        seen: list[str] = []
        while len(seen) < 300 or len(set(seen)) <= 3:  # the writer may be slow to get its turn
            try:
                files = read(volume.path)
            except ConfigUnreadableError:
                continue  # swapped ten times while it was read ten times
            assert files["a.json"] == files["b.json"]
            seen.append(files["a.json"])
    finally:
        done.set()
        writer.join()


async def test_a_swap_is_noticed_before_the_poll(tmp_path: Path) -> None:
    volume = ConfigVolume(tmp_path / "c")
    volume.write_files({"models.json": "[]"})
    heard = changes(volume.path, poll=60)
    await anext(heard)

    async def swap() -> None:
        """Repeatedly: the watch starts in another thread without a signal."""
        for count in itertools.count():
            volume.write_files({"models.json": f"[{count}]"})
            await asyncio.sleep(0.3)

    swaps = asyncio.create_task(swap())
    for _ in range(3):
        await asyncio.wait_for(anext(heard), 50)
    swaps.cancel()
    await heard.aclose()


async def test_a_directory_that_cannot_be_watched_is_polled(tmp_path: Path) -> None:
    heard = changes(tmp_path / "later", poll=0.05)
    for _ in range(3):
        await asyncio.wait_for(anext(heard), 50)
    await heard.aclose()
