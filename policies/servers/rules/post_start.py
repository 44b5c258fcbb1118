"""model-pulled-in-post-start, post-start-waits-on-server: the commands of postStart hooks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from policies.commands import CommandSummary, Reach
from policies.containers.commands import exec_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.kube.pods import Container, Role
from policies.probes.preset import known_presets
from policies.startup.missing_programs import lacking_programs

_COMMANDS: Final = frozenset({"huggingface-cli download", "hf download"})
_CLIENTS: Final = frozenset({"curl", "wget", "aria2c"})
_FROM: Final = re.compile(r"huggingface\.co/|/resolve/main/|\.(?:gguf|safetensors)\b")
"""URLs by which a client downloads a model."""


def _hooks(target: Target) -> Iterator[tuple[PodTemplate, Container, CommandSummary]]:
    """The postStart commands of main containers."""
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            lifecycle = container.typed.lifecycle
            if lifecycle is not None and lifecycle.post_start is not None and lifecycle.post_start.exec:
                yield template, container, exec_command(template, container, "lifecycle", "postStart")


def _pulls_in(summary: CommandSummary) -> list[tuple[str, ...]]:
    """The commands of a hook that download a model, and without which the hook fails."""
    commands, paths = _pulls()
    return [
        each.argv
        for each in summary.commands
        if not each.forgiven
        and (
            each.subcommand in commands
            or (
                each.name in _CLIENTS
                and any(_FROM.search(word) or any(path in word for path in paths) for word in each.argv[1:])
            )
        )
    ]


@cache
def _pulls() -> tuple[frozenset[str], tuple[str, ...]]:
    """The commands that download a model, and the paths of servers that do so when a client asks."""
    known = [each.pulls for each in known_presets().values() if each.pulls is not None]
    return _COMMANDS.union(*(each.commands for each in known)), tuple(p for each in known for p in each.paths)


def pulling(target: Target, facts: Facts) -> Findings:
    for template, container, summary in _hooks(target):
        if pulls := _pulls_in(summary):
            client = posixpath.basename(pulls[0][0])
            fails = (
                f"{container.image} doesn't contain {client}, so no model is downloaded. If the hook fails"
                if client in lacking_programs(template, container, facts)
                else "If it fails, for example because the server doesn't answer yet"
            )
            yield Finding(
                template.at(container, "lifecycle.postStart"),
                f"The postStart hook of container {container.name} downloads a model "
                f"({' '.join(pulls[0][:3])}). {fails}, the kubelet kills the container and starts over, "
                "without a log of the hook.",
                "Download the model to a volume, in an init container, a Job or the puller.",
            )


def waiting(target: Target, _: Facts) -> Findings:
    for template, container, summary in _hooks(target):
        waits = [host for host in summary.awaited if host.reach is Reach.LOCAL]
        if waits and not _pulls_in(summary):  # model-pulled-in-post-start reports the others
            yield Finding(
                template.at(container, "lifecycle.postStart"),
                f"The postStart hook of container {container.name} loops until its own server answers "
                f"({waits[0].client}). The kubelet starts no probe before the hook ends, so it never "
                "restarts a server that never answers.",
                "Let a startupProbe wait for the server and do the hook's work elsewhere, or limit the loop.",
            )


RULES = (
    rule(__name__, pulling, requires=(PodFeature.LIFECYCLE,), name="model-pulled-in-post-start"),
    rule(__name__, waiting, requires=(PodFeature.LIFECYCLE,), name="post-start-waits-on-server"),
)
