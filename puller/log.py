"""Logging: one JSON line for each change of state; for a person at a terminal, readable ones.

This small module exists because the sidecar runs in many pods: importing structlog takes as long as importing
all of the puller's modules.
"""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

LEVELS = ("debug", "info", "warning", "error")


class Logger:
    """Writes an event, a few words, and its fields as one whole line to stderr."""

    def __init__(self) -> None:
        self._least = LEVELS.index("info")
        self._terminal = False

    def configure(self, level: str) -> None:
        """The least of LEVELS that is written."""
        self._least = LEVELS.index(level)
        self._terminal = sys.stderr.isatty()

    def debug(self, event: str, **fields: Any) -> None:
        if self._least == 0:
            self.write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._least <= 1:
            self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self._least <= 2:
            self.write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self.write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self.write("error", event, fields | {"exception": traceback.format_exc()})

    def write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if self._terminal:
            said = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{now} [{level}] {event} {said}".rstrip()
        else:
            line = _json(fields | {"event": event, "level": level, "timestamp": now})
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _json(fields: dict[str, Any]) -> str:
    """The fields as JSON. A name that is not UTF-8 contains surrogates, which orjson refuses."""
    try:
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        sound = {
            name: str(value).encode(errors="backslashreplace").decode() for name, value in fields.items()
        }
        return orjson.dumps(sound).decode()


logger = Logger()
