"""`chassis log-level`: change the log level of a running server."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Final

from webhook.cli.flags import OK
from webhook.errors import UserError

SIGNALS: Final = {"debug": signal.SIGUSR1, "configured": signal.SIGUSR2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Change the log level of a running server by sending a signal to its process. In a cluster, run "
        "this for each pod: kubectl -n mlchassis-system exec POD -- chassis log-level debug"
    )
    parser.add_argument(
        "level", choices=tuple(SIGNALS), help="debug, or configured for the level of --log-level"
    )
    parser.add_argument(
        "--pid", type=int, default=1, help="process id of `chassis serve` (default: 1, as in the container)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Send the signal. UserError if the process is no `chassis serve`."""
    try:
        command = Path(f"/proc/{args.pid}/cmdline").read_bytes().split(b"\0")
        # The signal would end any other process.
        if b"serve" not in command or not any(b"chassis" in arg or b"webhook.cli" in arg for arg in command):
            raise UserError(f"process {args.pid} isn't `chassis serve`")
        os.kill(args.pid, SIGNALS[args.level])
    except FileNotFoundError:
        raise UserError(f"there is no process {args.pid}") from None
    except OSError as error:
        raise UserError(f"process {args.pid}: {error.strerror}") from None
    return OK
