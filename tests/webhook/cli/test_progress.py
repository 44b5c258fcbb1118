"""The line that says how far a command has come: on a terminal, for what takes long, and gone at the end."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping

import pytest

from webhook.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(stream: io.StringIO, env: Mapping[str, str], step: float) -> list[int]:
    """Forty items, each of which takes `step` seconds."""
    clock = itertools.count(0, step)
    return list(progress("files read", stream, env, lambda: next(clock))(range(40)))


def test_a_terminal_is_told_now_and_then_and_cleared() -> None:
    terminal = Terminal()
    assert watched(terminal, {"TERM": "xterm"}, 0.05) == list(range(40))
    first, *_, last = terminal.getvalue().split("\r\x1b[K")[1:]
    assert first == "10 files read"
    assert last == "", "the line is gone"
    assert 10 < terminal.getvalue().count("files read") < 20


def test_what_is_done_at_once_says_nothing() -> None:
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
