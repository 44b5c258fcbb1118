"""`python -m puller`."""

import sys

from puller.cli import main

if __name__ == "__main__":
    sys.exit(main())
