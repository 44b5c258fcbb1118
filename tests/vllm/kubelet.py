"""Runs an exec probe as the kubelet does: pkg/kubelet/prober/worker.go, pkg/probe/exec of Kubernetes 1.36."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """One run of the probe: `after` seconds since the loop began it ended, `took` seconds after its start."""

    after: float
    took: float
    success: bool
    output: str


@dataclass
class Seen:
    """The runs of a livenessProbe and their outcome."""

    results: list[Result] = field(default_factory=list)
    restarted_after: float | None = None
    """Seconds until the kubelet would have restarted the container."""

    @property
    def failures(self) -> int:
        return sum(not result.success for result in self.results)

    @property
    def in_a_row(self) -> int:
        """The longest run of failures."""
        longest = current = 0
        for result in self.results:
            current = 0 if result.success else current + 1
            longest = max(longest, current)
        return longest

    @property
    def slowest(self) -> float:
        return max((result.took for result in self.results), default=0.0)

    @property
    def figures(self) -> dict[str, float | None]:
        """The measurements for a test's report."""
        return {
            "probes": len(self.results),
            "failures": self.failures,
            "in a row": self.in_a_row,
            "slowest": round(self.slowest, 1),
            "restarted after": self.restarted_after and round(self.restarted_after),
        }


def run_once(probe: Mapping[str, Any], env: Mapping[str, str]) -> tuple[bool, str]:
    """One run of the command: exit status 0 in time is success. A process that is too slow is killed."""
    command: Sequence[str] = probe["exec"]["command"]
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=probe.get("timeoutSeconds", 1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, "timed out"
    return done.returncode == 0, (done.stdout + done.stderr).strip()


class Kubelet:
    """Asks in another thread, once a period, until the probe has failed failureThreshold times in a row.

    A probe that takes longer than the period delays the next one, which then begins at once.
    """

    def __init__(
        self,
        probe: Mapping[str, Any],
        env: Mapping[str, str],
        period: float | None = None,
        run: Callable[[Mapping[str, Any], Mapping[str, str]], tuple[bool, str]] = run_once,
    ) -> None:
        self.seen = Seen()
        self._probe, self._env, self._run_once = probe, env, run
        self._period = probe.get("periodSeconds", 10) if period is None else period
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def wait(self, seconds: float) -> Seen:
        """Wait for a restart, at most so long."""
        self._ended.wait(seconds)
        return self.seen

    def _run(self) -> None:
        began = tick = time.monotonic()
        in_a_row = 0
        while not self._ended.is_set():
            started = time.monotonic()
            success, output = self._run_once(self._probe, self._env)
            now = time.monotonic()
            self.seen.results.append(Result(now - began, now - started, success, output))
            in_a_row = 0 if success else in_a_row + 1
            if in_a_row >= self._probe.get("failureThreshold", 3):
                self.seen.restarted_after = now - began
                self._ended.set()
            tick += self._period * max(1, int((now - tick) // self._period))
            self._ended.wait(max(0.0, tick - time.monotonic()))
