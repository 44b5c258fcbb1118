"""`chassis-puller`, and `python -m puller`."""

import os
import signal
import sys


def main() -> int:
    """Run the command line. Returns the exit code.

    Importing it takes a good part of a second. A SIGTERM that comes meanwhile ends the process; without a
    handler, the first process of a container would not even get it.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from puller import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
