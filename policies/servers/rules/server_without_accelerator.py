"""server-without-accelerator: images that do not start without a GPU, in pods that request none."""

from __future__ import annotations

from policies.accelerators.requests import asks_for_devices, wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.images import image_matches
from policies.kube.pods import Role
from policies.probes.server_facts import Needs
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if not template.has_own_volumes:
            continue
        if template.is_ray or template.typed.spec.runtime_class_name:
            continue  # a runtime may give all GPUs of the node to each container
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            needs = None if server is None else server.preset.needs
            if server is None or needs is None:
                continue
            if not image_matches(container.image, needs.images, needs.excluded_images):
                continue
            if server.has_option(*needs.unless_flags) or any(
                name in server.variables for name in needs.unless_env
            ):
                continue
            if server.may_have_option(*needs.unless_flags) or server.has_env_from:
                continue
            if container.typed.security_context.privileged or container.typed.resources.claims:
                continue
            if wants_accelerator(template.view, facts) or asks_for_devices(template.view.typed):
                continue
            yield Finding(
                template.at(container, "resources"),
                f"Container {container.name} runs {server.name} from a GPU image but requests no GPU. "
                f"Unless its node gives GPUs to every container, {_result(needs)}. On such a node, it "
                "shares them with pods that request them.",
                "Request GPUs in resources.limits, or use the server's CPU image.",
            )


def _result(needs: Needs) -> str:
    if needs.falls_back:
        return "it computes on the CPU, many times slower"
    return f"it ends with an error{f' ({needs.error})' if needs.error else ''}"


RULE = rule(__name__, check)
