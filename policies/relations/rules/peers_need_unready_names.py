"""peers-need-unready-names: groups whose members need each other's names before they are ready."""

from __future__ import annotations

import re
from collections.abc import Iterator

from policies.containers.programs import option, programs
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.services import hides_unready
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.names import is_subdomain
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.probes.serving import recognised

_names = data.names("policies.relations", "group_joins.yaml")


def check(target: Target, facts: Facts) -> Findings:
    service = target.read(StatefulSet).spec.service_name
    if target.replicas < 2 or not is_subdomain(service) or not hides_unready(service, facts):
        return
    if not is_subdomain(target.name):
        return  # the API server refuses it, and a pattern of a long name is costly
    peer = re.compile(rf"(?<![\w.-]){re.escape(target.name)}-\d{{1,9}}\.{re.escape(service)}(?![\w-])")
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            if container.typed.readiness_probe is None or recognised(container, facts) is not None:
                continue  # group-never-forms reports model servers
            found = ((path, peer.search(value)) for path, value in _addresses(template, container))
            path, name = next(((path, name) for path, name in found if name), ("", None))
            if name is not None:
                yield Finding(
                    path,
                    f"Container {container.name} joins its group at {name[0]} before it's ready, but "
                    f"Service {service} publishes a pod's name only when the pod is ready. The group never "
                    "forms.",
                    f"Set publishNotReadyAddresses: true on Service {service}.",
                )


def _addresses(template: PodTemplate, container: Container) -> Iterator[tuple[str, str]]:
    """The addresses at which a container's programs join their group, with their field paths."""
    for index, variable in enumerate(container.typed.env):
        if variable.name in _names():
            yield template.at(container, f"env[{index}]", "value"), variable.value
    for program in programs(container):
        for name in _names():
            if value := option(program, name):
                yield template.command_path(container), value


RULE = rule(__name__, check, (STATEFUL_SET,), requires=(PodFeature.READINESS,))
