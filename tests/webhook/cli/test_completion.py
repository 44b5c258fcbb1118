"""The completion scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.webhook.cli.scanned import Chassis
from webhook.cli.completion import SHELLS, script


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_commands_flags_and_rules(chassis: Chassis, shell: str) -> None:
    status, printed, _ = chassis("completion", shell)
    assert status == 0
    assert all(name in printed for name in ("review", "--unknown-kinds", "liveness-external-dependency"))


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "chassis.bash"
    path.write_text(script("bash"))
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("chassis re", ["review"]),
        ("chassis policy ", ["check", "diff", "schema"]),
        ("chassis review --profile s", ["standard", "strict"]),
        ("chassis explain liveness-ext", ["liveness-external-dependency"]),
        ("chassis scan --all", ["--all-namespaces"]),
    ],
)
def test_bash_completes(line: str, expected: list[str], bash_script: Path) -> None:
    bash = shutil.which("bash")
    assert bash
    words = line.split(" ")
    commands = (
        f"source {bash_script}; COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; "
        "COMP_TYPE=9; _shtab_chassis; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run([bash, "-c", commands], capture_output=True, text=True, check=True)
    assert set(expected) <= {line.strip() for line in done.stdout.splitlines()}
