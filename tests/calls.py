"""Counts work in calls of functions, which no load of the machine changes.

`calls` counts all calls of some work; `trip` counts how it moves through the project's own modules.
"""

from __future__ import annotations

import cProfile
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import Final

OURS: Final = ("webhook.", "policies.", "puller.")


def calls(work: Callable[[], object]) -> int:
    """How many functions are called meanwhile, written in Python or in C."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@dataclass(frozen=True, slots=True)
class Trip:
    """The way of some work through the modules of the project."""

    calls: dict[str, int]
    """The Python calls in each module that is entered."""
    changes: int
    """How often the next call is in another module than the one before."""

    def table(self, most: int = 10) -> str:
        """The modules with the most calls, and the totals, as Markdown."""
        ranked = sorted(self.calls.items(), key=lambda each: (-each[1], each[0]))
        rows = [f"| `{name}` | {count} |" for name, count in ranked[:most]]
        total = f"| {len(ranked)} modules, {self.changes} changes of module | {sum(self.calls.values())} |"
        return "\n".join(("| module | Python calls |", "|---|---|", *rows, total))


def trip(work: Callable[[], object]) -> Trip:
    """The way of some work in this thread, if it is done a second time: the first call fills the caches.

    A comprehension, a generator's step and a class body count as calls, as the interpreter runs them.
    """
    work()
    entered: list[str] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := frame.f_globals.get("__name__", "")).startswith(OURS):
            entered.append(name)

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return Trip(dict(Counter(entered)), sum(_changes(entered)))


def _changes(entered: list[str]) -> Iterator[bool]:
    return (one != other for one, other in pairwise(entered))
