"""Ends a server as the kubelet does, under clients that read streamed answers.

The order is the kubelet's and the endpoint controller's: the pod is marked for deletion; its endpoint goes a
little later, the preStop hook runs meanwhile, then comes SIGTERM, and SIGKILL when the grace period is over.
The hook is part of that period (pkg/kubelet/kuberuntime/kuberuntime_container.go of Kubernetes 1.36).
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.vllm.server import FRONT_END, HEADERS, MODEL, Vllm

ENDPOINT_DELAY: Final = 1.5
"""Seconds until every proxy has taken a deleted pod out of its Service."""


@dataclass
class Traffic:
    """Clients of a Service: each sends one request after another to one of its endpoints."""

    endpoints: list[Vllm]
    whole: int = 0
    lost: list[str] = field(default_factory=list)
    """What became of each request that got no whole answer."""
    ended: threading.Event = field(default_factory=threading.Event)

    def client(self, tokens: int) -> None:
        while not self.ended.is_set():
            server = random.choice(self.endpoints)
            became = stream(server, tokens)
            if became:
                self.lost.append(became)
            else:
                self.whole += 1


@contextmanager
def traffic(endpoints: Sequence[Vllm], tokens: Sequence[int]) -> Iterator[Traffic]:
    """A client for each number of tokens; at the end all of them wait for their last answers."""
    found = Traffic([*endpoints])
    threads = [threading.Thread(target=found.client, args=(number,)) for number in tokens]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        for thread in threads:
            thread.join()


def stream(server: Vllm, tokens: int) -> str:
    """Ask for a text of so many tokens; empty if it came whole, else the received part."""
    body = {"model": MODEL, "prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    chunks, reason = 0, "broken off"
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), HEADERS)
        response = connection.getresponse()
        if response.status != 200:
            return f"status {response.status}"
        for line in response:
            if line.startswith(b"data: {"):
                choice: dict[str, Any] = json.loads(line[6:])["choices"][0]
                chunks += 1
                reason = choice.get("finish_reason") or reason
    except (OSError, http.client.HTTPException, ValueError, LookupError):
        return "broken off" if chunks else "refused"
    finally:
        connection.close()
    return "" if reason == "length" else reason


def end(server: Vllm, found: Traffic, *, sleep: float, grace: float) -> float:
    """Delete the pod of a server; returns after how many seconds it had ended."""
    began = time.monotonic()

    def leave() -> None:
        time.sleep(ENDPOINT_DELAY)
        found.endpoints.remove(server)

    leaving = threading.Thread(target=leave)
    leaving.start()
    time.sleep(min(sleep, grace))
    server.signal(signal.SIGTERM, FRONT_END)
    while server.process.running and time.monotonic() - began < grace:
        time.sleep(0.05)
    took = time.monotonic() - began
    if server.process.running:
        server.signal(signal.SIGKILL)
    leaving.join()
    return took
