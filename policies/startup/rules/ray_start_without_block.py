"""ray-start-without-block: containers that end as soon as Ray has started in the background."""

from __future__ import annotations

from policies.commands import CommandSummary
from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray or template.completes:  # KubeRay writes the command of its own pods
            continue
        for container in template.containers(Role.MAIN):
            if _ends_at_once(container_command(template, container)):
                yield Finding(
                    template.command_path(container),
                    f"Container {container.name} runs `ray start` without --block: the command returns while "
                    "Ray runs in the background, and the container ends and is restarted again and again.",
                    "Add --block.",
                )


def _ends_at_once(summary: CommandSummary) -> bool:
    """Whether `ray start` without --block is the last command of a container."""
    if not summary.commands:
        return False
    last = summary.commands[-1]
    return (
        last.name == "ray"
        and last.argv[1:2] == ("start",)
        and not any(word.startswith("--block") or "$" in word for word in last.argv)
    )


RULE = rule(__name__, check, requires=(PodFeature.COMMAND,))
