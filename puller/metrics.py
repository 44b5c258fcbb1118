"""Prometheus metrics of the puller: plain numbers until the first scrape, which imports prometheus_client."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_SECONDS = (0.05, 0.2, 1, 5, 15, 60, 300, 900, 3600)
_PREFIX = "chassis_puller"


@dataclass
class Durations:
    """A histogram of the durations of steps: counts by bucket of _SECONDS, and the sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, number of steps up to it)."""
        bounds = [*map(str, map(float, _SECONDS)), "+Inf"]
        return [(bound, sum(self.counts[: index + 1])) for index, bound in enumerate(bounds)]


@dataclass(eq=False)
class PullerMetrics:
    """Names begin with `chassis_puller_`; sizes are bytes, times seconds."""

    models: dict[str, int] = field(default_factory=dict)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    durations: dict[str, Durations] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Names and reasons of failed models, limited in number: each is a series."""
    received: int = 0
    expected: int = 0
    disk: int = 0
    refused: int = 0
    ready: bool = False
    server_up: bool = False

    def step(self, step: str, seconds: float, failure: str | None) -> None:
        """Count a step. `failure`: the reason, if it failed."""
        self.steps[step, "failed" if failure else "done"] += 1
        self.durations.setdefault(step, Durations()).observe(seconds)
        if failure:
            self.failures[failure] += 1

    def render(self) -> tuple[bytes, str]:
        """The text format and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    @cached_property
    def registry(self) -> CollectorRegistry:
        """A registry with only these metrics."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        models = GaugeMetricFamily(f"{_PREFIX}_models", "Models by state.", labels=["state"])
        for state, count in self.models.items():
            models.add_metric([state], count)
        steps = CounterMetricFamily(f"{_PREFIX}_steps", "Steps that ended.", labels=["step", "result"])
        for (step, result), count in self.steps.items():
            steps.add_metric([step, result], count)
        seconds = HistogramMetricFamily(f"{_PREFIX}_step_seconds", "Time a step took.", labels=["step"])
        for step, took in self.durations.items():
            seconds.add_metric([step], took.buckets(), took.seconds)
        failures = CounterMetricFamily(f"{_PREFIX}_failures", "Failed steps.", labels=["reason"])
        for reason, count in self.failures.items():
            failures.add_metric([reason], count)
        failed = GaugeMetricFamily(
            f"{_PREFIX}_model_failed", "Models that fail now, at most 100.", labels=["model", "reason"]
        )
        for model, reason in self.failed:
            failed.add_metric([model, reason], 1)
        yield from (models, steps, seconds, failures, failed)
        for name, text, value in (
            ("bytes_in_flight", "Bytes downloads in flight got.", self.received),
            ("bytes_expected", "Bytes they are to get.", self.expected),
            ("disk_bytes", "Bytes that models hold on disk.", self.disk),
            ("config_errors", "Errors in the config.", self.refused),
            ("ready", "Whether /readyz answers 200.", self.ready),
            ("server_up", "Whether the model server answers.", self.server_up),
        ):
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
