"""Tests that measure time, on machines that may stop for seconds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

MAX = 20


def pass_over(seconds: float) -> None:
    """Set the clock of the event loop forward: what is due by then is due now."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


@contextmanager
def stillness() -> Iterator[Callable[[], float]]:
    """Gives the longest time for which this process stopped within the block, in seconds."""
    ended, longest = threading.Event(), 0.0

    def watch() -> None:
        nonlocal longest
        last = time.monotonic()
        while not ended.wait(0.05):
            now = time.monotonic()
            longest = max(longest, now - last - 0.05)
            last = now

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield lambda: longest
    finally:
        ended.set()
        watching.join()


async def undisturbed(longest: float, attempt: Callable[[], Awaitable[None]]) -> None:
    """Run the part of a test that measures time.

    If it fails and this process stopped for `longest` seconds or more meanwhile, the failure proves
    nothing, and the part runs again.
    """
    for number in range(1, MAX + 1):
        stood_still = 0.0

        async def watch() -> None:
            nonlocal stood_still
            clock = asyncio.get_running_loop().time
            while True:
                began = clock()
                await asyncio.sleep(longest / 10)
                stood_still = max(stood_still, clock() - began - longest / 10)

        watching = asyncio.create_task(watch())
        try:
            await attempt()
        except (Exception, pytest.fail.Exception):
            await asyncio.sleep(0)
            if stood_still < longest or number == MAX:
                raise
        else:
            return
        finally:
            watching.cancel()
