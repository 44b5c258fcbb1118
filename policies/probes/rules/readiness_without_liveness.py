"""readiness-without-liveness: serving containers that leave their Service when they hang, and stay away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.needs import Need
from policies.core.target import Target
from policies.kube.images import repository
from policies.kube.pods import Container
from policies.probes.liveness import what_to_write, without_liveness

_WITHOUT_ON_PURPOSE: Final = frozenset(
    {"vault", "consul", "cassandra", "elasticsearch", "opensearch", "scylla", "cockroach", "etcd"}
)
"""Clustered stores whose vendors leave liveness out: a restart of a member that recovers makes it worse.
Sources: hashicorp/vault-helm and hashicorp/consul-k8s values.yaml, k8ssandra, elastic/helm-charts,
cockroachdb/helm-charts."""


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for path, container in without_liveness(target, facts):
        if container.spec.get("readinessProbe") and not _is_clustered_store(container):
            yield Finding(
                path,
                f"Container {container.name} has a readinessProbe and no livenessProbe: when it hangs, it "
                "leaves its Service and nothing restarts it.",
                what_to_write(container, facts)
                or "Add a livenessProbe on a cheap local endpoint, more patient than the readinessProbe.",
            )


def _is_clustered_store(container: Container) -> bool:
    return repository(container.image).rpartition("/")[2] in _WITHOUT_ON_PURPOSE


RULE = rule(__name__, check, needs=(Need.READINESS,))
