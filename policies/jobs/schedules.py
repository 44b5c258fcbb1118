"""The shortest time between two runs of a cron schedule, as kube-controller-manager reads it (robfig/cron
v3)."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from policies.core.runs import Run
from policies.kube.quantities import parse_duration

_DAY: Final = 24 * 60
_NAMED: Final = {"@hourly": 3600, "@daily": 86400, "@midnight": 86400, "@weekly": 7 * 86400}
_MAX_TEXT: Final = 200
_MAX_PARTS: Final = 60


def period_of(run: Run) -> int | None:
    """The shortest period of a workload's schedules; None if it has none that is understood."""
    known = run.life.schedule
    if known is None:
        return None
    written = run.value(known.field) or (run.value(known.further) if known.further else None)
    periods = map(shortest_period, written if isinstance(written, list) else [written])
    return min((seconds for seconds in periods if seconds is not None), default=None)


def shortest_period(schedule: object) -> int | None:
    """Seconds between the two closest runs on a day with runs; a day if there is one a day, also if it is not
    every day. None if the schedule is not understood."""
    text = schedule.strip() if isinstance(schedule, str) else ""
    if text in _NAMED:
        return _NAMED[text]
    if len(text) > _MAX_TEXT:
        return None
    try:
        if text.startswith("@every "):
            return parse_duration(text.removeprefix("@every ").strip()) or None
        fields = [each for each in text.split() if "TZ=" not in each]
        if len(fields) != 5:
            return None
        minutes, hours = _values(fields[0], 60), _values(fields[1], 24)
    except ValueError:
        return None
    runs = sorted(60 * hour + minute for hour in hours for minute in minutes)
    if not runs:
        return None
    daily = fields[2:] == ["*", "*", "*"]
    gaps = [later - earlier for earlier, later in pairwise(runs)]
    gaps.append(runs[0] + _DAY - runs[-1] if daily else _DAY)
    return 60 * min(gaps)


def _values(field: str, size: int) -> set[int]:
    """The numbers of a field. Raises ValueError."""
    found: set[int] = set()
    parts = field.split(",")
    if len(parts) > _MAX_PARTS:
        raise ValueError(field)
    for part in parts:
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        low = 0 if first in ("*", "?") else int(first)
        high = size - 1 if first in ("*", "?") or (slash and not dash) else int(last) if dash else low
        every = int(step) if slash else 1
        if not (0 <= low <= high < size and every > 0):
            raise ValueError(field)
        found.update(range(low, high + 1, every))
    return found
