"""Logging: one JSON object a line in a pod, readable columns on a terminal.

Everything goes to stderr, the standard library's records (aiohttp, asyncio) included, so that a log
collector sees one format. Stdout belongs to the commands that print results.

Our own lines do not pass through the standard library: a record for each of them costs more than a review
that is answered from the memo.

Law: every event is one line. Texts come from callers: names, users, paths, what a parser
complains about. `_json` is the only function that makes JSON, `_shown` the only one that makes columns; both
escape all that could end a line or move a cursor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson
import structlog

from webhook.server.options import Format

log = structlog.get_logger()

MINUTE_SECONDS: Final = 60.0
LINES_A_MINUTE: Final = 5


def configure(level: str = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's records to `stream` (default stderr).

    `form` "auto" is console on a terminal and JSON anywhere else.
    """
    stream = stream or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [
            _shown,
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_indented),
        ]
        if console
        else [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_line),
        ]
    )
    if not console:
        _json_lines.append((renderer[-1], stream))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    structlog.configure(
        processors=[*shared, *renderer],
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _log_from(level)
    _configured.append(level)


def listen_to_signals() -> None:
    """SIGUSR1 logs everything from now on, SIGUSR2 restores the configured level: in this process and in
    those that it forks."""
    signal.signal(signal.SIGUSR1, lambda *_: change_level("debug"))
    signal.signal(signal.SIGUSR2, lambda *_: change_level(_configured[-1]))


def change_level(level: str) -> None:
    """Log from another level on."""
    _log_from(level)
    structlog.get_logger().warning("log level changed", to=level, pid=os.getpid())


def verbose() -> bool:
    """Whether lines of the level debug are written: a look that costs less than to put one together."""
    return logging.getLogger().level <= logging.DEBUG


def _log_from(level: str) -> None:
    logging.getLogger().setLevel(level.upper())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


class Line:
    """A line of the level info that is written again and again: the uid, the name and the time differ.

    Where lines are JSON, all else of it is put together once.
    """

    __slots__ = ("_about", "_event", "_parts")

    def __init__(self, event: str, about: Mapping[str, object]) -> None:
        """`about` has the texts `uid` and `name`, in this order."""
        self._event, self._about = event, about
        blank = {"uid": _BLANKS[0], "name": _BLANKS[1]}
        said = {**about, **blank, "event": event, "level": "info", "timestamp": _BLANKS[2]}
        self._parts = _BLANK.split(_line(said, str))

    def write(self, uid: str, name: str) -> None:
        processors = structlog.get_config()["processors"]
        if not (processors and _json_lines and processors[-1] is _json_lines[-1][0]):
            log.info(self._event, **{**self._about, "uid": uid, "name": name})
        elif logging.getLogger().level <= logging.INFO:
            before, between, after, end = self._parts
            stream = _json_lines[-1][1]
            stream.write(f"{before}{_json(uid)}{between}{_json(name)}{after}{_json(_now())}{end}\n")
            stream.flush()


_BLANKS: Final = tuple(f"{secrets.token_hex(16)}{number}" for number in range(3))
_BLANK: Final = re.compile("|".join(f'"{blank}"' for blank in _BLANKS))


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


_json_lines: Final[list[tuple[structlog.typing.Processor, TextIO]]] = []
"""The last processors and stream of JSON lines; empty if the format was never JSON."""
_configured: Final = ["info"]
"""The level that was asked for at the start, last."""


def _line(event: dict[str, Any], default: Callable[[Any], Any], **_: Any) -> str:
    return _json(event, default)


def _json(value: object, default: Callable[[Any], Any] = str) -> str:
    """JSON without line ends and control characters, for any reader of lines."""
    try:
        written = orjson.dumps(value, default=default).decode()
    except orjson.JSONEncodeError:  # what JSON has no place for, as half of a surrogate pair
        return json.dumps(value, default=default).replace("\x7f", "\\u007f")
    return _escaped(written)


_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""What ends a line, moves a cursor or turns the direction of a text around: C0, C1, separators of lines and
paragraphs, bidirectional controls; and halves of surrogate pairs, which no stream takes."""


def _escaped(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: the texts of a line as a terminal may show them."""
    for key, value in event.items():
        if key not in ("exc_info", "exception", "stack"):
            event[key] = _escaped(value if isinstance(value, str) else _plainly(value))
    return event


def _plainly(value: object) -> str:
    return repr(value) if isinstance(value, (list, tuple, set, frozenset, dict)) else str(value)


def _indented(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """A traceback on lines that none of ours looks like."""
    for part in traceback.format_exception(*exc_info):
        for line in part.split("\n"):
            stream.write(f"\n    {_escaped(line)}")


class Bounded:
    """Lines that callers can have written as often as they like: of each reason the first few a minute, and,
    once the minute is over, one with the number of the others."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._minutes: dict[str, tuple[asyncio.TimerHandle, int]] = {}

    def warning(self, reason: str, **about: object) -> None:
        """`reason` is one of a few words."""
        ends, lines = self._minutes.get(reason) or (
            asyncio.get_running_loop().call_later(MINUTE_SECONDS, self._over, reason),
            0,
        )
        self._minutes[reason] = ends, lines + 1
        if lines < LINES_A_MINUTE:
            log.warning(self._event, reason=reason, **about)

    def flush(self) -> None:
        """The minute is over for all of them."""
        for reason, (ends, _) in list(self._minutes.items()):
            ends.cancel()
            self._over(reason)

    def _over(self, reason: str) -> None:
        _, lines = self._minutes.pop(reason)
        if lines > LINES_A_MINUTE:
            log.warning(self._event, reason=reason, more=lines - LINES_A_MINUTE, seconds=MINUTE_SECONDS)
