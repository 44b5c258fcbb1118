"""gpus-unused: servers whose options use fewer GPUs than their container gets."""

from __future__ import annotations

from policies.accelerators.parallelism import devices, on_this_node, runs_only, runs_ray
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray or template.rewritten or template.container_path:
            continue  # the operator may add the options
        for container in template.containers(Role.MAIN):
            available = devices(container)
            server = recognised(container, facts) if available > 1 else None
            known = None if server is None else server.preset.parallelism
            if server is None or known is None or known.takes_all or server.has_env_from:
                continue
            if any(name.endswith(".shared") for name in container.typed.resources.limits):
                continue  # parts of one device
            used = on_this_node(server)
            if not 0 < used < available or not runs_only(container, server) or runs_ray(template):
                continue
            flag = next((factor.flags[0] for factor in known.spread if factor.flags), "")
            raise_it = f"Set {flag} so that all {available} are used, or request" if flag else "Request"
            yield Finding(
                template.at(container, "resources"),
                f"Container {container.name} gets {available} GPUs, but {server.name} uses {used} with its "
                "options. The others are idle, and no other pod can have them.",
                f"{raise_it} {used}.",
            )


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
