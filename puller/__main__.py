"""`chassis-puller`, and `python -m puller`."""

import gc
import os
import signal
import sys
from collections.abc import Mapping


def main() -> int:
    """Run the command line. Returns the exit code."""
    if _supervised(sys.argv[1:], os.environ):
        from puller.supervise import supervise

        return supervise(_run)
    return _run()


def _supervised(arguments: list[str], env: Mapping[str, str]) -> bool:
    """The value of `--supervise`. The parser is not imported, to save its memory."""
    said = env.get("CHASSIS_PULLER_SUPERVISE", "false")
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=False):
        if flag == "--supervise":
            said = value
        elif flag.startswith("--supervise="):
            said = flag.partition("=")[2]
    return said == "true"


def _run() -> int:
    """The puller itself.

    Importing it takes a while. A SIGTERM that comes meanwhile ends the process; without a
    handler, the first process of a container would not even get it.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    gc.disable()
    from puller import cli

    # Imported objects live for ever, and a collection for every 700 new objects costs more than it frees.
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
