"""startup-kills-slow-start: a startupProbe that fails before the start is complete."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.declared_models import keeps_files
from policies.probes.probe import STARTUP, probes
from policies.probes.standard_probes import looks_injected
from policies.probes.startup_budget import start_of

_FAR_BELOW: Final = 8
"""A budget this many times below a server's usual start is too short for any model."""
_DOWNLOADING: Final = 4
"""The same for a start that also downloads a model of several gigabytes."""
_SMALL: Final = 120
"""Seconds to load a model of 7 GB at the default rate, with the start of the container."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, STARTUP):
        if probe.template.completes:
            continue
        start = start_of(probe.template.view, probe.container, facts)
        budget = probe.typed.startup_deadline
        if start is None:
            continue
        # A size gives the amount to load, not the rate: disks are 8 times as fast as the rate that budgets
        # allow for. A server's usual start is for a usual model.
        stored = keeps_files(probe.template.typed, probe.container) or not probe.template.is_exact
        margin = 1 if start.annotated else _FAR_BELOW if stored and not start.declared else 2
        downloads = not stored and not start.declared and start.loading > _SMALL
        enough = budget * _DOWNLOADING > start.usual if downloads else budget * _FAR_BELOW >= start.usual
        if budget >= start.least and budget * margin >= start.loading and enough:
            continue
        if looks_injected(probe.template.view, probe.container, STARTUP, facts):
            continue  # a budget for a guessed size is at most a day
        yield Finding(
            probe.at(),
            f"The {probe.name} kills it {budget} s after it starts, but it takes about {start.seconds} s "
            f"until it serves ({start.reason}).",
            f"{'Remove the variable, or raise' if start.least else 'Raise'} failureThreshold until "
            f"periodSeconds * failureThreshold is well above {start.seconds}. "
            "This does not delay a faster start.",
            Certainty.CERTAIN if start.declared else Certainty.UNDECIDED,
        )


RULE = rule(__name__, check, requires=(PodFeature.STARTUP,))
