"""Tests that measure time, on machines that may stand still for seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

MOST = 20


async def undisturbed(longest: float, attempt: Callable[[], Awaitable[None]]) -> None:
    """Run the part of a test that measures time.

    If it fails and this process stood still for `longest` seconds or more meanwhile, the failure proves
    nothing, and the part runs again.
    """
    for number in range(1, MOST + 1):
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
            if stood_still < longest or number == MOST:
                raise
        else:
            return
        finally:
            watching.cancel()
