"""tcp-probe: probes that ask for an open port where a health endpoint is known."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.needs import Need
from policies.core.target import Target
from policies.kube.json import mapping
from policies.probes.health import known_health
from policies.probes.probe import LIVENESS, READINESS, probes


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS, READINESS):
        if not mapping(probe.spec, "tcpSocket"):
            continue
        health = known_health(probe.template.pod, probe.container, facts)
        known = health and (health.live if probe.field == LIVENESS else health.ready)
        if not health or not known or "tcpSocket" in known:
            continue
        yield Finding(
            probe.at("tcpSocket"),
            f"The {probe.name} asks for an open port, but {_known_by(health.source)} tells a health "
            "endpoint: a port can be open while the model isn't loaded or the server hangs.",
            f"Ask {_endpoint(known)} instead, or remove the probe: the webhook then adds the right one.",
        )


def _known_by(source: str) -> str:
    return f"the {source}" if source.startswith("preset") else "an annotation"


def _endpoint(handler: dict[str, dict[str, object]]) -> str:
    if "grpc" in handler:
        return f"grpc on port {handler['grpc'].get('port')}"
    action = handler.get("httpGet", {})
    return f"GET {action.get('path')} on port {action.get('port')}"


RULE = rule(__name__, check, needs=(Need.TCP,))
