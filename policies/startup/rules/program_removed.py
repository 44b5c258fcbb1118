"""program-removed: containers that install a package and run a program that its newest version lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from policies.commands import Command, is_python
from policies.containers.commands import container_command
from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.settings import Field, Model
from policies.kube.images import numbers_of_tag, repository_and_tag
from policies.kube.pods import Role


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


_IMAGES: Final = frozenset({"python", "library/python", "docker/library/python"})
"""Images of Python without further packages."""
_PACKAGE: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[a-z0-9_,-]*\])?")
"""The name of a package without a version, with or without extras."""
_OPTIONS: Final = frozenset(
    {
        "-q",
        "-qq",
        "--quiet",
        "-U",
        "--upgrade",
        "--user",
        "--no-cache-dir",
        "--no-input",
        "--root-user-action=ignore",
    }
)
"""Options of pip that leave it the choice of the version, and its place."""


class Removed(Model):
    """An entry of `removed_programs.yaml`."""

    program: str
    package: str = Field(description="as pip names it, with underscores")
    since: str = Field(description="the first version without the program")
    python: str = Field(description="the oldest version of Python that gets such a version")
    instead: str = Field(description="what to run instead")
    next_to: tuple[str, ...] = Field((), description="packages that require no older version of it")
    source: str


_removed = data.entries(Removed, "policies.startup", "removed_programs.yaml")


def removed_programs(image: str, commands: Sequence[Command]) -> Iterator[Removed]:
    """The programs that a container with an image of Python runs after pip has installed a version of their
    package without them."""
    name, tag = repository_and_tag(image)
    if name not in _IMAGES:
        return
    for each in _removed():
        version = numbers_of_tag(tag)
        if version and version < numbers_of_tag(each.python):
            continue
        run = [command for command in commands if command.name == each.program]
        if not run or any(command.conditional or command.forgiven for command in run):
            continue
        before = commands[: commands.index(run[0])]
        installs = [packages for command in before if (packages := _installed(command)) is not None]
        if installs and all(_is_newest(each, packages) for packages in installs):
            yield each


def _installed(command: Command) -> list[str] | None:
    """The packages that a command installs with pip; one empty name if they, or their versions, are
    unknown. None if it installs none."""
    words = (
        command.argv[3:]
        if is_python(command.name) and command.argv[1:3] == ("-m", "pip")
        else command.argv[1:]
    )
    if not (command.name in ("pip", "pip3") or words != command.argv[1:]) or words[:1] != ("install",):
        return None
    given = [word for word in words[1:] if word not in _OPTIONS]
    found = [_PACKAGE.fullmatch(word) for word in given]
    return [match[1].lower().replace("-", "_") if match and match[1][0] != "-" else "" for match in found]


def _is_newest(each: Removed, packages: list[str]) -> bool:
    """Whether one command installs the package in its newest version, or only others."""
    known = {each.package, "pip", *(name.replace("-", "_") for name in each.next_to)}
    return bool(packages) and set(packages) <= known


RULE = rule(__name__, check)
