"""Notes about a scan or another reading of a cluster itself."""

from __future__ import annotations

import sys

from policies.kube.printable import printable


def tell(sentence: str, command: str = "scan") -> None:
    """Print a sentence for a person in addition to the output."""
    print(printable(f"chassis {command}: {sentence}"), file=sys.stderr)
