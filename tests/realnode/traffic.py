"""Clients at a steady rate, and what they were answered."""

from __future__ import annotations

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

TIMEOUT = 5.0
"""Seconds that a client waits for an answer."""


@dataclass(frozen=True)
class Request:
    """One request: when it was sent, in seconds since the beginning, and its result."""

    sent: float
    answered: bool
    seconds: float


def ask(address: str, port: int, path: str, timeout: float = TIMEOUT) -> bool:
    """Whether a GET on a new connection is answered with 200."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Steady:
    """Sends at a steady rate, each time independent of earlier ones.

    Args:
        rate: how often a second.
        clients: how many may wait for an answer at once.
    """

    def __init__(self, rate: float, clients: int) -> None:
        self._rate, self._clients = rate, clients
        self._stopped = threading.Event()
        self.began = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def now(self) -> float:
        """Seconds since the first was sent."""
        return time.monotonic() - self.began

    def send(self, number: int) -> None:
        """Send one, and wait for the answer."""
        raise NotImplementedError

    def _run(self) -> None:
        with ThreadPoolExecutor(self._clients) as clients:
            number = 0
            while not self._stopped.wait(max(0.0, number / self._rate - self.now)):
                clients.submit(self.send, number)
                number += 1


class Traffic(Steady):
    """Requests to a Service.

    Args:
        address: the ClusterIP of a Service.
        rate: requests a second.
    """

    def __init__(self, address: str, rate: float, *, port: int = 80, path: str = "/predict") -> None:
        super().__init__(rate, round(rate * TIMEOUT) + 8)  # as many as can be waiting at once, and some more
        self._target = (address, port, path)
        self._requests: list[Request] = []

    @property
    def requests(self) -> list[Request]:
        """The ended requests, by the time at which they were sent."""
        return sorted(self._requests, key=lambda request: request.sent)

    @property
    def lost(self) -> int:
        """How many were not answered."""
        return sum(not request.answered for request in self._requests)

    @property
    def silent_seconds(self) -> int:
        """In how many seconds none of those that were sent was answered."""
        answered = {int(request.sent) for request in self._requests if request.answered}
        return len({int(request.sent) for request in self._requests} - answered)

    def share(self, since: float, until: float) -> float | None:
        """The share of the requests sent in this time that were answered; None if none was sent."""
        sent = [request.answered for request in self._requests if since <= request.sent < until]
        return sum(sent) / len(sent) if sent else None

    def send(self, number: int) -> None:
        sent = self.now
        answered = ask(*self._target)
        self._requests.append(Request(sent, answered, self.now - sent))


def overload(
    address: str,
    clients: int,
    path: str = "/predict",
    seconds: float = 0,
    timeout: float = 30,
    port: int = 80,
) -> None:
    """So many clients at once, each again and again for so many seconds, at least one time."""

    def one() -> None:
        ends = time.monotonic() + seconds
        ask(address, port, path, timeout)
        while time.monotonic() < ends:
            if not ask(address, port, path, timeout):
                time.sleep(0.1)  # it may be refused at once

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(one)
