"""The numbers of a probe with the API server's defaults, in seconds or counts. A 0 or another type gives the
default."""

from __future__ import annotations

from typing import Any

from policies.kube.json import Json, integer


def initial_delay(probe: Any) -> int:
    return integer(probe, "initialDelaySeconds", default=0)


def period(probe: Any) -> int:
    return integer(probe, "periodSeconds", default=0) or 10


def timeout(probe: Any) -> int:
    return integer(probe, "timeoutSeconds", default=0) or 1


def failures(probe: Any) -> int:
    return integer(probe, "failureThreshold", default=0) or 3


def give_up(probe: Any) -> int:
    """Seconds of failures until the kubelet restarts the container or removes its endpoint."""
    return period(probe) * failures(probe)


def startup_deadline(probe: Any) -> int:
    """Seconds from the container's start until the probe fails, without a startupProbe."""
    return initial_delay(probe) + give_up(probe)


def timed(handler: Json, period: int, timeout: int, failures: int) -> Json:
    """A probe with these numbers."""
    return {**handler, "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures}
