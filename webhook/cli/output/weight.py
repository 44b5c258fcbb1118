"""The consequence of a finding, as one word that can be compared."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from policies.core.mode import Mode
from webhook.admission.decision import Decision, Result


class Weight(IntEnum):
    """The consequence of a finding, or of the worst finding about an object; the greater, the worse."""

    NONE = 0
    AUDITED = 1
    EXEMPTED = 2
    WARNED = 3
    REFUSED = 4

    def __str__(self) -> str:
        return self.name.lower()


_OF_MODE: Final = {Mode.ENFORCE: Weight.REFUSED, Mode.WARN: Weight.WARNED, Mode.AUDIT: Weight.AUDITED}


def weight(result: Result) -> Weight:
    """The consequence of one finding."""
    return Weight.EXEMPTED if result.exempted is not None else _OF_MODE.get(result.mode, Weight.NONE)


def weights(decision: Decision) -> dict[tuple[str, str], Weight]:
    """By rule and place, the worst that comes of a finding there."""
    found: dict[tuple[str, str], Weight] = {}
    for result in decision.results:
        key = result.rule, result.finding.path
        found[key] = max(found.get(key, Weight.NONE), weight(result))
    return found


def verdict(decision: Decision) -> Weight:
    """Refused, warned, or none."""
    if not decision.allowed:
        return Weight.REFUSED
    warned = any(weight(result) is Weight.WARNED for result in decision.results)
    return Weight.WARNED if warned else Weight.NONE
