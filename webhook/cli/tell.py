"""Notes and questions for a person, in addition to the output."""

from __future__ import annotations

import sys

from policies.kube.printable import printable


def tell(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(printable(f"chassis: {sentence}"), file=sys.stderr)


def agreed(question: str) -> bool:
    """Whether a person answers a question with yes."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
