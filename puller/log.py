"""Logging: one JSON line for each change of state, or a readable one on a terminal.

structlog is not used: its import takes as long as that of all modules of the puller.
"""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

LEVELS = ("debug", "info", "warning", "error")


class Logger:
    """Writes an event and its fields as one line to stderr."""

    def __init__(self) -> None:
        self._level = LEVELS.index("info")
        self._terminal = False

    def configure(self, level: str) -> None:
        """`level`: the lowest of LEVELS that is written."""
        self._level = LEVELS.index(level)
        self._terminal = sys.stderr.isatty()

    def debug(self, event: str, **fields: Any) -> None:
        if self._level == 0:
            self.write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._level <= 1:
            self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self._level <= 2:
            self.write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self.write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the current exception."""
        self.write("error", event, fields | {"exception": traceback.format_exc()})

    def write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if self._terminal:
            pairs = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{now} [{level}] {event} {pairs}".rstrip()
        else:
            line = _json(fields | {"event": event, "level": level, "timestamp": now})
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _json(fields: dict[str, Any]) -> str:
    """The fields as JSON. A name that is not UTF-8 contains surrogates, which orjson refuses."""
    try:
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        escaped = {
            name: str(value).encode(errors="backslashreplace").decode() for name, value in fields.items()
        }
        return orjson.dumps(escaped).decode()


logger = Logger()
