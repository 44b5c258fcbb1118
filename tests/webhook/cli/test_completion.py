"""The completion scripts in the shells that read them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from webhook.cli import main as cli
from webhook.cli.completion import SCRIPTS, SHELLS
from webhook.cli.completion_scripts import scripts


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_printed_is_generated_from_the_parsers(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert cli.main(["completion", shell]) == 0
    assert capsys.readouterr().out == scripts()[f"chassis.{shell}"]


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
def test_bash_completes(words: list[str], expected: list[str]) -> None:
    bash = shutil.which("bash")
    assert bash
    script = (
        f"source {SCRIPTS / 'chassis.bash'}; COMP_WORDS=({' '.join(repr(word) for word in words)}); "
        f"COMP_CWORD={len(words) - 1}; COMP_TYPE=9; _shtab_chassis; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True)
    assert set(expected) <= {line.strip() for line in done.stdout.splitlines()}
