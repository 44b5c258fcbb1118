"""The commands of postStart hooks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from policies.commands import CommandSummary
from policies.containers.commands import exec_command
from policies.core.target import PodTemplate, Target
from policies.kube.pods import Container, Role
from policies.probes.preset import known_presets

_COMMANDS: Final = frozenset({"huggingface-cli download", "hf download"})
_CLIENTS: Final = frozenset({"curl", "wget", "aria2c"})
_FROM: Final = re.compile(r"huggingface\.co/|/resolve/main/|\.(?:gguf|safetensors)\b")
"""URLs by which a client downloads a model."""


def post_start_hooks(target: Target) -> Iterator[tuple[PodTemplate, Container, CommandSummary]]:
    """The postStart commands of main containers."""
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            lifecycle = container.typed.lifecycle
            if lifecycle is not None and lifecycle.post_start is not None and lifecycle.post_start.exec:
                yield template, container, exec_command(template, container, "lifecycle", "postStart")


def pulls_in(summary: CommandSummary) -> list[tuple[str, ...]]:
    """The commands of a hook that download a model, and without which the hook fails."""
    commands, paths = _pulls()
    return [
        each.argv
        for each in summary.commands
        if not each.forgiven
        and (
            " ".join((each.name, *each.argv[1:2])) in commands
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
