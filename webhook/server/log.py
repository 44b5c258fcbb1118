"""Logging: one JSON object a line in a pod, readable columns on a terminal.

All lines go to stderr in one format, also the standard library's records (aiohttp, asyncio). Our own lines do
not pass through the standard library: a record costs more than an answer from the memo.

Law: every event is one line, although names, users, paths and parser errors come from callers. `_json` is the
only function that makes JSON, `_escape_values` the only one that prepares columns; both escape all characters
that end a line or move a cursor.
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
from msgspec import Struct

from webhook.server.server_flags import Format

log = structlog.get_logger()

MINUTE_SECONDS: Final = 60.0
LINES_A_MINUTE: Final = 5


def configure(level: str = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's records to `stream` (default stderr).

    `form` "auto" is console on a terminal and JSON otherwise.
    """
    stream = stream or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [
            _escape_values,
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_write_traceback),
        ]
        if console
        else [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ]
    )
    if not console:
        _configured.json = (renderer[-1], stream)
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
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # a line for each change, which ours follows
    _set_level(level)
    _configured.level = level


def handle_level_signals() -> None:
    """SIGUSR1 sets the level debug, SIGUSR2 the configured level: in this process and in those it forks."""
    signal.signal(signal.SIGUSR1, lambda *_: change_level("debug"))
    signal.signal(signal.SIGUSR2, lambda *_: change_level(_configured.level))


def change_level(level: str) -> None:
    """Log lines of this level and above from now on."""
    _set_level(level)
    structlog.get_logger().warning("log level changed", to=level, pid=os.getpid())


def _set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def verbose() -> bool:
    """Whether the level is debug. Asking costs less than building a line."""
    return logging.getLogger().level <= logging.DEBUG


class Line:
    """A line of level info that is written many times with another uid, name and time.

    The rest of its JSON is made once.
    """

    __slots__ = ("_event", "_fields", "_parts")

    def __init__(self, event: str, fields: Mapping[str, object]) -> None:
        """`fields` contains the texts `uid` and `name`, in this order."""
        self._event, self._fields = event, fields
        own = {"uid": _PLACEHOLDERS[0], "name": _PLACEHOLDERS[1]}
        line = {**fields, **own, "event": event, "level": "info", "timestamp": _PLACEHOLDERS[2]}
        self._parts = _PLACEHOLDER.split(_json(line))

    def write(self, uid: str, name: str) -> None:
        processors = structlog.get_config()["processors"]
        if _configured.json is None or not processors or processors[-1] is not _configured.json[0]:
            log.info(self._event, **{**self._fields, "uid": uid, "name": name})
        elif logging.getLogger().level <= logging.INFO:
            before, between, after, end = self._parts
            stream, now = _configured.json[1], datetime.now(UTC).isoformat().replace("+00:00", "Z")
            stream.write(f"{before}{_json(uid)}{between}{_json(name)}{after}{_json(now)}{end}\n")
            stream.flush()


_PLACEHOLDERS: Final = tuple(f"{secrets.token_hex(16)}{number}" for number in range(3))
_PLACEHOLDER: Final = re.compile("|".join(f'"{each}"' for each in _PLACEHOLDERS))


class _Configured(Struct):
    """The last call of `configure` in this process."""

    level: str = "info"
    json: tuple[structlog.typing.Processor, TextIO] | None = None
    """Renderer and stream of JSON lines; None if the format was never JSON."""


_configured: Final = _Configured()


def _json(value: object, default: Callable[[Any], Any] = str, **_: Any) -> str:
    """JSON in one line without control characters."""
    try:
        written = orjson.dumps(value, default=default).decode()
    except orjson.JSONEncodeError:  # for example half of a surrogate pair
        return json.dumps(value, default=default).replace("\x7f", "\\u007f")
    return _escaped(written)


_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that end a line, move a cursor or change the direction of text (C0, C1, line and paragraph
separators, bidirectional controls), and halves of surrogate pairs, which no stream accepts."""


def _escaped(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: makes all values safe for a terminal."""
    for key, value in event.items():
        if key not in ("exc_info", "exception", "stack"):
            nested = isinstance(value, (list, tuple, set, frozenset, dict))
            event[key] = _escaped(repr(value) if nested else str(value))
    return event


def _write_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Write a traceback with an indent that no other line has."""
    for part in traceback.format_exception(*exc_info):
        for line in part.split("\n"):
            stream.write(f"\n    {_escaped(line)}")


class RateLimitedLog:
    """Log lines that callers cause: the first few of each reason a minute, then one with the number of the
    rest."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._minutes: dict[str, tuple[asyncio.TimerHandle, int]] = {}

    def warning(self, reason: str, **fields: object) -> None:
        """`reason` is one of a few constants."""
        timer, lines = self._minutes.get(reason) or (
            asyncio.get_running_loop().call_later(MINUTE_SECONDS, self._end, reason),
            0,
        )
        self._minutes[reason] = timer, lines + 1
        if lines < LINES_A_MINUTE:
            log.warning(self._event, reason=reason, **fields)

    def flush(self) -> None:
        """End the minute of every reason."""
        for reason, (timer, _) in list(self._minutes.items()):
            timer.cancel()
            self._end(reason)

    def _end(self, reason: str) -> None:
        _, lines = self._minutes.pop(reason)
        if lines > LINES_A_MINUTE:
            log.warning(self._event, reason=reason, more=lines - LINES_A_MINUTE, seconds=MINUTE_SECONDS)
