"""Queues whose length decides how many pods an autoscaler keeps, by the names of KEDA's metrics."""

from __future__ import annotations

import re
from typing import Final

from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.objects.scaling import HorizontalPodAutoscaler

_NAME: Final = re.compile(r"s[0-9]{1,3}-([a-z0-9-]{1,253})")
"""A metric of a ScaledObject's autoscaler: the index of the trigger, and the scaler with its queue."""


class Queue(Model):
    """An entry of `queues.yaml`."""

    name: str
    metrics: tuple[str, ...] = Field(
        min_length=1,
        description="how the names of KEDA's metrics go on after the index, or the types of its triggers",
    )


def queue_of(autoscaler: HorizontalPodAutoscaler) -> str:
    """The queue whose length scales the workload; empty if a metric is something else, or unknown."""
    names = [each.external.metric.name if each.external else "" for each in autoscaler.spec.metrics]
    queues = [_queue(name) for name in names]
    return queues[0] if queues and all(queues) else ""


def _queue(name: str) -> str:
    found = _NAME.match(name)
    if found is None:
        return ""
    scaler = f"{found[1]}-"
    return next(
        (each.name for each in _queues() if any(scaler.startswith(f"{one}-") for one in each.metrics)), ""
    )


@data.table
def _queues() -> tuple[Queue, ...]:
    return data.load_list(Queue, __package__, "queues.yaml")
