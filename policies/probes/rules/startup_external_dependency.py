"""startup-external-dependency: a startup probe that asks another host."""

from __future__ import annotations

from functools import partial

from policies.core.contracts import PodFeature, rule
from policies.probes.external_hosts import external_dependencies
from policies.probes.probe import STARTUP

RULE = rule(
    __name__, partial(external_dependencies, STARTUP), requires=(PodFeature.STARTUP, PodFeature.OTHER_HOST)
)
