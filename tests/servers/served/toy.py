"""What the toy models have in common: the test decides when they have loaded and how long they work.

Two paths come from the environment. `TOY_WEIGHTS` is a FIFO while the test holds the loading back. While
`TOY_BUSY` exists, every answer costs the processor all it has; files beside it tell how many are at work.
"""

import os
import uuid
from pathlib import Path

WEIGHTS = Path(os.environ["TOY_WEIGHTS"])
BUSY = Path(os.environ["TOY_BUSY"])


def load():
    """Read the weights: returns when the test lets them come."""
    return WEIGHTS.read_bytes()


def answer():
    """One answer: at once, or as soon as the test has seen enough of a busy server."""
    if BUSY.exists():
        (BUSY.parent / f"at-work-{uuid.uuid4()}").touch()
    while BUSY.exists():
        sum(range(10_000))
    return 1.0
