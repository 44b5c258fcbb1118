"""The completion scripts in the shells that read them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from webhook.cli import main as cli
from webhook.cli.completion import SHELLS, script


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_commands_flags_and_rules(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("review", "--unknown-kinds", "liveness-external-dependency"))


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "chassis.bash"
    path.write_text(script("bash"))
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["chassis", "re"], ["review"]),
        (["chassis", "policy", ""], ["check", "diff", "schema"]),
        (["chassis", "review", "--profile", "s"], ["standard", "strict"]),
        (["chassis", "explain", "liveness-ext"], ["liveness-external-dependency"]),
        (["chassis", "scan", "--all"], ["--all-namespaces"]),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], expected: list[str], bash_script: Path) -> None:
    bash = shutil.which("bash")
    assert bash
    asked = (
        f"source {bash_script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); "
        f"COMP_CWORD={len(words) - 1}; COMP_TYPE=9; _shtab_chassis; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=True)
    assert set(expected) <= {line.strip() for line in done.stdout.splitlines()}
