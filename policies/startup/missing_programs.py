"""Programs that containers, probes, hooks and waits need, and that a known image lacks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from policies.commands import LOCAL_PROGRAMS, SHELLS, Command
from policies.containers.commands import container_command, exec_command
from policies.core import data
from policies.core.data_directories import is_below
from policies.core.facts import Facts
from policies.core.settings import Field
from policies.core.target import PodTemplate
from policies.kube.images import full_name, glob_matches, repository_and_tag
from policies.kube.pods import Container, Role
from policies.probes.probe import ContainerProbe
from policies.probes.recognition import release
from policies.probes.server_facts import Lacking
from policies.probes.serving import own_preset

_WITH_SHELL: Final = SHELLS | {
    *("sleep", "cat", "test", "true", "echo", "ls", "rm", "cp", "mv", "mkdir", "touch", "chmod", "chown"),
    *("grep", "sed", "kill", "killall", "pgrep", "pkill", "env", "timeout", "curl", "wget", "nc", "nslookup"),
}
"""Programs that an image without a shell lacks, too."""
_PASS_ON: Final = frozenset({"grep", "test", "[", "exit"})
"""Programs next to a missing one that do not make a probe pass."""
_PATH: Final = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin")
_WAIT: Final = re.compile(
    r"\b(?:until|while\s+!)\s+([\w.+-]+)\s((?:(?!\bdo\b)[^\0]){0,500})\bdo\b((?:(?!\bdone\b)[^\0]){0,500})\bdone\b",
    re.ASCII,
)
"""A loop that ends when a program succeeds: its program, the rest of its condition, and its body."""
_ENDS: Final = re.compile(r"\|\||&&|\b(?:break|exit|return|kill)\b")
"""Signs of another way out of a loop."""
_INSTALLERS: Final = frozenset({"apk", "apt", "apt-get", "dnf", "microdnf", "yum"})
"""Programs that install others, also as dependencies."""
_INSTALL_NOTHING: Final = (LOCAL_PROGRAMS - {"exit", "return"}) | {
    *("curl", "kubectl", "mysql", "mysqladmin", "nc", "nslookup", "pg_isready", "ping", "psql", "redis-cli"),
    "wget",
}
"""Programs that bring no others, except by the next ones."""
_FINDS_OTHERS: Final = re.compile(r"PATH=|\beval\b")
_COPIES: Final = frozenset({"cp", "dd", "install", "ln", "mv", "tee"})
_MAY_PASS: Final = re.compile(r"\|\||\b(?:if|elif|until|while|for|command|which|type|hash)\b", re.ASCII)
"""Signs of a script that goes another way without a program."""
_INVERTS: Final = re.compile(
    r"(?:^|\s)(?:!|!=|-ne|-z|if|while|until|grep -[a-uw-z]*v[a-z]*)\s|\bPATH=", re.ASCII
)
"""Signs of a probe that may pass although its program fails, or that finds it elsewhere."""


class Images(Lacking):
    """An entry of `images.yaml`."""

    images: tuple[str, ...] = Field(
        min_length=1, description="globs of their whole names: `docker.io/library/python:*alpine*`"
    )

    @property
    def globs(self) -> tuple[str, ...]:
        """With tags, as a name has one."""
        return tuple(each if ":" in each else f"{each}:*" for each in self.images)


_images = data.entries(Images, __package__, "images.yaml")


def missing_in_probe(probe: ContainerProbe, facts: Facts) -> str:
    """The program that a probe cannot do without, and that the image lacks; empty without one."""
    words = () if probe.typed.exec is None else probe.typed.exec.command
    if words and (program := _of(words[0], lacking_to_start(probe.template, probe.container, facts))):
        return program
    lacking, summary = lacking_programs(probe.template, probe.container, facts), probe.command
    commands = [each for each in summary.commands if each.name not in SHELLS]
    missing = [
        each.name
        for each in commands
        if each.name in lacking and not each.conditional and posixpath.dirname(each.argv[0]) in ("", *_PATH)
    ]
    others = {each.name for each in commands} - {*missing, *_PASS_ON}
    passes = any(each.forgiven or each.argv[:2] == ("exit", "0") for each in commands) or (
        any(map(_INVERTS.search, words[1:]))
    )
    return missing[0] if missing and summary.complete and not others and not passes else ""


def endless_waits(template: PodTemplate, facts: Facts) -> Iterator[tuple[Container, str]]:
    """The containers that wait in a loop until a program succeeds that their image lacks."""
    for container in template.containers(Role.INIT, Role.MAIN):
        waits = {
            found
            for word in container.typed.argv
            for found, condition, body in _WAIT.findall(word)
            if not _ENDS.search(condition) and not _ENDS.search(body)
        }
        lacking = lacking_programs(template, container, facts) if waits else frozenset()
        if not lacking:
            continue
        started = container_command(template, container)
        if _may_bring(started.commands[1:], lacking):
            continue
        if endless := (waits & lacking).intersection(host.client for host in started.awaited):
            yield container, min(endless)


def missing_at_start(template: PodTemplate, container: Container, facts: Facts) -> tuple[str, bool]:
    """The program without which a container's command fails, and whether it is the command's own program
    and not one of its script; empty without one."""
    command = container.typed.command
    if not command or template.rewritten:
        return "", False
    if program := _of(command[0], _in_image(container, facts)):
        return program, True
    lacking = lacking_programs(template, container, facts)
    if not lacking or any(map(_MAY_PASS.search, container.typed.argv)):
        return "", False
    for at, each in enumerate(container_command(template, container).commands):
        program = _of(each.argv[0], lacking) if each.argv else ""
        if program and not each.conditional and not each.forgiven:
            return program, False
        is_own_shell = each.name in SHELLS and len(each.argv) == 1 and at == 0
        if not is_own_shell and _may_install(each):
            break
    return "", False


def _may_bring(commands: Sequence[Command], lacking: frozenset[str]) -> bool:
    """Whether one of the commands before the first missing program may bring it; not one that goes on next to
    the script."""
    for each in commands:
        if each.name in lacking:
            return False
        if _may_install(each) and not each.forgiven:
            return True
    return False


def _may_install(command: Command) -> bool:
    """Whether a command may bring programs, or end the script: scripts, archives, `eval`, `cp … /usr/bin`."""
    into_path = command.name in _COPIES and any(
        is_below(word, each) for word in command.argv[1:] for each in _PATH
    )
    return into_path or command.name not in _INSTALL_NOTHING


def missing_in_hook(template: PodTemplate, container: Container, facts: Facts) -> Iterator[tuple[str, str]]:
    """The hooks of a container whose program its image lacks, each with the program."""
    hooks = container.typed.lifecycle
    if hooks is None:
        return
    for name, hook in (("postStart", hooks.post_start), ("preStop", hooks.pre_stop)):
        words = () if hook is None or hook.exec is None else hook.exec.command
        if words and (program := _of(words[0], lacking_to_start(template, container, facts))):
            yield name, program


def _of(word: str, programs: frozenset[str]) -> str:
    """The program that a word starts if it is one of these and not in a directory of its own."""
    directory, name = posixpath.split(word)
    return name if name in programs and directory in ("", *_PATH) else ""


def lacking_to_start(template: PodTemplate, container: Container, facts: Facts) -> frozenset[str]:
    """The programs that a probe or a hook certainly can't start: nothing installs one without a shell."""
    lacking = _in_image(container, facts)
    return lacking if "sh" in lacking else lacking_programs(template, container, facts)


