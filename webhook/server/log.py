"""Logging: one JSON object a line in a pod, readable columns on a terminal.

Everything goes to stderr, the standard library's records (aiohttp, asyncio) included, so that a log
collector sees one format. Stdout belongs to the commands that print results.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from webhook.server.options import Format


def configure(level: str = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's records to `stream` (default stderr).

    `form` "auto" is console on a terminal and JSON anywhere else.
    """
    stream = stream or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
