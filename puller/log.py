"""Logging: one structured line for each change of state; for a person at a terminal, in colours."""

from __future__ import annotations

import logging
import sys

import structlog

logger: structlog.stdlib.BoundLogger = structlog.get_logger("puller")


def configure(level: str) -> None:
    """Set up structlog for this process. `level`: debug, info, warning or error."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if terminal else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if terminal
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
