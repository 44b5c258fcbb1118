"""The model directory: complete or absent, after any previous state."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from puller import store as store_module
from puller.files import remove_tree
from puller.model_config import ModelSpec
from puller.store import ModelStore, StoreBusyError
from tests.puller.fakes import logged
from tests.puller.test_files import DEEP, nested

A = ModelSpec("m", "s3://bucket/a", memory=7)
B = ModelSpec("m", "s3://bucket/b")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(tmp_path / "models")
    made.open()
    return made


def stage(store: ModelStore, name: str, **files: str) -> Path:
    tree = store.staging(name)
    tree.mkdir()
    for file, text in files.items():
        (tree / "sub").mkdir(exist_ok=True)
        (tree / "sub" / file).write_text(text)
    return tree


def files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (directory / "sub").iterdir()}


def test_an_installed_model_is_found_with_its_spec_and_size(store: ModelStore) -> None:
    stored = store.install(A, stage(store, "m", weights="12345"))
    assert (stored.spec, stored.size, stored.loaded) == (A, 5, False)
    assert store.audit() == {"m": stored}
    assert files(store.root / "m") == {"weights": "12345"}
    (marker,) = (store.root / "m").glob("SUCCESS.*")
    assert marker.name == f"SUCCESS.{A.digest}"
    assert json.loads(marker.read_text())["storageUri"] == A.storage_uri


def test_a_new_version_replaces_the_whole_old_one(store: ModelStore) -> None:
    store.install(A, stage(store, "m", old="1", both="1"))
    store.record_loading("m", True)
    store.record_loaded("m")
    stored = store.install(B, stage(store, "m", new="2", both="2"))
    assert files(store.root / "m") == {"new": "2", "both": "2"}
    assert store.read("m") == stored
    assert not stored.loaded, "the note goes with the tree it is about"
    assert list((store.root / ".puller" / "old").glob("*/tree")) == []


def test_the_old_version_stays_if_the_new_one_cannot_be_renamed(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = store.install(A, stage(store, "m", old="1"))
    tree = stage(store, "m", new="2")
    really = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path == tree:
            raise OSError(errno.EIO, "the disk fails")
        return really(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="the disk fails"):
        store.install(B, tree)
    assert store.read("m") == installed


def test_the_note_survives_a_restart(store: ModelStore) -> None:
    store.install(A, stage(store, "m", x="1"))
    for note, expected in (("", (False, False)), ("loading", (True, False)), ("loaded", (False, True))):
        if note == "loading":
            store.record_loading("m", True)
        elif note == "loaded":
            store.record_loaded("m")
        store.close()
        store = ModelStore(store.root)
        store.open()
        found = store.audit()["m"]
        assert (found.loading, found.loaded) == expected, note
    store.record_loading("m", True)
    store.record_loading("m", False)
    assert not store.audit()["m"].loading


def test_removing(store: ModelStore) -> None:
    store.install(A, stage(store, "m", x="1"))
    store.remove("m")
    store.remove("m")
    assert store.audit() == {}
    assert not (store.root / "m").exists()


def test_the_longest_name_fits(store: ModelStore) -> None:
    name = "n" * 253
    store.install(ModelSpec(name, "s3://b/k"), stage(store, name, x="1"))
    store.install(ModelSpec(name, "s3://b/l"), stage(store, name, x="2"))
    assert files(store.root / name) == {"x": "2"}
    store.remove(name)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'{"storageUri": "nope"}', b"\xff\xfe", b"[" * 10**5],
    ids=lambda c: c[:9],
)
def test_a_broken_marker_means_absent(store: ModelStore, content: bytes) -> None:
    (store.root / "m").mkdir()
    (store.root / "m" / "SUCCESS.x").write_bytes(content)
    assert store.read("m") is None


def test_two_markers_a_linked_one_and_a_pipe_mean_absent(store: ModelStore, tmp_path: Path) -> None:
    text = json.dumps(A.to_json())
    (tmp_path / "marker").write_text(text)
    for name in ("two", "link", "pipe"):
        (store.root / name).mkdir()
    (store.root / "two" / "SUCCESS.1").write_text(text)
    (store.root / "two" / "SUCCESS.2").write_text(text)
    (store.root / "link" / "SUCCESS.1").symlink_to(tmp_path / "marker")
    os.mkfifo(store.root / "pipe" / "SUCCESS.1")
    assert store.audit() == {}
    assert not (store.root / "two").exists()


def test_a_link_in_place_of_a_model_is_removed_and_not_followed(store: ModelStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SUCCESS.x").write_text(json.dumps(A.to_json()))
    (store.root / "m").symlink_to(outside)
    assert store.audit() == {}
    assert not (store.root / "m").is_symlink()
    assert (outside / "SUCCESS.x").exists()


def test_a_model_replaces_any_file_with_its_name(store: ModelStore) -> None:
    (store.root / "m").write_text("a file")
    store.install(A, stage(store, "m", x="1"))
    assert files(store.root / "m") == {"x": "1"}


def test_one_puller_at_a_time(store: ModelStore) -> None:
    second = ModelStore(store.root)
    with pytest.raises(StoreBusyError):
        second.open()
    store.close()
    second.open()
    second.close()


def test_everything_is_flushed_before_the_name_is_given(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, the marker, the directories: in any order, all before the rename."""
    events: list[str] = []
    really_sync, really_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append("SUCCESS" if path.name.startswith("SUCCESS") else path.name)
        really_sync(descriptor)

    def rename(one: Any, other: Any, **more: Any) -> None:
        events.append(f"rename to {Path(other).name}")
        really_rename(one, other, **more)

    tree = stage(store, "m", x="1")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    store.install(A, tree)
    assert events.pop() == "rename to m"
    assert sorted(events) == ["SUCCESS", "m", "sub", "x"]


