"""Files and trees: complete or absent, of any depth."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from puller import files
from puller.files import write_atomically


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two", durable=False)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def nested(directory: Path, depth: int) -> None:
    """That many directories within each other, a file in each; no path is ever that long."""
    directory.mkdir()
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.mkdir("a-directory", dir_fd=at)
        below = os.open("a-directory", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


DEEP = 1_100
"""Levels: more than Python's stack has frames, more than a process may open files, and a path of 13,200
characters, of which the kernel takes 4,096."""


@pytest.mark.parametrize("depth", [1, DEEP])
def test_a_tree_of_any_depth_is_removed(tmp_path: Path, depth: int) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    nested(tree, depth)
    outside.mkdir()
    (outside / "retention").touch()
    (tree / "link").symlink_to(outside)
    before = len([*Path("/proc/self/fd").iterdir()])
    files.remove_tree(tree)
    assert not tree.exists()
    assert (outside / "retention").exists()
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_wide_tree_is_removed_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BATCH", 7)
    tree = tmp_path / "tree"
    for index in range(30):
        (tree / f"d{index}" / "below").mkdir(parents=True)
        (tree / f"f{index}").touch()
        (tree / f"d{index}" / f".doomed-{index}").touch()
    files.remove_tree(tree)
    assert not tree.exists()


def test_the_size_of_a_tree_too_deep_for_a_path_is_known(tmp_path: Path) -> None:
    """A level adds 12 characters, so one of the 12 lengths ends with a file whose path is just too long."""
    tree = tmp_path / "tree"
    nested(tree, 360)
    (tree / "weights").write_bytes(b"12345")
    for length in range(1, 13):
        tree = tree.rename(tmp_path / ("t" * length))
        assert files.tree_size(tree) == 5
    files.remove_tree(tree)


def test_the_size_of_a_tree_skips_unreadable_files(tmp_path: Path) -> None:
    """Of a directory whose own path has 4,090 characters, only entries with short names can be read."""
    tree = tmp_path / "tree"
    tree.mkdir()
    at = os.open(tree, os.O_RDONLY)
    left = 4090 - len(os.fspath(tree))
    while left:
        name = "d" * (min(left, 200) - 1)
        left -= len(name) + 1
        if left == 1:
            name, left = name[:-1], 2
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    for name in ("a", "long-name-1", "b", "long-name-2"):
        file = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=at)
        os.write(file, b"12345")
        os.close(file)
    os.close(at)
    assert files.tree_size(tree) == 10
    files.remove_tree(tree)


_AS_A_MERE_USER = """
import os, sys
from pathlib import Path
from puller.files import remove_tree
os.setgroups([]) if os.getuid() == 0 else None
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
where = Path(sys.argv[1])
(where / "tree/a/b").mkdir(parents=True)
(where / "tree/a/b/file").touch()
(where / "outside").mkdir(mode=0o500)
(where / "tree/link").symlink_to(where / "outside")
for path in ("tree/a/b", "tree/a", "tree"):
    (where / path).chmod(int(sys.argv[2], 8))
remove_tree(where / "tree")
print(oct((where / "outside").stat().st_mode & 0o777), os.listdir(where))
"""


@pytest.mark.parametrize("mode", ["500", "0", "600"])
def test_unwritable_directories_are_opened_before_they_are_removed(mode: str) -> None:
    """As a user whom permissions bind: root removes them anyway."""
    with tempfile.TemporaryDirectory(dir="/tmp") as where:
        Path(where).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", _AS_A_MERE_USER, where, mode], capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.stderr) == ("0o500 ['outside']\n", "")
