"""Pods created at a steady rate while something happens to the webhook, and what became of them.

They are created by dry run, which asks the webhook just the same. A create that finds no API server, while
that is restarted, is tried again by every client and does not count.
"""

from __future__ import annotations

import time
from http.client import HTTPException
from typing import Self

from tests.e2e.api import ApiError
from tests.e2e.node.cluster import RealNode
from tests.e2e.workloads import PROBES, pod, probes
from tests.realnode.traffic import Steady

RATE = 20
CLIENTS = 24


class Creates(Steady):
    """Pods created at a steady rate, and what became of them."""

    def __init__(self, node: RealNode) -> None:
        super().__init__(RATE, CLIENTS)
        self.node = node
        self.creates = 0
        self.lost: list[str] = []
        self.refused: list[str] = []
        self.unmutated: list[float] = []
        """When each that was admitted unchanged was sent, in seconds since the beginning."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.wait(3 * RATE)
        return self

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

    def send(self, number: int) -> None:
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
