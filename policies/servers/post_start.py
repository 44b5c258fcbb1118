"""The commands of postStart hooks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from policies.commands import CommandSummary
from policies.containers.commands import exec_command
from policies.core.target import PodTemplate, Target
from policies.kube.pods import Container, Role

_PULLS: Final = (("ollama", "pull"), ("ollama", "run"), ("huggingface-cli", "download"), ("hf", "download"))
_CLIENTS: Final = frozenset({"curl", "wget", "aria2c"})
_FROM: Final = re.compile(r"/api/pull\b|huggingface\.co/|/resolve/main/|\.(?:gguf|safetensors)\b")
"""URLs by which a client downloads a model, or lets the server do so."""


def post_start_hooks(target: Target) -> Iterator[tuple[PodTemplate, Container, CommandSummary]]:
    """The postStart commands of main containers."""
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            lifecycle = container.typed.lifecycle
            if lifecycle is not None and lifecycle.post_start is not None and lifecycle.post_start.exec:
                yield template, container, exec_command(template, container, "lifecycle", "postStart")


def pulls_in(summary: CommandSummary) -> list[tuple[str, ...]]:
    """The commands of a hook that download a model."""
    return [
        each.argv
        for each in summary.commands
        if (each.name, *each.argv[1:2]) in _PULLS
        or (each.name in _CLIENTS and any(map(_FROM.search, each.argv[1:])))
    ]
