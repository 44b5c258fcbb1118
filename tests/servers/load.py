"""Clients that send at a steady rate, whether or not they are answered, with little processor time."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.servers.noticing import http_request
from tests.servers.sandbox import ADDRESS
from tests.servers.server import Request

PATIENCE: Final = 60
"""Seconds after which a client gives up, as the proxies in front of servers do by default."""
AT_ONCE: Final = 1000
"""Clients that wait at a time."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)


@dataclass
class Load:
    """What became of the requests of many clients."""

    request: Request
    sent: int = 0
    finished: int = 0
    """Requests that were answered with 200 in time."""
    refused: int = 0
    """Requests with another answer, or whose connection was refused or broken off."""
    gave_up: int = 0
    seconds: float = 0.0
    silence: float = 0.0
    """The longest time, in seconds, in which no client got an answer."""
    last: float = field(default_factory=time.monotonic)

    async def steady(self, rate: float, seconds: float, over: Callable[[], bool]) -> None:
        """So many requests a second, each on its own connection, until it is `over`; then all hang up."""
        began = self.last = time.monotonic()
        clients: set[asyncio.Task[None]] = set()
        number = 0
        while (now := time.monotonic()) < began + seconds and not over():
            while number < rate * (now - began):
                number += 1
                if len(clients) < AT_ONCE:
                    task = asyncio.create_task(self._ask())
                    clients.add(task)
                    task.add_done_callback(clients.discard)
            await asyncio.sleep(max(0.02, 1 / rate))
        self._silent()
        self.seconds = now - began
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def closed(self, clients: int, seconds: float) -> None:
        """So many clients, each of which asks again as soon as it has an answer."""
        until = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                before = self.finished
                await self._ask()
                if self.finished == before:
                    await asyncio.sleep(0.1)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(client() for _ in range(clients)))

    async def _ask(self) -> None:
        self.sent += 1
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection(ADDRESS, self.request.port)
                try:
                    writer.write(http_request(self.request, "Connection: close"))
                    answer = await reader.readuntil(b"\r\n\r\n")
                    # TorchServe keeps the connection.
                    length = _LENGTH.search(answer)
                    await (reader.readexactly(int(length[1])) if length else reader.read())
                finally:
                    writer.close()
        except TimeoutError:
            self.gave_up += 1
        except (OSError, EOFError):
            self.refused += 1
        else:
            if b" 200 " in answer.partition(b"\r\n")[0]:
                self.finished += 1
                self._silent()
            else:
                self.refused += 1

    def _silent(self) -> None:
        now = time.monotonic()
        self.silence, self.last = max(self.silence, now - self.last), now
