"""tcp-probe: probes for an open port although a health endpoint is known."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.health import known_health
from policies.probes.probe import LIVENESS, READINESS, ContainerProbe, probes
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    reported: set[str] = set()
    for probe in probes(target, LIVENESS, READINESS):
        container = probe.template.at(probe.container)
        if container in reported or probe.typed.tcp_socket is None:
            continue
        if not probe.is_user_written and not _is_early(probe, facts):
            continue
        health = known_health(probe.template.view, probe.container, facts)
        if health is None:
            continue
        known, source = health.ready, health.ready_source
        if probe.field == LIVENESS:
            known, source = health.live, health.live_source
        if not known or "tcpSocket" in known:
            continue
        reported.add(container)  # one finding is enough for two such probes
        whose = f"The {source}" if source is not None and source.is_preset else "An annotation"
        if not probe.is_user_written:
            yield Finding(
                container,
                "The readinessProbe that KServe adds checks only for an open port, but the server opens it "
                f"before its models are loaded. {whose} gives a health endpoint.",
                f"Add a readinessProbe with {_endpoint(known)}.",
            )
            continue
        yield Finding(
            probe.at("tcpSocket"),
            f"The {probe.name} checks only for an open port, which can be open while the model is not "
            f"loaded or the server hangs. {whose} gives a health endpoint.",
            f"Use {_endpoint(known)} instead, or remove the probe so that the webhook adds the right one.",
        )


def _is_early(probe: ContainerProbe, facts: Facts) -> bool:
    """Whether a readinessProbe that an operator adds passes before the models are loaded."""
    server = recognised(probe.container, facts) if probe.field == READINESS else None
    return server is not None and bool(server.preset.opens_early)


def _endpoint(handler: dict[str, dict[str, object]]) -> str:
    if "grpc" in handler:
        return f"grpc on port {handler['grpc'].get('port')}"
    action = handler.get("httpGet", {})
    return f"GET {action.get('path')} on port {action.get('port')}"


RULE = rule(__name__, check, requires=(PodFeature.TCP,))
