"""`chassis serve`, from the flags to the supervisor. Importing this loads no server module."""

from __future__ import annotations

import argparse
import os
import tempfile

from webhook.server import server_flags
from webhook.server.server_flags import ServerOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server_flags.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM; the exit status. UserError if the flags contradict each other."""
    chosen = server_flags.options_of(args)
    if chosen.workers == 1:
        return _start(chosen)
    with tempfile.TemporaryDirectory(prefix="chassis-metrics-") as directory:
        # Set before the import: prometheus_client reads the variable when it is imported.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        return _start(chosen)


def _start(chosen: ServerOptions) -> int:
    from webhook.server import log, worker

    log.configure(chosen.log_level, chosen.log_format)
    return worker.serve(chosen)
