"""The ScaledObjects that may stop all pods of their workload, and the triggers that start the first one."""

from __future__ import annotations

import re
from typing import Final

from policies.autoscaling.metrics import query_of
from policies.commands.durations import seconds
from policies.kube.objects.scaling import ScaledObjectSpec, Trigger

_LABELS: Final = re.compile(r'\{[^{}]*\}|"[^"]*"')
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_COUNTED: Final = re.compile(r"\b(?:rate|irate|increase)\s*\(\s*[a-zA-Z_:][\w:]*\s*\[\s*(\w+)\s*\]\s*\)")
_NAME: Final = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*(\(?)")
"""A metric, or a function with its parenthesis."""
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "on", "ignoring", "group_left", "group_right"})


def stops_all(spec: ScaledObjectSpec) -> bool:
    """Whether KEDA stops all pods without an active trigger (`RequestScale` in
    pkg/scaling/executor/scale_scaledobjects.go of KEDA 2.21)."""
    least = spec.min_replica_count if spec.idle_replica_count is None else spec.idle_replica_count
    return not least


def activating(spec: ScaledObjectSpec) -> list[Trigger]:
    """The triggers that start the first pod: KEDA does not activate by cpu and memory."""
    return [each for each in spec.triggers if each.type not in ("cpu", "memory")]


def counted_window(trigger: Trigger) -> float | None:
    """The seconds for which the query of a trigger counts a request, such as 60 in `rate(requests[1m])`; None
    if it has other metrics, too: requests that wait in one may keep the trigger active."""
    query = _GROUPING.sub("", _LABELS.sub("", query_of(trigger)))
    windows = [seconds(each[1]) for each in _COUNTED.finditer(query)]
    rest = _COUNTED.sub("1", query)
    if not windows or None in windows or "[" in rest:
        return None
    others = {name.lower() for name, call in _NAME.findall(rest) if not call} - _WORDS
    return None if others else max(each for each in windows if each is not None)
