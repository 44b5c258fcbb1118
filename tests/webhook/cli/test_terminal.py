"""The progress line of a command: on a terminal, for long work, and gone at the end."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from webhook.cli.terminal import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(stream: io.StringIO, env: Mapping[str, str], step: float) -> list[int]:
    """Forty items, each of which takes `step` seconds."""
    clock = itertools.count(0, step)
    return list(progress("files read", stream, env, lambda: next(clock))(range(40)))


def test_a_terminal_gets_a_line_now_and_then_and_is_cleared() -> None:
    terminal = Terminal()
    assert watched(terminal, {"TERM": "xterm"}, 0.05) == list(range(40))
    first, *_, last = terminal.getvalue().split("\r\x1b[K")[1:]
    assert first == "10 files read"
    assert last == "", "the line is gone"
    assert 10 < terminal.getvalue().count("files read") < 20


def test_short_work_has_no_line() -> None:
    terminal = Terminal()
    watched(terminal, {}, 0.001)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("env", [{"CI": "true"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_none_gets_none(env: Mapping[str, str]) -> None:
    terminal = Terminal()
    watched(terminal, env, 1)
    assert terminal.getvalue() == ""


def test_no_terminal_gets_none() -> None:
    stream = io.StringIO()
    assert watched(stream, {}, 1) == list(range(40))
    assert stream.getvalue() == ""


def test_the_line_is_gone_after_an_error() -> None:
    terminal = Terminal()
    clock = itertools.count(0, 1.0)
    items = progress("files read", terminal, {}, lambda: next(clock))(range(5))
    next(items)
    next(items)
    items.close()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_review_of_a_directory_shows_progress_on_a_real_terminal(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.yaml").write_text(
            f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c{number}}}}}"
        )
    script = (
        "import sys\n"
        "from webhook.cli import main, terminal\n"
        "terminal.PROGRESS_AFTER_SECONDS = terminal.PROGRESS_EVERY_SECONDS = 0.0\n"
        "sys.exit(main.main(['review', sys.argv[1]]))\n"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "FORCE_COLOR")}
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=env | {"TERM": "xterm"},
        )
        said = os.read(ours, 65536).decode().split("\r\x1b[K")
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b"3 objects, 0 changed, 0 warnings, 0 denied\n", "results go elsewhere"
    assert [line for line in said if "read" in line] == [f"{n} files read" for n in range(3)]
    assert [line for line in said if "reviewed" in line] == [f"{n} of 3 documents reviewed" for n in range(3)]
    assert said[-1] == "", "the line is gone"
