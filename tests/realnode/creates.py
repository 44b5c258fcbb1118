"""Pods created at a steady rate while something happens to the webhook, and what became of them.

They are created by dry run, which asks the webhook just the same. A create that finds no API server, while
that is restarted, is tried again by every client and does not count.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from types import TracebackType
from typing import Self

from tests.e2e.api import ApiError
from tests.e2e.node.cluster import RealNode
from tests.e2e.workloads import PROBES, pod, probes

RATE = 20
CLIENTS = 24


@dataclass
class Creates:
    """Pods created at a steady rate, and what became of them."""

    node: RealNode
    creates: int = 0
    lost: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unmutated: list[float] = field(default_factory=list)
    """When each that was let in unchanged was sent, in seconds since the beginning."""

    def __enter__(self) -> Self:
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._send, name="creates", daemon=True)
        self._thread.start()
        self.wait(3 * RATE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def wait(self, more: int) -> None:
        """Until so many more were answered."""
        wanted, ends = self.creates + more, time.monotonic() + 120
        while self.creates < wanted:
            assert time.monotonic() < ends, "the API server answers no creates"
            time.sleep(0.1)

    def figures(self) -> dict[str, int]:
        """How many of each."""
        return {
            "creates": self.creates,
            "lost": len(self.lost),
            "refused": len(self.refused),
            "unmutated": len(self.unmutated),
        }

    def _send(self) -> None:
        with ThreadPoolExecutor(CLIENTS) as clients:
            number = 0
            while not self._stopped.wait(max(0.0, number / RATE - self.now)):
                clients.submit(self._one, number)
                number += 1

    def _one(self, number: int) -> None:
        sent = self.now
        try:
            answer = self.node.api.create(pod(f"pod-{number}"), "default", dry_run=True)
        except ApiError as error:
            (self.lost if error.status >= 500 else self.refused).append(str(error))
        except (OSError, HTTPException):
            return
        else:
            if probes(answer.body) != set(PROBES):
                self.unmutated.append(sent)
        self.creates += 1
