"""readiness-external-dependency: readiness that asks another host."""

from __future__ import annotations

from functools import partial

from policies.core.contracts import PodFeature, rule
from policies.probes.external_hosts import external_dependencies
from policies.probes.probe import READINESS

RULE = rule(
    __name__,
    partial(external_dependencies, READINESS),
    requires=(PodFeature.READINESS, PodFeature.OTHER_HOST),
)
