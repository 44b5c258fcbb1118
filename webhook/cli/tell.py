"""Notes about a scan itself."""

from __future__ import annotations

import sys

from policies.kube.printable import printable


def tell(sentence: str) -> None:
    """Print a sentence for a person in addition to the output."""
    print(printable(f"chassis scan: {sentence}"), file=sys.stderr)
