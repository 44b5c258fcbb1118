"""Prometheus metrics of the puller, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.2, 1, 5, 15, 60, 300, 900, 3600)


class Metrics:
    """Names begin with `chassis_puller_`; sizes are bytes, times seconds."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        prefix = "chassis_puller"
        self.models = Gauge(f"{prefix}_models", "Models by state.", ["state"], registry=own)
        self.steps = Counter(f"{prefix}_steps_total", "Steps that ended.", ["step", "result"], registry=own)
        self.duration = Histogram(
            f"{prefix}_step_seconds", "Time a step took.", ["step"], buckets=_SECONDS, registry=own
        )
        self.failures = Counter(f"{prefix}_failures_total", "Failed steps.", ["reason"], registry=own)
        self.received = Gauge(f"{prefix}_bytes_in_flight", "Bytes downloads in flight got.", registry=own)
        self.expected = Gauge(f"{prefix}_bytes_expected", "Bytes they are to get.", registry=own)
        self.disk = Gauge(f"{prefix}_disk_bytes", "Bytes that models hold on disk.", registry=own)
        self.refused = Gauge(f"{prefix}_config_errors", "What the config has wrong.", registry=own)
        self.ready = Gauge(f"{prefix}_ready", "Whether /readyz says yes.", registry=own)
        self.server_up = Gauge(f"{prefix}_server_up", "Whether the model server answers.", registry=own)

    def render(self) -> bytes:
        return generate_latest(self.registry)
