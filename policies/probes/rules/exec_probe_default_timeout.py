"""exec-probe-default-timeout: liveness commands with a timeout of one second."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.data import load_one, table
from policies.core.settings import Model
from policies.kube.json import mapping
from policies.probes.first_party import is_first_party
from policies.probes.probe import LIVENESS, Probe, probes

LENIENT: Final = 60
"""Seconds of failures. A node is not overloaded for that long."""


class SlowProgram(Model):
    """A program that cannot pass within a second."""

    run: str = Field(description="the program and one of its arguments")
    seconds: float = Field(description="seconds that it needs at least")
    source: str = Field(description="the measurement or documentation that shows it")


class SlowPrograms(Model):
    """The table slow_programs.yaml."""

    slow: tuple[SlowProgram, ...]


@table
def _table() -> dict[str, float]:
    table = load_one(SlowPrograms, "policies.probes", "slow_programs.yaml")
    return {program.run: program.seconds for program in table.slow}


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if not mapping(probe.spec, "exec") or probe.timeout > 1:
            continue
        if slow := _slow_program(probe):
            run, seconds = slow
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} runs `{run}`, which needs {seconds} s before it can pass, and its timeout "
                f"is 1 s: after {probe.give_up} s kubelet restarts the container.",
                "Set timeoutSeconds to 5 or more, or use httpGet or grpc.",
            )
        elif probe.give_up < LENIENT and is_first_party(probe.template, probe.container, facts):
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} starts a process with a timeout of 1 s. On a busy node, starting it takes "
                f"longer, and after {probe.give_up} s kubelet restarts the container.",
                "Set timeoutSeconds to 5 or more, or use httpGet or grpc.",
            )


def _slow_program(probe: Probe) -> tuple[str, float] | None:
    """The command that needs longer than a second, whoever wrote the image, and its seconds."""
    table = _table()
    for command in probe.command.commands:
        for argument in command.argv[1:]:
            if seconds := table.get(f"{command.name} {argument}"):
                return f"{command.name} {argument}", seconds
    return None


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.EXEC))
