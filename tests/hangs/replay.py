"""Runs the liveness program of a server against a scripted server, on a clock that only waits move.

A case of `cases/` describes a server in phases: what it answers, and how its metrics move. The program is the
injected one; only its clock, its connections, its file and its view of the processes are replaced.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

from policies.core.data import parsed
from policies.core.pydantic_models import validated
from policies.core.settings import Field, Model
from tests.servers.server import probes_of

HUNG: Final = 100
DEADLINE: Final = 25
"""Seconds after which the program ends itself."""
LONGEST_JITTER: Final = 59
ACCEPTED, WAITING = "accepted", "waiting"
"""The metrics of a server of the user's own code: connections that it has accepted, and those that wait."""
LABELS: Final = '{model_name="m"}'
"""The labels of a metric that is named without any."""


class Phase(Model):
    """What a server does for some seconds."""

    seconds: int
    health: int | None = Field(200, description="the status of its liveness endpoint; null: no answer")
    page: bool = Field(True, description="whether its metrics page answers")
    answers_after: float | None = Field(0.05, description="seconds until a canary is answered; null: never")
    status: int = Field(200, description="the status of that answer")
    counts: bool = Field(True, description="whether an answered canary moves the counters of finished work")
    rates: Mapping[str, float] = Field(
        default_factory=dict, description="by how much metrics grow each second"
    )
    values: Mapping[str, float] = Field(
        default_factory=dict, description="values that metrics have from here"
    )
    canary_moves: Mapping[str, float] = Field(
        default_factory=dict, description="by how much an unanswered canary moves metrics"
    )
    paused: bool = Field(False, description="whether it says that it was told to pause")
    lost: bool = Field(False, description="whether a process that works for requests has ended")
    processors: float = Field(0.01, description="the share of a processor that its processes use")
    jump: float = Field(0.0, description="seconds by which the clock jumps first, while nothing runs")
    reset: bool = Field(False, description="whether its metrics begin at 0 again")
    sends: bool = Field(False, description="whether the kernel shows that clients are sent something")


class Case(Model):
    """A server that somebody has described, and what liveness must make of it."""

    name: str
    source: str = Field(description="where it was described")
    server: str = Field(description="the preset")
    phases: tuple[Phase, ...]
    restarted: bool = Field(description="whether liveness must restart it")
    within: int = Field(300, description="seconds from the start of the last phase until it is restarted")


CONTAINERS: Final[Mapping[str, dict[str, Any]]] = parsed(
    Path(__file__).with_name("containers.yaml").read_text()
)


@cache
def cases() -> tuple[Case, ...]:
    folder = Path(__file__).with_name("cases")
    return tuple(
        validated(Case, each) for file in sorted(folder.glob("*.yaml")) for each in parsed(file.read_text())
    )


@cache
def probe_of(server: str) -> dict[str, Any]:
    """The livenessProbe that the webhook gives a container of the server."""
    container = {"name": "server", **CONTAINERS[server]}
    probe: dict[str, Any] = probes_of(container)["livenessProbe"]
    return probe


class _Ended(BaseException):
    pass


