"""shell-ignores-words: words after the script of `sh -c` that the script does not use, commands that do not
begin with a program, and words of bash in a script for dash."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final

from policies.commands import SHELLS, CommandSummary, shell_operands
from policies.containers.commands import container_command, exec_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.images import repository_and_tag
from policies.kube.names import shortened
from policies.kube.pods import Container

_PARAMETERS: Final = re.compile(
    r"\$\{?[!#]?[0-9@*#]|\b(?:shift|getopts|source|eval)\b|(?:^|[\s;&|(])\.\s"
    r"|\b(?:for|select)\s+\w+\s*(?:;|do\b|$)|\bBASH_ARG",
    re.MULTILINE,
)
"""Signs that a script uses its parameters, or hands them to another script."""
_NAMES: Final = SHELLS | {"", "-", "--", "_"}
"""Words that people write for `$0`, the name of the script in its messages."""
_LINE: Final = re.compile(r"(?:[A-Za-z_][\w.+-]*\s+\S|/[\w./+-]*\s+[-/]).*", re.DOTALL)
"""A whole command line: a program's name and more, or its path with an option or a path behind it. Other
paths may contain a space."""
_TEMPLATED: Final = re.compile(r"\$[({]|\{\{|\\")
"""Signs of a word that something else completes, or of Windows."""
_MAX_SHOWN: Final = 60
_OLD: Final = re.compile(
    r"(?:^|[-_.])(?:(?:buster|bullseye|bookworm|bionic|focal|jammy|noble)(?![a-z]|[-_]?loss)"
    r"|debian-?1[0-2](?![0-9])|ubuntu-?(?:18|20|22|24)\.?04(?![0-9]))"
    r"|^(?:debian:1[0-2]|ubuntu:(?:18|20|22|24)\.04)(?![0-9])",
    re.ASCII,
)
"""Tags of Debian up to 12 and Ubuntu up to 24.04. Later ones have a dash with pipefail:
https://github.com/koalaman/shellcheck/issues/2555, https://github.com/fwdekker/mommy/pull/165."""
_DASH: Final = re.compile(r"(?:^|[-_.])(?:debian|ubuntu|trixie)(?![a-z])", re.ASCII)
"""Parts of the tags of other images with Debian or Ubuntu, whose sh is dash:
https://wiki.ubuntu.com/DashAsBinSh, https://wiki.debian.org/Shell."""
_DEBIAN: Final = ("debian", "ubuntu", "python")
"""Images of Docker Hub that have these unless their tag names another system."""
_OTHER: Final = re.compile(r"alpine|windows|nanoserver|busybox|ubi|rhel")
_ELSEWHERE: Final = re.compile(r"\b(?:su|runuser|gosu|doas|sudo|ssh)\s|\(\s*set\s")
"""Programs that start the shell of a user, and a subshell that tries what set accepts."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers():
            # KubeRay joins the words of its container, and so may operators that are not known.
            is_run = not (template.is_ray or template.rewritten or template.by_shape)
            for handler, words in _commands(container):
                at = (*handler, "exec", "command")
                path = template.at(container, ".".join(at)) if handler else template.command_path(container)
                if is_run and words and (wrong := _no_program(words[0])):
                    yield Finding(path, *wrong)
                    continue
                if is_run and posixpath.basename(words[0] if words else "") == "sh" and _is_debian(container):
                    summary = (
                        exec_command(template, container, *handler)
                        if handler
                        else container_command(template, container)
                    )
                    if not any(map(_ELSEWHERE.search, words)):
                        yield from _of_bash(path, summary, has_pipefail=not _is_old(container))
                ignored = _ignored(words)
                if ignored:
                    script, further = ignored
                    if any(f"$({each.name})" in script for each in container.typed.env):
                        continue  # the value may use them
                    yield Finding(
                        path,
                        f"The shell runs only the script {_shown(script)}. The words after it "
                        f"({_shown(' '.join(further))}) are its parameters, which it doesn't use.",
                        "Write the whole script as one word, or leave out the shell.",
                    )


def _no_program(word: str) -> tuple[str, str] | None:
    """Why the first word of a command is no program, and what to write instead; None if it may be one."""
    if _TEMPLATED.search(word):
        return None
    fails = "No file has that name, so the container runtime reports that it does not exist."
    if word.startswith("-"):
        return (
            f"The first word is the option {_shown(word)}, where the program must be. {fails}",
            "Write the options into args, or put the program first.",
        )
    if _LINE.fullmatch(word):
        return (
            f"The first word is a whole command line ({_shown(word)}). {fails}",
            "Write each word as an item of its own, or run the line with [sh, -c, …].",
        )
    return None


def _commands(container: Container) -> Iterator[tuple[tuple[str, ...], Sequence[str]]]:
    """The commands of a container, each with the path of its handler; empty for the container's own."""
    typed = container.typed
    if typed.command:
        yield (), typed.argv
    for name, probe in (("liveness", typed.liveness_probe), ("readiness", typed.readiness_probe)):
        # probe-always-passes reports the script exec.
        if probe is not None and probe.exec is not None and probe.exec.command[2:3] != ("exec",):
            yield (f"{name}Probe",), probe.exec.command
    if typed.startup_probe is not None and typed.startup_probe.exec is not None:
        yield ("startupProbe",), typed.startup_probe.exec.command
    hooks = typed.lifecycle
    if hooks is None:
        return
    for name, hook in (("postStart", hooks.post_start), ("preStop", hooks.pre_stop)):
        if hook is not None and hook.exec is not None:
            yield ("lifecycle", name), hook.exec.command


