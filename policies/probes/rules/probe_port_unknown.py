"""probe-port-unknown: probes on a named port that the container does not declare."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.probes.probe import LIVENESS, READINESS, STARTUP, ContainerProbe, written_probes

_CONSEQUENCE = {
    LIVENESS: "the kubelet can't send the probe and never restarts a hung container",
    READINESS: "the kubelet can't send the probe, and the pod never becomes ready",
    STARTUP: "the kubelet can't send the probe, and the pod neither starts nor restarts",
}


def check(target: Target, facts: Facts) -> Findings:
    for probe in written_probes(target, STARTUP, READINESS, LIVENESS):
        if not probe.template.is_as_written:
            continue
        for handler, action in (("httpGet", probe.typed.http_get), ("tcpSocket", probe.typed.tcp_socket)):
            port = None if action is None else action.port
            if isinstance(port, str) and port and not port.isdigit() and port not in _names(probe):
                yield _finding(probe, handler, port)


def _names(probe: ContainerProbe) -> list[str]:
    return [port.name for port in probe.container.typed.ports]


def _finding(probe: ContainerProbe, handler: str, port: str) -> Finding:
    known = [name for name in _names(probe) if name]
    other = _container_with(probe.template, port)
    where = f" (only container {other} has one)" if other else ""
    use = (
        f"Use the port's number, or one of the names {', '.join(known[:4])}"
        if known
        else "Use the port's number"
    )
    return Finding(
        probe.at(handler, "port"),
        f"The {probe.name} uses port {port}, but no port of this container has that name{where}: "
        f"{_CONSEQUENCE[probe.field]}.",
        f"{use}, or give the name to a port of container {probe.container.name}.",
        Certainty.LIKELY if probe.field == LIVENESS else Certainty.CERTAIN,
    )


def _container_with(template: PodTemplate, port: str) -> str:
    return next(
        (
            container.name
            for container in template.containers()
            if any(each.name == port for each in container.typed.ports)
        ),
        "",
    )


RULE = rule(__name__, check, requires=(PodFeature.PROBE,))
