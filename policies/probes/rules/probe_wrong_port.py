"""probe-wrong-port: probes that the recognised server does not answer on that port, or not without TLS."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.pods import port_number
from policies.probes.health import needs_tls, right_port, served_port
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes
from policies.probes.serving import recognised
from policies.probes.standard_probes import looks_injected


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        template, container = probe.template, probe.container
        if "tcpSocket" in probe.spec and not probe.is_user_written:
            if probe.field != READINESS or looks_injected(template.view, container, READINESS, facts):
                continue  # a copy of the user's livenessProbe
            port, server = served_port(template.view, container, facts), recognised(container, facts)
            asked = probe.spec["tcpSocket"]["port"]
            if port in (None, asked) or server is None or container.tcp_ports:
                continue
            yield Finding(
                template.at(container),
                f"Container {container.name} declares no port, so KServe adds a readiness probe on port "
                f"{asked}, but {server.name} listens on port {port}. The pod never becomes ready.",
                f"Declare the port: ports: [{{containerPort: {port}}}].",
            )
            continue
        if needs_tls(template.view, container, probe.spec, facts):
            get = probe.spec["httpGet"]
            yield Finding(
                probe.at("httpGet"),
                f"The {probe.name} asks port {get['port']} with HTTP, but the server speaks HTTPS there. "
                "The probe always fails.",
                "Set scheme: HTTPS in httpGet. The kubelet does not verify the certificate.",
            )
            continue
        port, server = right_port(template.view, container, probe.spec, facts), recognised(container, facts)
        if port is None or server is None:
            continue
        asked = port_number(container.typed, probe.spec["httpGet"]["port"])
        path = probe.spec["httpGet"].get("path") or ""
        yield Finding(
            probe.at("httpGet", "port"),
            f"The {probe.name} sends GET {path} to port {asked}, but {server.name} answers it on port "
            f"{port}. The probe always fails.",
            f"Use port {port}.",
        )


RULE = rule(__name__, check)
