"""Pods that run no work of their own: a person uses them, or they print information."""

from __future__ import annotations

from typing import Final

from policies.commands import SHELLS, Command, CommandSummary, is_python
from policies.containers.commands import container_command
from policies.core.target import Target
from policies.kube.pods import Role

_IDLE: Final = frozenset(
    {"sleep", "tail", "true", "echo", "pause", "nvidia-smi", "rocm-smi", "neuron-ls"}
    | {"pip", "pip3", "apt", "apt-get", "export", "cd", "ls", "cat", "env", "set", "trap", "wait", "exit"}
)
"""Programs of idle pods, and programs that prepare for them."""


def only_idles(target: Target) -> bool:
    """Whether every completing pod of a workload only idles. False if a command is unknown."""
    completing = [template for template in target.templates if template.completes]
    return bool(completing) and all(
        idles(container_command(template, container))
        for template in completing
        for container in template.containers(Role.MAIN)
    )


def idles(summary: CommandSummary) -> bool:
    """Whether a command is known and runs nothing but idle programs and single lines of Python. A shell that
    runs a file does what the file says."""
    return bool(summary.commands) and not summary.scripts and programs_of(summary) <= _IDLE


def programs_of(summary: CommandSummary) -> set[str]:
    """The names of the programs that a command runs, without shells and single lines of Python."""
    return {command.name for command in summary.commands if not _is_line(command)} - SHELLS


def _is_line(command: Command) -> bool:
    return is_python(command.name) and "-c" in command.argv
