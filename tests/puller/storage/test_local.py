"""Models that are in the pod already: whole, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from puller.storage.base import FetchProgress, StorageError
from puller.storage.local import listing, take
from tests.puller.errors import refused


def tree_at(root: Path) -> Path:
    (root / "v1").mkdir(parents=True)
    (root / "v1" / "model.bin").write_bytes(b"weights")
    return root


def paths(root: Path) -> list[str]:
    return [path for _, path, _ in listing(root, ())]


def test_a_link_to_a_directory_within_is_part_of_the_model(tmp_path: Path) -> None:
    root = tree_at(tmp_path / "m")
    (root / "latest").symlink_to("v1")
    assert paths(root) == ["latest/model.bin", "v1/model.bin"]


@pytest.mark.parametrize("target", ["/etc", "..", ".", "loop"])
def test_a_link_to_a_directory_elsewhere_or_in_a_circle_is_refused(tmp_path: Path, target: str) -> None:
    root = tree_at(tmp_path / "m")
    (root / "v1" / "loop").symlink_to(target)
    with refused("HostilePath"):
        paths(root)


def test_a_broken_link_is_reported(tmp_path: Path) -> None:
    root = tree_at(tmp_path / "m")
    (root / "gone").symlink_to("nothing")
    with refused("NotFound", r"m/nothing"):
        paths(root)


def test_an_unreadable_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree_at(tmp_path / "m")
    really = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("v1"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr("os.scandir", scandir)
    with refused("SourceUnreadable", "Permission denied"):
        paths(root)


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_copy_is_complete_or_an_error_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    """Between most file systems the kernel does not copy by itself, and files cannot be linked."""

    def refused(*_: Any) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refused)
    if not in_kernel:
        monkeypatch.setattr("os.copy_file_range", refused)
    source = tmp_path / "model.bin"
    source.write_bytes(b"weights" * 1_000_000)
    progress = FetchProgress()
    take([(source, "copy", 7_000_000)], tmp_path, progress, lambda: False)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert progress.done == 7_000_000
    with pytest.raises(StorageError, match="changed while it was copied"):
        take([(source, "again", 7_000_001)], tmp_path, progress, lambda: False)
    take([(source, "stopped", 7_000_000)], tmp_path, progress, lambda: True)
    assert (tmp_path / "stopped").stat().st_size == 0