def _is_debian(container: Container) -> bool:
    """Whether the image of a container has dash as sh, by its name."""
    tag = repository_and_tag(container.image)[1]
    named = _DASH.search(tag) is not None or _official(container) in _DEBIAN or _is_old(container)
    return named and _OTHER.search(tag) is None


def _is_old(container: Container) -> bool:
    """Whether the dash of an image has no option pipefail, by its name."""
    tag = repository_and_tag(container.image)[1]
    return _OLD.search(tag) is not None or _OLD.search(f"{_official(container)}:{tag}") is not None


def _official(container: Container) -> str:
    """The name of an official image of Docker Hub or a copy of it; empty for others."""
    name, image = repository_and_tag(container.image)[0], container.image
    ours = "/" not in image or image.startswith("docker.io/") or name.startswith("library/")
    return name.removeprefix("library/") if ours else ""


def _of_bash(path: str, summary: CommandSummary, *, has_pipefail: bool) -> Findings:
    """The first word that only other shells know, in a script that dash certainly reads."""
    if any(command.name in SHELLS - {"sh"} for command in summary.commands):
        return
    for command in summary.commands:
        pipefail = not has_pipefail and command.name == "set" and "pipefail" in command.argv
        if (command.name == "source" or pipefail) and not command.conditional and not command.forgiven:
            yield Finding(
                path,
                f"The script is for sh, which is dash in images of Debian and Ubuntu, and dash "
                f"{'has no option pipefail and ends the script' if pipefail else 'has no command source'}.",
                "Run it with bash" + ("." if pipefail else ", or write `.` instead of source."),
                Certainty.LIKELY,  # the image may have another sh
            )
            return


def _ignored(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The script of a shell and the words after it, if it does not use these."""
    if len(words) < 4 or posixpath.basename(words[0]) not in SHELLS:
        return None
    has_script, operands = shell_operands(words[1:])
    if not has_script or len(operands) < 2:
        return None
    script, *further = operands
    if (len(further) == 1 and _is_name(script, further[0])) or _PARAMETERS.search(script):
        return None
    return script, further


def _is_name(script: str, word: str) -> bool:
    """Whether a single word may be meant as the name of its script."""
    if posixpath.basename(word) in _NAMES:
        return True
    return len(script.split()) > 1 and not word.startswith("-") and not any(map(str.isspace, word))


def _shown(text: str) -> str:
    return shortened(" ".join(text.split()), _MAX_SHOWN)


RULE = rule(__name__, check)
