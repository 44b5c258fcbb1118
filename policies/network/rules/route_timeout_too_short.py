"""route-timeout-too-short: gateways that give up before a model server has answered."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.facts import WholeObjects
from policies.core.services import selects
from policies.kube.objects.services import Service
from policies.kube.pods import Role
from policies.network.gateways import routed_services
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    cluster, services = facts.cluster, facts.objects(Service)
    if not isinstance(cluster, WholeObjects) or not services or target.has_controller:
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            long = None if server is None else server.preset.long_answers
            if server is None or long is None:
                continue
            own = {each.name for each in services if selects(each, template.typed.metadata.labels)}
            for routed in routed_services(cluster, facts.namespace):
                if routed.service not in own or routed.seconds > long.seconds:
                    continue
                default = f", the default of {routed.gateway.name}" if routed.is_default else ""
                streams = "" if routed.gateway.whole else " if it is not streamed"
                yield Finding(
                    template.at(container),
                    f"{routed.route} ends requests to Service {routed.service} after {routed.seconds:g} "
                    f"s{default}. A normal answer of {server.name} may take {long.seconds} s or "
                    f"longer{streams}: the client gets 504, and the server computes on.",
                    "Set the route's timeout to 600 s or more"
                    + (f" ({routed.gateway.annotations[0]})." if routed.gateway.annotations else "."),
                )
                break


RULE = rule(__name__, check)