@dataclass
class Replay:
    """One container's life under its livenessProbe."""

    server: str
    jitter: int = 0
    now: float = 1000.0
    seen: list[tuple[float, int, str]] = field(default_factory=list)
    """The time, the status and the output of each run."""
    metrics: dict[str, float] = field(default_factory=dict)
    _phase: Phase = field(default_factory=lambda: Phase(seconds=0))
    _files: dict[str, list[float]] = field(default_factory=dict)
    _end: float = 0.0
    _used: float = 50.0

    def __post_init__(self) -> None:
        self.probe = probe_of(self.server)
        _, _, _, text, *self._arguments = self.probe["exec"]["command"]
        self._code = _definitions(text)
        self._plan = _plan(self._arguments[4])
        self._done = self._plan["metrics"].get("done", [ACCEPTED])
        self._canaries = [path for path, _ in self._plan["canaries"]]

    @property
    def first_done(self) -> str:
        """One of its counters of finished work."""
        return str(self._done[0])

    @property
    def gauges_of_work(self) -> tuple[str, ...]:
        """Its gauges of requests that wait or are under way, and what shows that requests arrive."""
        if not self._plan["page"]:
            return (WAITING,)
        return (*self._plan["metrics"].get("waiting", ()), *self._plan["metrics"].get("arrived", ()))

    def live(self, phases: tuple[Phase, ...]) -> float | None:
        """Seconds from the start of the last phase until the kubelet restarts it; None if it does not."""
        in_a_row, due = 0, self.now
        for phase in phases:
            self._begin(phase)
            began = self.now
            while self.now < began + phase.seconds:
                self._wait(max(0.0, due - self.now))
                status = self.run()
                in_a_row = in_a_row + 1 if status else 0
                if in_a_row >= self.probe["failureThreshold"]:
                    return self.now - began if phase is phases[-1] else 0.0
                due = max(due + self.probe["periodSeconds"], self.now)
        return None

    def _begin(self, phase: Phase) -> None:
        self._phase = phase
        self.now += phase.jump
        if phase.reset:
            self.metrics = dict.fromkeys(self.metrics, 0.0)
        for name in self._done:
            self.metrics.setdefault(name, 0.0)
        self.metrics.update(phase.values)

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self._used += seconds * self._phase.processors
        for name, rate in self._phase.rates.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + rate * seconds

    def run(self) -> int:
        """One run of the probe: its exit status."""
        self._end = self.now + DEADLINE
        names: dict[str, Any] = {}
        argv, sys.argv = sys.argv, ["-c", *self._arguments]
        try:
            exec(self._code, names)
        finally:
            sys.argv = argv
        names |= {
            "END": self._end,
            "time": SimpleNamespace(monotonic=lambda: self.now),
            "signal": SimpleNamespace(signal=_nothing, setitimer=_nothing, SIGALRM=0, ITIMER_REAL=0),
            "ask": self._ask,
            "connections": self._connections,
            "finish": self._finish,
            "memory": lambda subject: subject,
            "read": lambda subject: list(self._files.get(subject, [])),
            "write": lambda subject, *numbers: self._files.update({subject: [float(n) for n in numbers]}),
            "work": lambda: (1.0, self._used, 0, 0, 0),
            "processes": list,
            "lost": lambda: self._phase.lost,
            "served": lambda: self._phase.sends,
            "jitter": lambda: self.jitter,
        }
        names["os"] = SimpleNamespace(environ={}, open=_no_log, O_WRONLY=0, O_NONBLOCK=0, O_NOCTTY=0)
        with contextlib.suppress(_Ended):
            names["main"]()
        return self.seen[-1][1]

    def _connections(self) -> dict[str, float]:
        return {"done": self.metrics[ACCEPTED], "waiting": self.metrics.get(WAITING, 0.0)}

    def _finish(self, code: int, message: str) -> None:
        self.seen.append((self.now, code, message))
        raise _Ended

    def _ask(
        self, path: str, seconds: float, body: object = None, port: int = 0
    ) -> tuple[int | None, bytes | None]:
        canary = path in self._canaries
        took, status, text = self._answer(path, canary)
        limit = min(seconds, self._end - self.now)
        if took is None or took > limit:
            self._wait(limit)
            if canary:
                for name, amount in self._phase.canary_moves.items():
                    self.metrics[name] = self.metrics.get(name, 0.0) + amount
            status, text = None, None
        else:
            self._wait(took)
            if canary and status == 200 and self._phase.counts:
                for name in self._done:
                    self.metrics[name] += 1
        if self.now >= self._end:
            self._finish(0, "cannot tell: no time left")
        return status, text

    def _answer(self, path: str, canary: bool) -> tuple[float | None, int | None, bytes | None]:
        """Seconds until it comes, its status and its text."""
        phase = self._phase
        if canary:
            return phase.answers_after, phase.status, b"{}"
        if path == self._plan["page"] and phase.page:
            named = ((each if "{" in each else each + LABELS, value) for each, value in self.metrics.items())
            return 0.02, 200, "".join(f"{name} {value!r}\n" for name, value in named).encode()
        if path in self._plan["paused"]:
            return 0.01, 200, b'{"is_paused":true}' if phase.paused else b'{"is_paused":false}'
        if path == self._plan["models"]:
            return (0.01, 200, b'{"data":[{"id":"m"}]}') if phase.health else (None, None, None)
        return (0.01 if phase.health else None), phase.health, b""


def _nothing(*_: object) -> None:
    pass


def _no_log(*_: object) -> int:
    raise OSError


@cache
def _plan(text: str) -> dict[str, Any]:
    plan: dict[str, Any] = parsed(text)
    return plan


@cache
def _definitions(text: str) -> CodeType:
    """The program without the call of its main function."""
    head, found, _ = text.partition("\ntry:\n main()\n")
    assert found
    assert head.count("\nKEY = key()\n") == 1
    # This would read the command line of every process of this machine.
    return compile(head.replace("\nKEY = key()\n", '\nKEY = ""\n'), "progress", "exec")
