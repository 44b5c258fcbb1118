"""Timing that a noisy machine can't bend much: CPU time of the best of several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable


def best(function: Callable[[], object], rounds: int = 7, seconds: float = 0.1) -> float:
    """CPU seconds of one call: the fastest round, each round lasting about `seconds`."""
    calls = 1
    while True:
        elapsed = _round(function, calls)
        if elapsed >= seconds / 4:
            break
        calls *= 2
    calls = max(1, round(calls * seconds / elapsed))
    return min(_round(function, calls) for _ in range(rounds)) / calls


def _round(function: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        function()
    return time.process_time() - start


def table(title: str, baseline: str, rows: dict[str, float]) -> None:
    """Print each row's time and its ratio to the row called `baseline`."""
    print(title)
    for name, seconds in rows.items():
        print(f"  {name:<52} {seconds * 1e6:>10.1f} µs  {seconds / rows[baseline]:>8.2f} x")
