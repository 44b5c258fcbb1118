"""liveness-external-dependency: liveness that depends on another host, or on more than the process."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.endpoints import liveness_advice
from policies.probes.external_hosts import external_dependencies
from policies.probes.preset import dependency_of
from policies.probes.probe import LIVENESS, ContainerProbe, probes
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    yield from external_dependencies(LIVENESS, target, facts)
    for probe in probes(target, LIVENESS):
        if finding := _dependent_endpoint(probe, facts):
            yield finding


def _dependent_endpoint(probe: ContainerProbe, facts: Facts) -> Finding | None:
    """Report an endpoint of a recognised server that can fail while the process is alive."""
    server = recognised(probe.container, facts)
    asked = probe.typed.http_get
    path = "" if asked is None else asked.path.partition("?")[0]
    if server is None or asked is None or not path or asked.host:
        return None
    dependency = dependency_of(server.preset, path)
    if dependency is None:
        return None
    and_readiness = f", and {path} for readiness" if path == server.preset.ready_path else ""
    return Finding(
        probe.at("httpGet", "path"),
        f"The {probe.name} sends GET {path} to {server.name}, which checks {dependency}. If that fails, "
        "the kubelet restarts a server that is alive.",
        f"For liveness, use {liveness_advice(probe.container, server)} instead{and_readiness}.",
        Certainty.UNDECIDED,
    )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
