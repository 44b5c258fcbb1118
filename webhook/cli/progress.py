"""How far a long command has come, in one line on a terminal, which is gone when the command has done."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final, TextIO, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS: Final = 0.5
"""Work that ends earlier needs no line."""
EVERY_SECONDS: Final = 0.1
_CLEAR: Final = "\r\x1b[K"


def progress(
    what: str,
    stream: TextIO | None = None,
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[Iterable[T]], Generator[T, None, None]]:
    """Counts items as they go by, for a person who watches: `1,024 files read`.

    Prints nothing in CI, or if standard error is no terminal that can clear a line.
    """
    stream = stream or sys.stderr
    shown = stream.isatty() and env.get("TERM") != "dumb" and not (env.get("CI") or env.get("NO_COLOR"))

    def watch(items: Iterable[T]) -> Generator[T, None, None]:
        due = clock() + PATIENCE_SECONDS
        said = False
        try:
            for count, item in enumerate(items):
                if shown and clock() >= due:
                    stream.write(f"{_CLEAR}{count:,} {what}")
                    stream.flush()
                    due, said = clock() + EVERY_SECONDS, True
                yield item
        finally:
            if said:
                stream.write(_CLEAR)
                stream.flush()

    return watch
