"""Programs that probes and waits need, and that the image of a known server lacks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from policies.commands import SHELLS
from policies.containers.commands import container_command, exec_command
from policies.core.data_directories import is_below
from policies.core.facts import Facts
from policies.core.target import PodTemplate
from policies.kube.images import repository_and_tag
from policies.kube.pods import Container, Role
from policies.probes.probe import ContainerProbe
from policies.probes.recognition import release
from policies.probes.serving import own_preset

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
_INVERTS: Final = re.compile(
    r"(?:^|\s)(?:!|!=|-ne|-z|if|while|until|grep -[a-uw-z]*v[a-z]*)\s|\bPATH=", re.ASCII
)
"""Signs of a probe that may pass although its program fails, or that finds it elsewhere."""


def missing_in_probe(probe: ContainerProbe, facts: Facts) -> str:
    """The program that a probe cannot do without, and that the image lacks; empty without one."""
    lacking, summary = lacking_programs(probe.template, probe.container, facts), probe.command
    commands = [each for each in summary.commands if each.name not in SHELLS]
    missing = [
        each.name
        for each in commands
        if each.name in lacking and not each.conditional and posixpath.dirname(each.argv[0]) in ("", *_PATH)
    ]
    others = {each.name for each in commands} - {*missing, *_PASS_ON}
    words = () if probe.typed.exec is None else probe.typed.exec.command
    passes = any(each.forgiven or each.argv[:2] == ("exit", "0") for each in commands) or (
        any(map(_INVERTS.search, words[1:]))
    )
    return missing[0] if missing and summary.complete and not others and not passes else ""


def endless_waits(template: PodTemplate, facts: Facts) -> Iterator[tuple[Container, str]]:
    """The containers that wait in a loop until a program succeeds that their image lacks."""
    for container in template.containers(Role.INIT, Role.MAIN):
        lacking = lacking_programs(template, container, facts)
        awaited = container_command(template, container).awaited if lacking else ()
        clients = {host.client for host in awaited}
        waits = {
            found
            for word in container.typed.argv
            for found, condition, body in _WAIT.findall(word)
            if not _ENDS.search(condition) and not _ENDS.search(body)
        }
        if endless := clients & waits & lacking:
            yield container, min(endless)


def lacking_programs(template: PodTemplate, container: Container, facts: Facts) -> frozenset[str]:
    """The programs that a container certainly lacks: those of its image, unless it may install them, or a
    volume may contain them."""
    preset, image = own_preset(container, facts), container.image
    lacks, tag = None if preset is None else preset.lacks, repository_and_tag(image)[1]
    if lacks is None or "@" in image or any(each in tag for each in lacks.unless_tag):
        return frozenset()
    version = release(tag)
    if lacks.since and (version < release(lacks.since) if version else any(map(str.isdigit, tag))):
        return frozenset()
    typed, started = container.typed, container_command(template, container)
    hook = exec_command(template, container, "lifecycle", "postStart")
    commands = (*started.commands, *hook.commands)
    other = (each for each in commands if each.name not in SHELLS and each.name not in lacks.programs)
    words = {word for each in other for word in each.argv}
    mounted = (mount.mount_path for mount in typed.volume_mounts)
    may_have = (
        not started.complete
        or any(program in word for word in words for program in lacks.programs)
        or any(is_below(path, each) or is_below(each, path) for path in mounted for each in _PATH)
        or any(each.name == "PATH" for each in typed.env)
        or any("PATH=" in word for word in typed.argv)
    )
    return frozenset() if may_have else frozenset(lacks.programs)
