"""The progress line: only on a terminal and for long work, and cleared at the end."""

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


def watched(stream: io.StringIO, env: Mapping[str, str], step: float) -> str:
    """The output for forty items, each of which takes `step` seconds."""
    clock = itertools.count(0, step)
    assert list(progress("files read", stream, env, lambda: next(clock))(range(40))) == list(range(40))
    return stream.getvalue()


def test_a_terminal_gets_a_line_at_intervals() -> None:
    output = watched(Terminal(), {"TERM": "xterm"}, 0.05)
    first, *_, last = output.split("\r\x1b[K")[1:]
    assert first == "10 files read"
    assert last == "", "the line is cleared"
    assert 10 < output.count("files read") < 20


@pytest.mark.parametrize(
    ("stream", "env", "step"),
    [
        (Terminal(), {}, 0.001),
        (Terminal(), {"CI": "true"}, 1),
        (Terminal(), {"NO_COLOR": "1"}, 1),
        (Terminal(), {"TERM": "dumb"}, 1),
        (io.StringIO(), {}, 1),
    ],
    ids=["short work", "CI", "NO_COLOR", "dumb terminal", "no terminal"],
)
def test_there_is_no_line(stream: io.StringIO, env: Mapping[str, str], step: float) -> None:
    assert watched(stream, env, step) == ""


def test_the_line_is_cleared_after_an_error() -> None:
    terminal = Terminal()
    clock = itertools.count(0, 1.0)
    items = progress("files read", terminal, {}, lambda: next(clock))(range(5))
    next(items)
    next(items)
    items.close()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_review_shows_progress_on_a_real_terminal(tmp_path: Path) -> None:
    for number in range(3):
        manifest = f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c{number}}}}}"
        (tmp_path / f"{number}.yaml").write_text(manifest)
    script = (
        "import sys\n"
        "from webhook.cli import main, terminal\n"
        "terminal.PROGRESS_AFTER_SECONDS = terminal.PROGRESS_EVERY_SECONDS = 0.0\n"
        "sys.exit(main.main(['review', sys.argv[1]]))\n"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-c", script, str(tmp_path)]
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=env | {"TERM": "xterm"})
        lines = os.read(ours, 65536).decode().split("\r\x1b[K")
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b"3 objects, 0 changed, 0 warnings, 0 denied\n", "only progress is on stderr"
    assert [line for line in lines if "read" in line] == [f"{n} files read" for n in range(3)]
    assert [line for line in lines if "reviewed" in line] == [
        f"{n} of 3 documents reviewed" for n in range(3)
    ]
    assert lines[-1] == "", "the line is cleared"
