"""probe-wrong-port: probes on a port on which the known server does not answer them."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.json import text
from policies.probes.health import right_port
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes
from policies.probes.recognition import port_number
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        port = right_port(probe.template.pod, probe.container, probe.spec, facts)
        server = recognised(probe.container, facts)
        if port is None or server is None:
            continue
        asked = port_number(probe.container.spec, probe.spec["httpGet"]["port"])
        path = text(probe.spec, "httpGet", "path")
        yield Finding(
            probe.at("httpGet", "port"),
            f"The {probe.name} asks GET {path} on port {asked}, and {server.name} answers that on port "
            f"{port}: it fails although all is well.",
            f"Ask port {port}.",
        )


RULE = rule(__name__, check, requires=(PodFeature.HTTP,))
