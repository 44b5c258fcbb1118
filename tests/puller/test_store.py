"""The model directory: complete or absent, whatever was there before."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from puller import store as store_module
from puller.spec import ModelSpec
from puller.store import ModelStore, StoreBusyError, write_atomically

A = ModelSpec("m", "s3://bucket/a", memory=7)
B = ModelSpec("m", "s3://bucket/b")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(tmp_path / "models")
    made.open()
    return made


def stage(store: ModelStore, name: str, **files: str) -> Path:
    tree = store.staging(name) / "tree"
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


@pytest.mark.parametrize("exchange", [True, False])
def test_a_new_version_replaces_the_old_one_whole(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, "this file system cannot exchange")

    if not exchange:
        monkeypatch.setattr(store_module, "_exchange", refuse)
    store.install(A, stage(store, "m", old="1", both="1"))
    store.note_loading("m", True)
    store.note_loaded("m")
    stored = store.install(B, stage(store, "m", new="2", both="2"))
    assert files(store.root / "m") == {"new": "2", "both": "2"}
    assert store.read("m") == stored
    assert not stored.loaded, "the note goes with the tree it is about"
    assert list((store.root / ".puller" / "old").glob("*/tree")) == []


def test_the_note_survives_a_restart(store: ModelStore) -> None:
    store.install(A, stage(store, "m", x="1"))
    for note, expected in (("", (False, False)), ("loading", (True, False)), ("loaded", (False, True))):
        if note == "loading":
            store.note_loading("m", True)
        elif note == "loaded":
            store.note_loaded("m")
        store.close()
        store = ModelStore(store.root)
        store.open()
        found = store.audit()["m"]
        assert (found.loading, found.loaded) == expected, note
    store.note_loading("m", True)
    store.note_loading("m", False)
    assert not store.audit()["m"].loading


def test_removing(store: ModelStore) -> None:
    store.install(A, stage(store, "m", x="1"))
    store.remove("m")
    store.remove("m")
    assert store.audit() == {}
    assert not (store.root / "m").exists()


def test_a_tree_that_cannot_be_entered_is_removed_all_the_same(store: ModelStore) -> None:
    tree = stage(store, "m", x="1")
    (tree / "sub").chmod(0o500)
    store.install(A, tree)
    store.remove("m")
    assert list((store.root / ".puller" / "old").glob("*/tree")) == []


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


def test_a_model_replaces_whatever_bears_its_name(store: ModelStore) -> None:
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
    """Files, then the marker, then directories, then the rename, then the parent."""
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
    assert events == ["tree", "x", "sub", "SUCCESS", "tree", "rename to m", "models"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two", durable=False)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_directories_are_opened_before_they_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root, who may run the tests, removes them anyway; so the refusal that others meet is played."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "a" / "b").mkdir(parents=True)
    outside.mkdir(mode=0o500)
    (tree / "link").symlink_to(outside)
    really = shutil.rmtree

    def as_a_mere_user(path: Path) -> None:
        if any(found.stat().st_mode & 0o700 != 0o700 for found in (path, path / "a", path / "a" / "b")):
            raise PermissionError(errno.EACCES, "Permission denied")
        really(path)

    monkeypatch.setattr("shutil.rmtree", as_a_mere_user)
    for path in (tree / "a" / "b", tree / "a", tree):
        path.chmod(0o500)
    store_module.remove_tree(tree)
    assert not tree.exists()
    assert outside.stat().st_mode & 0o777 == 0o500
