"""route-timeout-too-short: gateways that give up before a model server has answered."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.pods import Role
from policies.network.backends import backends_of
from policies.network.gateways import routed
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None or target.has_controller:
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            long = None if server is None else server.preset.long_answers
            if server is None or long is None:
                continue
            own = backends_of(template, facts)
            for each in routed(cluster, facts.namespace, own):
                if each.limit > long.seconds:
                    continue
                default = f", the default of {each.gateway.name}" if each.is_default else ""
                streams = "" if each.gateway.whole else " if it is not streamed"
                yield Finding(
                    template.at(container),
                    f"{each.route} ends requests to {each.backend} after {each.limit:g} s{default}. A "
                    f"normal answer of {server.name} may take {long.seconds} s or longer{streams}. The "
                    "client then gets status 504, and the server keeps computing.",
                    f"Set the route's timeout to 600 s or more ({each.gateway.setting}).",
                )
                break


RULE = rule(__name__, check)
