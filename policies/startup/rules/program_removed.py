"""program-removed: containers that install a package and run a program that its newest version lacks."""

from __future__ import annotations

from policies.containers.commands import container_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.pods import Role
from policies.startup.removed_programs import removed_programs


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT, Role.MAIN):
            if "python" not in container.image:
                continue
            if any(each.name.startswith("PIP_") for each in container.typed.env):
                continue  # another index, or a constraint
            for each in removed_programs(container.image, container_command(template, container).commands):
                yield Finding(
                    template.command_path(container),
                    f"Container {container.name} installs the newest {each.package} and runs {each.program}, "
                    f"which it no longer has from version {each.since} on. The container ends with the error "
                    "'not found' at every start.",
                    f"Run {each.instead}, or install {each.package}<{each.since}.",
                    Certainty.LIKELY if container.typed.env_from else Certainty.CERTAIN,
                )


RULE = rule(__name__, check)
