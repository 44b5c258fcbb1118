"""The log: one JSON object a line, from any logger; columns on a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from webhook.server import log
from webhook.server.server_flags import Format


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The log is the process's own: put it back."""
    root = logging.getLogger()
    handlers, level, configuration = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configuration)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def configured(level: str, form: Format) -> io.StringIO:
    """Where the log goes from now on."""
    stream = io.StringIO()
    log.configure(level, form, stream)
    return stream


def test_every_record_is_one_line_of_json_the_libraries_included() -> None:
    stream = configured("info", "auto")
    structlog.get_logger().info("changed", kind="Pod", text="two\nlines")
    logging.getLogger("aiohttp.server").error("broken %s", "pipe")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["text"]) == ("changed", "info", "two\nlines")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("broken pipe", "error")


def test_an_exception_stays_on_the_line() -> None:
    stream = configured("info", "json")
    try:
        int("x")
    except ValueError:
        structlog.get_logger().exception("admission failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_records_below_the_level_are_not_written() -> None:
    stream = configured("warning", "json")
    structlog.get_logger().info("changed")
    logging.getLogger("aiohttp").info("access")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("form", "stream"), [("auto", Terminal()), ("console", io.StringIO())])
def test_a_person_gets_columns(form: Format, stream: io.StringIO) -> None:
    log.configure("info", form, stream)
    structlog.get_logger().info("listening", port=8443)
    assert "listening" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
    assert ("\x1b[" in stream.getvalue()) is stream.isatty()


def test_values_that_json_lacks_are_logged_as_text() -> None:
    stream = configured("info", "json")
    structlog.get_logger().info("odd", number=2**80, half="\ud800", path=Path("/tmp"))
    line = json.loads(stream.getvalue())
    assert (line["number"], line["half"], line["path"]) == (2**80, "\ud800", "PosixPath('/tmp')")


async def test_of_lines_that_repeat_a_few_are_written_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "MINUTE_SECONDS", 0.01)
    limited = log.RateLimitedLog("request refused")
    with structlog.testing.capture_logs() as lines:
        for number in range(log.LINES_A_MINUTE + 3):
            limited.warning("Bad Request", number=number)
        limited.warning("Not Found")
        while len(lines) < log.LINES_A_MINUTE + 2:  # noqa: ASYNC110 - nothing else announces it
            await asyncio.sleep(0.01)
        limited.warning("Bad Request", number="the next minute")
    assert [line.get("number", line.get("more")) for line in lines if line["reason"] == "Bad Request"] == [
        *range(log.LINES_A_MINUTE),
        3,
        "the next minute",
    ]
    assert len([line for line in lines if line["reason"] == "Not Found"]) == 1
    assert {line["event"] for line in lines} == {"request refused"}


async def test_unwritten_lines_are_counted_at_the_end() -> None:
    limited = log.RateLimitedLog("refused")
    with structlog.testing.capture_logs() as lines:
        for _ in range(log.LINES_A_MINUTE + 1):
            limited.warning("no-http")
        limited.flush()
        limited.flush()
    assert [line.get("more") for line in lines] == [None] * log.LINES_A_MINUTE + [1]


# --- lines that are put together once ------------------------------------------------------------------

ABOUT = {
    "endpoint": "mutate",
    "uid": "1",
    "kind": 'a "kind"\\',
    "name": "web",
    "dryRun": False,
    "policies": ["a"],
}


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_is_put_together_once_is_the_line_that_would_be_logged(level: str, form: Format) -> None:
    stream = configured(level, form)
    line = log.Line("changed", ABOUT)
    for uid, name in (("2", "web-a"), ("3", "web-b")):
        line.write(uid, name)
        structlog.get_logger().info("changed", **{**ABOUT, "uid": uid, "name": name})
    lines = [re.sub(r"20[0-9]{2}-[0-9-]+T[0-9:.]+Z", "T", each) for each in stream.getvalue().splitlines()]
    assert len(lines) == (0 if level == "warning" else 4)
    assert lines[::2] == lines[1::2]


def test_a_line_that_is_put_together_once_goes_where_lines_go_now() -> None:
    first = configured("info", "json")
    line = log.Line("changed", ABOUT)
    second = configured("info", "json")
    line.write("2", "web-a")
    log.change_level("warning")
    line.write("3", "web-b")
    with structlog.testing.capture_logs() as captured:
        log.change_level("info")
        line.write("4", "web-c")
    assert first.getvalue() == ""
    assert [json.loads(each).get("uid") for each in second.getvalue().splitlines()] == ["2", None]
    assert [each.get("uid") for each in captured] == [None, "4"]


# --- texts of callers ----------------------------------------------------------------------------------

HOSTILE = 'a"\n{"event":"denied"}\r\x1b[2J\x07\x7f\x85\x9b\u061c\u200f\u2028\u2029\u202e\u2067\ufeff é'


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_text_cannot_end_its_line_or_move_a_cursor(form: Format) -> None:
    stream = configured("info", form)
    log.Line("changed", {"uid": "1", "name": "a", "kind": HOSTILE}).write(HOSTILE, HOSTILE)
    structlog.get_logger().info(
        "changed", uid=HOSTILE, name=[HOSTILE], why={"a": HOSTILE}, path=Path(HOSTILE)
    )
    logging.getLogger("aiohttp.server").error("broken %s", HOSTILE)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert all("é" in line for line in lines), "what is harmless stays readable"
    if form == "json":
        first, second, third = map(json.loads, lines)
        assert first["kind"] == first["uid"] == first["name"] == second["uid"] == HOSTILE
        assert second["name"] == [HOSTILE]
        assert third["event"] == f"broken {HOSTILE}"


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_has_no_line_that_looks_like_one_of_the_log(form: Format) -> None:
    stream = configured("info", form)
    try:
        raise ValueError(HOSTILE)  # noqa: TRY301
    except ValueError:
        structlog.get_logger().exception("admission failed")
    first, *others = stream.getvalue().splitlines()
    assert "admission failed" in first
    assert (others == []) is (form == "json")
    assert all(line.startswith("    ") and line.isprintable() for line in others)
