"""service-link-clash: Services whose name sets a variable that a server reads."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.objects.services import Service
from policies.kube.pods import Role
from policies.probes.recognition import Server
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
            for variable in _read(server) if server is not None else ():
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


def _read(server: Server) -> Iterator[str]:
    """The variables that a server reads and that the container does not set."""
    preset = server.preset
    names = [
        each.name
        for each in preset.link_variables
        if not server.has_option(*each.unless_flags)
        if not each.with_env or any(name in server.variables for name in each.with_env)
    ]
    if not server.has_option(*preset.port_flags):
        names += [name for name in preset.port_env if name.endswith("_PORT")]
    return (name for name in dict.fromkeys(names) if name not in server.variables)


RULE = rule(__name__, check)