def lacking_programs(template: PodTemplate, container: Container, facts: Facts) -> frozenset[str]:
    """The programs that the scripts of a container certainly lack: those of its image, unless it may install
    them, or bring another shell."""
    lacking = _in_image(container, facts)
    if not lacking or "sh" in lacking:
        return frozenset()
    started = container_command(template, container)
    hook = exec_command(template, container, "lifecycle", "postStart")
    commands = (*started.commands, *hook.commands)
    other = (each for each in commands if each.name not in SHELLS and each.name not in lacking)
    words = {word for each in other for word in each.argv}
    may_have = (
        not started.complete
        or any(each.name in _INSTALLERS for each in commands)
        or any(program in word for word in words for program in lacking)
        or any(map(_FINDS_OTHERS.search, container.typed.argv))
    )
    return frozenset() if may_have else lacking


def _in_image(container: Container, facts: Facts) -> frozenset[str]:
    """The programs that the image of a container certainly lacks, unless a volume may contain them."""
    typed, preset = container.typed, own_preset(container, facts)
    found = _known_to_lack(container.image)
    if preset is not None and preset.lacks is not None and _is_of(preset.lacks, container.image):
        found |= _all_of(preset.lacks)
    if not found:
        return found
    may_have = any(each.name == "PATH" for each in typed.env) or any(
        is_below(mount.mount_path, each) or is_below(each, mount.mount_path)
        for mount in typed.volume_mounts
        for each in _PATH
    )
    return frozenset() if may_have else found


@lru_cache(maxsize=256)
def _known_to_lack(image: str) -> frozenset[str]:
    """The programs that an image lacks by the table."""
    name = full_name(image)
    known = (
        each
        for each in _images()
        if any(glob_matches(glob, name) for glob in each.globs) and _is_of(each, image)
    )
    return frozenset().union(*map(_all_of, known))


def _all_of(lacks: Lacking) -> frozenset[str]:
    return frozenset(lacks.programs if "sh" not in lacks.programs else _WITH_SHELL)


def _is_of(lacks: Lacking, image: str) -> bool:
    """Whether an image of a repository is one of those that lack the programs."""
    tag = repository_and_tag(image)[1]
    if "@" in image or any(each in tag for each in lacks.unless_tag):
        return False
    version = release(tag)
    return not lacks.since or (version >= release(lacks.since) if version else not any(map(str.isdigit, tag)))
