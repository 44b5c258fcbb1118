"""exit-code-hidden: trainings and backups whose failure lets their pod succeed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from policies.commands import SHELLS, Unseen, shows_failures, unseen
from policies.containers.commands import container_command
from policies.core import data
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.jobs.training import is_training
from policies.kube.group_kinds import CONFIG_MAP
from policies.kube.objects.reading import readable
from policies.kube.objects.storage import ConfigMap
from policies.kube.pods import Container, Role

_SHOWN: Final = 2
"""Words of a command."""
_ONLY_SHOWS: Final = re.compile(r"--(?:version|help|usage|dry[-_]?run|print\b|print[-_]|show)|-[V?]$")
"""Options of a program that does not do its work."""
_SHELLS_OWN: Final = ("BASH_ENV", "ENV", "SHELLOPTS")
"""Variables with options for a shell, or with a file of them."""
_ENDS: Final = re.compile(r"[\n;&|]")
"""The end of a command."""


_backups = data.names("policies.jobs", "backup_programs.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.MAIN) if template.completes else ():
            found = next(filter(_matters, _unseen(template, container, facts)), None)
            if found is not None:
                program = " ".join(found.words[:_SHOWN])
                yield Finding(
                    template.command_path(container),
                    f"The exit code of `{program}` is lost in the pipe to `{found.by}`, so the pod succeeds "
                    "even if it fails."
                    if found.in_pipe
                    else f"The script passes with `{found.by}` after a failure of `{program}`, so the pod "
                    "succeeds.",
                    "Write `set -o pipefail` at the start of the script, and run it with bash."
                    if found.in_pipe
                    else "Remove it, or end with the exit code of the program.",
                    Certainty.CERTAIN if found.in_pipe else Certainty.LIKELY,
                )


def _matters(found: Unseen) -> bool:
    if any(map(_ONLY_SHOWS.match, found.words)):
        return False
    return posixpath.basename(found.words[0]) in _backups() or is_training(found.words)


def _unseen(template: PodTemplate, container: Container, facts: Facts) -> Iterator[Unseen]:
    """The unseen exit codes in a container's script, or in that which it runs from a ConfigMap."""
    typed = container.typed
    if any(each.name in _SHELLS_OWN for each in typed.env) or any("SHELLOPTS" in word for word in typed.argv):
        return
    yield from unseen(typed.argv)
    for command in container_command(template, container).commands[-1:]:
        is_shell = command.name in SHELLS
        file = "".join(command.argv[is_shell : is_shell + 1])
        text = _from_config_map(file, template, container, facts)
        if not text or shows_failures(_ENDS.split(" ".join(typed.argv).partition(file)[0])[-1].split()):
            return
        first, _, _ = text.partition("\n")
        shell = command.argv[:1] if is_shell else tuple(first[2:].split()) if first.startswith("#!") else ()
        if shell and posixpath.basename(shell[0]) == "env":
            shell = shell[1:]
        yield from unseen((*shell, "-c", text))


def _from_config_map(file: str, template: PodTemplate, container: Container, facts: Facts) -> str:
    """The text of a file that a container mounts from a ConfigMap of the same files; empty if unknown."""
    directory, name = posixpath.split(file)
    mounts = {each.mount_path.rstrip("/"): each for each in container.typed.volume_mounts}
    mount = mounts.get(directory)
    if mount is None or mount.sub_path or facts.whole is None:
        return ""
    for volume in template.typed.spec.volumes:
        source = volume.config_map
        if volume.name == mount.name and source is not None:
            found = facts.whole.named(CONFIG_MAP, facts.namespace, source.name)
            known = None if found is None else readable(found, ConfigMap)
            keys = {each.path: each.key for each in source.items} or {name: name}
            return "" if known is None else known.data.get(keys.get(name, ""), "")
    return ""


RULE = rule(__name__, check)
