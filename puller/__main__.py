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
    """The value of `--supervise`. The parser is not imported, to save memory."""
    result = env.get("CHASSIS_PULLER_SUPERVISE", "false")
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=False):
        if flag == "--supervise":
            result = value
        elif flag.startswith("--supervise="):
            result = flag.partition("=")[2]
    return result == "true"


def _run() -> int:
    """Run the puller in this process.

    A SIGTERM during the import ends the process; the first process of a container needs a handler for it.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    gc.disable()
    from puller import cli

    # Imported objects are never freed, and a collection after every 700 new objects costs more than it frees.
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
