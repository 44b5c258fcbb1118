"""route-body-too-small: gateways that refuse requests of a usual size."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.pods import Role
from policies.network.backends import backends_of
from policies.network.gateways import with_body_limit
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None or target.has_controller:
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            large = None if server is None else server.preset.large_requests
            if server is None or large is None:
                continue
            for each in with_body_limit(cluster, facts.namespace, backends_of(template, facts)):
                if each.limit >= large.bytes:
                    continue
                default = f", the default of {each.gateway.name}" if each.is_default else ""
                yield Finding(
                    template.at(container),
                    f"{each.route} refuses requests to {each.backend} above "
                    f"{_sized(int(each.limit))}{default}, with status 413. {large.what} that "
                    f"{server.name} gets are often larger.",
                    f"Set {each.gateway.setting} to the largest request that you want to accept.",
                )
                break


def _sized(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


RULE = rule(__name__, check)
