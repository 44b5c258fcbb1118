"""What the toy models have in common: the test decides when they have loaded and how long they work.

Two paths come from the environment. `TOY_WEIGHTS` is a FIFO while the test holds the loading back. While
`TOY_BUSY` exists, every answer costs the processor all it has. Files next to it choose other faults, and new
files next to it count the calls at work.
"""

import os
import time
import uuid
from pathlib import Path

WEIGHTS = Path(os.environ["TOY_WEIGHTS"])
BUSY = Path(os.environ["TOY_BUSY"])
STUCK, SLOW, BROKEN = (BUSY.with_name(name) for name in ("stuck", "slow", "broken"))


def load():
    """Read the weights: returns when the test lets them come."""
    weights = WEIGHTS.read_bytes()
    if weights == b"truncated":
        raise ValueError("the weights are truncated")
    return weights


def answer():
    """One answer: at once, or as soon as the test has seen enough of a busy server."""
    if BUSY.exists() or STUCK.exists():
        (BUSY.parent / f"at-work-{uuid.uuid4()}").touch()
    while STUCK.exists():
        time.sleep(3600)
    if BROKEN.exists():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if SLOW.exists():
        time.sleep(1)
    while BUSY.exists():
        sum(range(10_000))
    return 1.0
