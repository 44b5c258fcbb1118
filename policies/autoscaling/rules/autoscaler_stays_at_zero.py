"""autoscaler-stays-at-zero: ScaledObjects whose metrics end with the last pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.autoscaling.metrics import query_of
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import SCALED_OBJECT
from policies.kube.objects.scaling import ScaledObject, ScaledObjectSpec, Trigger
from policies.probes.preset import known_presets

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def check(target: Target, facts: Facts) -> Findings:
    spec = target.read(ScaledObject).spec
    exported = [_exported(query_of(each)) for each in _activating(spec)] if _stops_all(spec) else []
    if exported and all(exported):
        by_default = spec.min_replica_count is None and spec.idle_replica_count is None
        default = ", the default" if by_default else ""
        yield Finding(
            "spec.triggers",
            f"With a minimum of 0 pods{default}, KEDA can stop all pods, but only they export "
            f"{exported[0]}. Without a pod, the metric doesn't exist, and KEDA never starts one again.",
            "Set minReplicaCount: 1, or add a trigger with a metric that exists without pods, such as "
            "requests at the gateway.",
        )


def _stops_all(spec: ScaledObjectSpec) -> bool:
    """Whether KEDA stops all pods without an active trigger (`RequestScale` in
    pkg/scaling/executor/scale_scaledobjects.go of KEDA 2.21)."""
    least = spec.min_replica_count if spec.idle_replica_count is None else spec.idle_replica_count
    return not least


def _activating(spec: ScaledObjectSpec) -> list[Trigger]:
    """The triggers that start the first pod: KEDA does not activate by cpu and memory."""
    return [each for each in spec.triggers if each.type not in ("cpu", "memory")]


def _exported(query: str) -> str:
    """The metric of a model server in a query; empty if it has another metric, or none."""
    words, known = set(_NAME.findall(query)), _metrics()
    return next(
        (word for word in sorted(words) if word in known or word.partition(":")[0] + ":" in known), ""
    )


@data.table
def _metrics() -> Mapping[str, None]:
    """The metrics that servers export, and the beginnings `vllm:` of such names."""
    shown = [each.load_metrics for each in known_presets().values()]
    names = [name for each in shown if each is not None and not each.of_router for name in each.names]
    beginnings = [f"{name.partition(':')[0]}:" for name in names if ":" in name]
    return MappingProxyType(dict.fromkeys((*names, *beginnings)))


RULE = rule(__name__, check, (SCALED_OBJECT,))
