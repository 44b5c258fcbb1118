"""liveness-external-dependency: liveness that asks another host."""

from __future__ import annotations

from functools import partial

from policies.core.contracts import rule
from policies.core.needs import Need
from policies.probes.external import external_dependencies
from policies.probes.probe import LIVENESS

RULE = rule(__name__, partial(external_dependencies, LIVENESS), needs=(Need.LIVENESS, Need.ELSEWHERE))
