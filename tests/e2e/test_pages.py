"""Every command of these pages runs, in the order of the page, and prints what the page shows."""

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
PAGES = ("enforce.md", "my-workload.md")
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


def blocks(page: str, language: str) -> Iterator[str]:
    text = (REPOSITORY / "docs" / page).read_text()
    yield from re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def commands(page: str) -> Iterator[Command]:
    for block in blocks(page, "console"):
        for command in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = command.splitlines()
            count = next((n for n, line in enumerate(lines, 1) if not line.endswith("\\")), len(lines))
            yield Command("\n".join(lines[:count]), "\n".join(lines[count:]))


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shell(control_plane: ControlPlane, tmp_path: Path, page: str) -> Iterator[dict[str, str]]:
    """The environment of somebody who follows the page: its files, kubectl, and chassis as a plugin."""
    for block in blocks(page, "yaml"):
        name = re.match(r"# ([\w.-]+)\n", block)
        assert name, f"which file is this? {block}"
        (tmp_path / name[1]).write_text(block)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(binary("kubectl"))
    control_plane.create_namespace("team-a")
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    kubeconfig = str(control_plane.kubeconfig)
    yield os.environ | {"PATH": path, "KUBECONFIG": kubeconfig, "HOME": str(tmp_path), "COLUMNS": "100"}
    control_plane.kubectl("delete", "namespace", "team-a", "--timeout=60s")


def test_the_page_shows_what_the_commands_print(
    chassis: Chassis, shell: dict[str, str], tmp_path: Path, page: str
) -> None:
    found = list(commands(page))
    assert len(found) >= 5
    with chassis.policy_restored():
        for command in found:
            _follow(command, shell, tmp_path)


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
