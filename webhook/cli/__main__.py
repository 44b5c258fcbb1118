"""`python -m webhook.cli`: the same as the command `chassis`."""

import sys

from webhook.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
