"""liveness-gives-up-early: liveness that restarts a busy server."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.reasons import in_words
from policies.kube.json import mapping
from policies.probes.probe import LENIENT, LIVENESS, ContainerProbe, probes
from policies.probes.recognition import Server
from policies.probes.rules.probe_always_passes import always_passes
from policies.probes.serving import recognised

TOO_SOON: Final = 10
"""Seconds. A burst of requests, a garbage collection or the load of an adapter lasts as long."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        server = recognised(probe.container, facts)
        if server is None or probe.failures == 1 or mapping(probe.spec, "tcpSocket"):
            continue  # another rule reports a single failure; the kernel accepts connections
        if always_passes(probe):
            continue
        if probe.give_up > TOO_SOON:
            yield from _before_requests_end(probe, server)
        elif server.preset.loads_model or server.preset.expected_start:
            yield _within_seconds(probe, server)


def _within_seconds(probe: ContainerProbe, server: Server) -> Finding:
    start = server.preset.expected_start
    begins = "loads its model again" if server.preset.loads_model else "starts again"
    takes = f", which usually takes {in_words(start)}" if start else ""
    return Finding(
        probe.at("failureThreshold"),
        f"The {probe.name} gives up after {probe.give_up} s. If answers are slow for that long, as in a "
        f"burst of requests, the kubelet restarts {server.name}, which then {begins}{takes}.",
        f"Allow {LENIENT} s or more (periodSeconds * failureThreshold).",
    )


def _before_requests_end(probe: ContainerProbe, server: Server) -> Findings:
    limit, longest = server.preset.request_limit, server.longest_request
    if limit is None or longest is None or not mapping(probe.spec, "httpGet"):
        return
    if probe.give_up < longest:
        flag = limit.flags[0] if limit.flags else ""
        set_by = f" ({flag})" if flag else ""
        yield Finding(
            probe.at("failureThreshold"),
            f"A request may take {in_words(longest)}{set_by}, and the {probe.name} waits for the same "
            f"workers of {server.name}. It gives up after {in_words(probe.give_up)}, so long requests on all "
            "workers end in a restart.",
            f"Allow more than {longest} s (periodSeconds * failureThreshold), or "
            + (f"lower {flag}." if flag else "use a tcpSocket."),
            Certainty.LIKELY,
        )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
