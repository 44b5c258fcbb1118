"""job-server-blocks-completion: Jobs that never end because a model server beside the client doesn't."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.target import Target
from policies.jobs.sidecars import is_of_a_job, may_end, stops_another
from policies.kube.pods import Role
from policies.probes.serving import StandardProbes, recognised


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    settings = facts.settings(StandardProbes)
    for template in target.templates:
        if not is_of_a_job(template):
            continue
        mains = list(template.containers(Role.MAIN))
        servers = {each.name: server for each in mains if (server := recognised(each, settings))}
        clients = [each for each in mains if each.name not in servers]
        if not clients:
            continue
        stopped = any(stops_another(client) for client in clients)
        for container in mains:
            if container.name in servers:
                yield Finding(
                    template.at(container),
                    f"Container {container.name} is a model server ({servers[container.name].name}) and goes "
                    "on when its client is done: the Job is not complete before all its containers are.",
                    "Make it a native sidecar: move it to initContainers with restartPolicy: Always.",
                    Certainty.LIKELY if stopped or may_end(container) else Certainty.SURE,
                )


RULE = rule(__name__, check)
