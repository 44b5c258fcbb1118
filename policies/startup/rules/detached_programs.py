"""Containers whose program goes to the background: they end before it, or do not end with it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from policies.commands import Command, CommandSummary
from policies.containers.commands import container_command
from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.settings import Field, Model
from policies.kube.pods import Container, Role

_OVERWRITES: Final = "ray.io/overwrite-container-cmd"
"""The annotation with which KubeRay leaves the command of its pods as it is."""
_LOOP: Final = re.compile(r"\bdone\b[^\n;]{0,200}\s*\Z")
"""The end of a loop at the end of a script."""
_WAITERS: Final = frozenset({"sleep", "tail", "wait"})


def daemons(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray:
            continue
        then = "the pod completes without it" if template.completes else "the kubelet restarts it forever"
        for container in template.containers(Role.MAIN):
            if not container.typed.command:
                continue  # the image's entrypoint may go on after it
            summary = container_command(template, container)
            last = summary.commands[-1] if summary.commands else None
            if last is None or last.conditional or summary.undecidable:
                continue
            if any(map(_LOOP.search, container.typed.argv)):
                continue  # it may run the program again
            server = _server_behind(summary.commands)
            if server and not template.completes and not container.spec.get("tty"):
                yield Finding(
                    template.command_path(container),
                    f"Container {container.name} sends `{server}` to the background, and its last command, "
                    f"`{last.subcommand}`, returns. The container ends with its script and stops the "
                    f"server, and {then}.",
                    "End the script with `wait`.",
                )
            variables = {each.name for each in container.typed.env}
            advice, by_variable = way_to_stay(last, variables) or ("", False)
            mounts = container.typed.volume_mounts
            if not advice or (by_variable and any("conf" in each.mount_path for each in mounts)):
                continue
            yield Finding(
                template.command_path(container),
                f"Container {container.name} runs {last.name}, which goes to the background and returns. The "
                f"container ends with its script and stops the program, and {then}.",
                f"Keep {last.name} in the foreground: {advice}.",
                # A file of variables or the image may set one that keeps it in the foreground.
                Certainty.LIKELY if by_variable or container.typed.env_from else Certainty.CERTAIN,
            )


def ray(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        own = target.annotations_at(template).get(_OVERWRITES) == "true"
        if template.completes:
            continue
        for container in template.containers(Role.MAIN):
            if template.is_ray and not own and not _starts_ray(container):
                continue  # KubeRay writes the command of its own pods
            last = _last(container_command(template, container))
            if last is None:
                continue
            if not last:
                yield Finding(
                    template.command_path(container),
                    f"Container {container.name} runs `ray start` without --block. The command returns "
                    "while Ray runs in the background, so the container ends and is restarted again and "
                    "again.",
                    "Add --block.",
                )
            elif container.typed.liveness_probe is None:
                yield Finding(
                    template.command_path(container),
                    f"Container {container.name} runs `ray start` without --block, then `{last}`. When "
                    "Ray's processes end, after a failure or the loss of the head, the container keeps "
                    "running and the kubelet doesn't restart it.",
                    f"Add --block and remove `{last}`.",
                    Certainty.LIKELY,
                )


def _starts_ray(container: Container) -> bool:
    """Whether KubeRay leaves the command as it is, because it starts Ray (`BuildPod` in
    ray-operator/controllers/ray/common/pod.go of KubeRay 1.0 to 1.6)."""
    return container.index == 0 and "ray start" in " ".join(container.typed.argv)


def _last(summary: CommandSummary) -> str | None:
    """The program that keeps a container running after `ray start` without --block, empty if there is none;
    None for other commands."""
    if not summary.commands:
        return None
    *before, last = summary.commands
    if _starts_in_background(last):
        return ""
    if last.name in _WAITERS and any(map(_starts_in_background, before)):
        return last.name
    return None


def _starts_in_background(command: Command) -> bool:
    return (
        command.name == "ray"
        and command.argv[1:2] == ("start",)
        and not any(word.startswith(("--block", "$")) for word in command.argv)
    )


class Daemon(Model):
    """An entry of `daemons.yaml`."""

    programs: tuple[str, ...] = Field(min_length=1, description="in lower case")
    detaches: tuple[str, ...] = Field((), description="words, one of which it needs to go to the background")
    client_of: str = Field(
        "", description="the server that it asks: the entry is about scripts that end with the client"
    )
    stays: tuple[str, ...] = Field(
        (), description="options with which it stays in the foreground, or prints something"
    )
    stays_variables: tuple[str, ...] = Field((), description="variables with which it does")
    stay: str = Field("", description="how it stays, in a word or two; by default with an option of `stays`")
    source: str = Field(pattern=r"^https://")


_daemons = data.entries(Daemon, "policies.startup", "daemons.yaml")


def way_to_stay(command: Command, variables: Collection[str]) -> tuple[str, bool] | None:
    """How to keep the program of a command in the foreground, as a clause, and whether by a variable; None if
    it stays there, or if a word is known only in the running container. `variables`: the names of those that
    the container sets."""
    words = command.argv[1:]
    if any("$" in word for word in words):
        return None
    set_ = {*variables, *(name for name, _ in command.variables)}
    for each in _daemons():
        detaching = next((word for word in words if word in each.detaches), None)
        if (
            command.name in each.programs
            and not each.client_of
            and (detaching is not None or not each.detaches)
            and not any(_has(words, option) for option in each.stays)
            and set_.isdisjoint(each.stays_variables)
        ):
            option = f"add {each.stays[0]}" if each.stays else f"remove {detaching}"
            return each.stay or option, bool(each.stays_variables)
    return None


def _server_behind(commands: Sequence[Command]) -> str:
    """The server that a script has sent to the background when its last command, a client, returns."""
    *before, last = commands
    for each in _daemons():
        served = any(other.forgiven and other.subcommand == each.client_of for other in before)
        if served and last.name in each.programs and not set(last.argv[1:2]).isdisjoint(each.detaches):
            return each.client_of
    return ""


def _has(words: Collection[str], option: str) -> bool:
    """Whether an option is given, if it is a letter also among others: `-De`."""
    if len(option) != len("-D"):
        return option in words
    return any(word[:1] == "-" and word[:2] != "--" and option[1] in word for word in words)


RULES = (
    rule(__name__, daemons, requires=(PodFeature.COMMAND,), name="program-detaches"),
    rule(__name__, ray, requires=(PodFeature.COMMAND,), name="ray-start-without-block"),
)
