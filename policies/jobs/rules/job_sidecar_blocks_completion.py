"""job-sidecar-blocks-completion: Jobs that never end because a sidecar doesn't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.target import PodTemplate, Target
from policies.core.thresholds import Thresholds
from policies.jobs.sidecars import is_of_a_job, may_end, stops_another
from policies.kube.pods import Container, Role

NEVER_ENDING: Final = {
    "proxyv2": "Istio's proxy",
    "linkerd/proxy": "Linkerd's proxy",
    "linkerd-io/proxy": "Linkerd's proxy",
    "consul-dataplane": "Consul's proxy",
    "envoy": "Envoy",
    "envoy-distroless": "Envoy",
    "daprd": "Dapr's sidecar",
    "cloud-sql-proxy": "the Cloud SQL proxy",
    "gce-proxy": "the Cloud SQL proxy",
    "alloydb-auth-proxy": "the AlloyDB proxy",
    "oauth2-proxy": "oauth2-proxy",
    "kube-rbac-proxy": "kube-rbac-proxy",
    "tailscale/tailscale": "Tailscale",
    "pgbouncer": "PgBouncer",
    "fluent-bit": "Fluent Bit",
    "aws-for-fluent-bit": "Fluent Bit",
    "fluentd": "Fluentd",
    "filebeat": "Filebeat",
    "promtail": "Promtail",
    "timberio/vector": "Vector",
    "telegraf": "Telegraf",
    "opentelemetry-collector": "the OpenTelemetry collector",
    "opentelemetry-collector-contrib": "the OpenTelemetry collector",
    "opentelemetry-collector-k8s": "the OpenTelemetry collector",
    "aws-otel-collector": "the OpenTelemetry collector",
    "aws-xray-daemon": "the X-Ray daemon",
    "cloudwatch-agent": "the CloudWatch agent",
    "jaeger-agent": "the Jaeger agent",
    "grafana/agent": "the Grafana agent",
    "grafana/alloy": "Grafana Alloy",
    "datadog/agent": "the Datadog agent",
    "datadoghq/agent": "the Datadog agent",
    "pushgateway": "the Pushgateway",
    "statsd-exporter": "the StatsD exporter",
    "node-exporter": "the node exporter",
    "dcgm-exporter": "the DCGM exporter",
}
"""Images that run until something stops them, by the end of their repository."""
NAMES: Final = {
    "istio-proxy": "Istio's proxy",
    "linkerd-proxy": "Linkerd's proxy",
    "cloud-sql-proxy": "the Cloud SQL proxy",
    "cloudsql-proxy": "the Cloud SQL proxy",
    "daprd": "Dapr's sidecar",
}
"""Container names that only these programs have, for images that were copied to a registry of one's own."""


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        if not is_of_a_job(template):
            continue
        mains = list(template.containers(Role.MAIN))
        known = {container.name: program for container in mains if (program := _program(container, facts))}
        others = [container for container in mains if container.name not in known]
        if not others:
            continue
        stopped = any(stops_another(container) for container in others)
        for container in mains:
            if container.name in known:
                yield _finding(template, container, known[container.name], stopped or may_end(container))


def _program(container: Container, facts: Facts) -> str | None:
    """The never-ending program in a container, in words; None where it is none that is known."""
    if container.name in NAMES:
        return NAMES[container.name]
    head, slash, last = container.image.partition("@")[0].rpartition("/")
    repository = f"/{head}{slash}{last.partition(':')[0]}"
    further = {image: image for image in facts.settings(Thresholds).endless_sidecars}
    known = {**NEVER_ENDING, **further}.items()
    return next((name for image, name in known if repository.endswith(f"/{image}")), None)


def _finding(template: PodTemplate, container: Container, program: str, stopped: bool) -> Finding:
    return Finding(
        template.at(container),
        f"Container {container.name} ({program}) runs until something stops it, and the Job is not complete "
        "before all its containers are.",
        "Make it a native sidecar: move it to initContainers with restartPolicy: Always.",
        Certainty.LIKELY if stopped else Certainty.SURE,
    )


RULE = rule(__name__, check)
