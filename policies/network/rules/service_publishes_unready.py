"""service-publishes-unready: Services that send requests to model servers which load or stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.listing import TypedIndex
from policies.core.reasons import in_words
from policies.core.services import selects
from policies.kube.objects.services import Service
from policies.kube.pods import Role
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    known = facts.objects(Service)
    services = list(known.by(_PUBLISHING, True)) if known else []
    for template in target.templates if services else ():
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            start = None if server is None else server.preset.expected_start
            labels = template.typed.metadata.labels
            name = next((each.name for each in services if selects(each, labels)), "")
            if server is not None and start and name:
                yield Finding(
                    template.at(container),
                    f"Service {name} publishes pods that aren't ready. It sends requests to {server.name} "
                    f"while it loads, which usually takes {in_words(start)}, and while it stops.",
                    f"Remove publishNotReadyAddresses from Service {name}, and use a separate headless "
                    "Service for peers.",
                )


def _publishing(service: Service) -> Iterator[bool]:
    if service.spec.publish_not_ready_addresses and service.spec.cluster_ip != "None":
        yield True


_PUBLISHING: Final = TypedIndex(Service, _publishing)
"""The Services with an address that also send to pods that are not ready. Each is read once, not in every
review."""


RULE = rule(__name__, check)
