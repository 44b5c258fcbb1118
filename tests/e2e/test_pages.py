"""docs/enforce.md: every command runs, in the order of the page, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.binaries import binary
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import REPOSITORY, Chassis

pytestmark = pytest.mark.e2e
PAGE = REPOSITORY / "docs" / "enforce.md"
REST = "…"
PATIENCE = 30
"""Seconds in which an edit must have come into force; what a page shows after one is asked for again."""


@dataclass(frozen=True)
class Command:
    """A command of the page with the output that stands below it."""

    text: str
    shown: str

    @property
    def expected(self) -> re.Pattern[str]:
        parts = (re.escape(part) for part in self.shown.strip().split(REST))
        return re.compile(".*".join(parts), re.S)


def blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.S | re.M)


def commands() -> Iterator[Command]:
    for block in blocks("console"):
        for command in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = command.splitlines()
            count = next((n for n, line in enumerate(lines, 1) if not line.endswith("\\")), len(lines))
            yield Command("\n".join(lines[:count]), "\n".join(lines[count:]))


@pytest.fixture
def shell(control_plane: ControlPlane, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who follows the page: its files, kubectl, and chassis as a plugin."""
    for block in blocks("yaml"):
        name = re.match(r"# ([\w.-]+)\n", block)
        assert name, f"which file is this? {block}"
        (tmp_path / name[1]).write_text(block)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(binary("kubectl"))
    control_plane.create_namespace("team-a")
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    kubeconfig = str(control_plane.kubeconfig)
    yield os.environ | {"PATH": path, "KUBECONFIG": kubeconfig, "HOME": str(tmp_path), "COLUMNS": "100"}
    control_plane.kubectl("delete", "namespace", "team-a", "--wait=false")


def test_the_page_shows_what_the_commands_print(
    control_plane: ControlPlane, chassis: Chassis, shell: dict[str, str], tmp_path: Path
) -> None:
    found = list(commands())
    assert len(found) >= 10
    before = chassis.policy_with()
    try:
        for command in found:
            _follow(command, shell, tmp_path)
    finally:
        control_plane.apply(before)


def _follow(command: Command, environment: dict[str, str], directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=directory,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )
        if command.shown.strip():
            if command.expected.fullmatch(done.stdout.strip()):
                return
        elif done.returncode == 0:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"$ {command.text}\nprinted:\n{done.stdout}\nthe page shows:\n{command.shown}")
        time.sleep(0.2)
