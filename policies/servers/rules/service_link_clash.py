"""service-link-clash: Services whose name sets a variable that a server reads."""

from __future__ import annotations

from collections.abc import Iterator

from policies.accelerators.parallelism import on_this_node
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.objects.services import Service
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server, is_since
from policies.probes.server_facts import LinkVariable
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    services = facts.objects(Service)
    if not services:
        return
    for template in target.templates:
        if not template.typed.spec.enable_service_links:
            continue
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            server = recognised(container, facts)
            if any(source.config_map_ref is not None for source in container.typed.env_from):
                continue  # it may set the variable
            for variable in _read(server, container) if server is not None else ():
                name = variable.removesuffix("_PORT").lower().replace("_", "-")
                service = services.named(name)
                if server is None or service is None or not service.has_address:
                    continue
                yield Finding(
                    f"{template.spec_path}.enableServiceLinks",
                    f"For Service {name}, the kubelet sets {variable} to a URL such as tcp://10.0.0.1:8000 "
                    f"in container {container.name}. {server.name} reads a port from this variable, and "
                    "exits with an error.",
                    "Set enableServiceLinks: false, or give the Service another name.",
                )


def _read(server: Server, container: Container) -> Iterator[str]:
    """The variables that a server reads and that the container does not set."""
    preset = server.preset
    names = [each.name for each in preset.link_variables if _reads(server, container, each)]
    if not server.has_option(*preset.port_flags):
        names += [name for name in preset.port_env if name.endswith("_PORT")]
    return (name for name in dict.fromkeys(names) if name not in server.variables)


def _reads(server: Server, container: Container, variable: LinkVariable) -> bool:
    if server.has_option(*variable.unless_flags) or server.has_variable(*variable.unless_env):
        return False
    if variable.with_env and not any(name in server.variables for name in variable.with_env):
        return False
    if variable.several and on_this_node(server) < 2:
        return False
    return not variable.since or is_since(server, container, variable.since)


RULE = rule(__name__, check)