def test_the_old_version_is_deleted_after_the_new_one_is_durable(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.install(A, stage(store, "m", x="1"))
    tree = stage(store, "m", x="2")
    events: list[str] = []
    really_sync, really_remove = os.fsync, remove_tree

    def fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        really_sync(descriptor)

    def remove(path: Path) -> None:
        events.append("removed")
        really_remove(path)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(store_module, "remove_tree", remove)
    store.install(A, tree)
    assert events[-2:] == ["models", "removed"]


def test_the_start_deletes_deep_leftovers_and_skips_irremovable_ones(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.install(A, stage(store, "m", x="1"))
    nested(store.root / ".puller" / "new" / "deep", DEEP)
    nested(store.root / "unmarked", DEEP)
    for name in ("bad", "good"):
        stage(store, name, x="1")
    store.close()
    really = remove_tree

    def refuse(path: Path) -> None:
        if path.name == "bad":
            raise RecursionError("maximum recursion depth exceeded")
        really(path)

    monkeypatch.setattr(store_module, "remove_tree", refuse)
    again = ModelStore(store.root)
    with logged() as logs:
        again.open()
        assert set(again.audit()) == {"m"}
    assert [path.name for path in (store.root / ".puller" / "new").iterdir()] == ["bad"]
    assert not (store.root / "unmarked").exists()
    assert [line["directory"] for line in logs if line["event"] == "leftover not removed"] == ["bad"]
    again.close()


@pytest.mark.parametrize("place", ["", "new", "archives", "old"])
def test_a_link_in_place_of_the_pullers_directories_is_not_followed(tmp_path: Path, place: str) -> None:
    """The model server can write to the volume. What the puller sweeps must not be files of others."""
    others = tmp_path / "others"
    for part in ("new", "archives", "old", "m"):
        (others / part / "x").mkdir(parents=True)
    link = tmp_path / "models" / ".puller" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(others)
    made = ModelStore(tmp_path / "models")
    made.open()
    made.close()
    assert {path.parent.name for path in others.glob("*/x")} == {"new", "archives", "old", "m"}
    assert not link.is_symlink()
