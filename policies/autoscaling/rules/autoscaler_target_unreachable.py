"""autoscaler-target-unreachable: targets above the greatest value of their metric."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from policies.autoscaling.metrics import used_metrics
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import AUTOSCALER, SCALED_OBJECT

_TOLERANCE: Final = Decimal("1.1")
"""An autoscaler adds pods only above its target by this factor, by default."""


def check(target: Target, facts: Facts) -> Findings:
    for used in used_metrics(target):
        most = None if used.known is None else used.known.maximum
        if most is None or used.target is None or used.target * _TOLERANCE < most:
            continue
        yield Finding(
            used.path,
            f"The metric {used.name} is at most {most} for each pod, but the target is "
            f"{used.target.normalize():f}. This metric never adds a pod.",
            f"Set a target well below {most}"
            + (", such as 0.7: the metric is a fraction, not a percentage." if most == 1 else "."),
        )


RULE = rule(__name__, check, (AUTOSCALER, SCALED_OBJECT))
