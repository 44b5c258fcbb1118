"""exec-probe-default-timeout: liveness commands with a timeout of one second."""

from __future__ import annotations

import math

from policies.commands import Command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.data import entries
from policies.core.settings import Field, Model
from policies.kube.json import mapping
from policies.probes.first_party import is_first_party
from policies.probes.heavy_commands import runs
from policies.probes.probe import LENIENT, LIVENESS, ContainerProbe, probes
from policies.probes.rules.liveness_as_strict_as_readiness import is_too_strict
from policies.probes.rules.probe_always_passes import always_passes


class SlowProgram(Model):
    """A program that cannot pass within a second, whoever wrote its image."""

    run: str = Field("", description="the program, or the program and one of its arguments")
    imports: str = Field("", description="a module that the code given to Python imports")
    seconds: float = Field(description="seconds that it needs at least")
    source: str = Field(description="the measurement or documentation that shows it")

    def is_run_by(self, command: Command) -> bool:
        if self.imports:
            return any(call.partition(".")[0] == self.imports for call in command.calls)
        return runs(self.run, command)


_slow_programs = entries(SlowProgram, "policies.probes", "slow_programs.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if not mapping(probe.spec, "exec"):
            continue
        if slow := _slow_program(probe):
            what = f"runs `{slow.run}`" if slow.run else f"imports {slow.imports}"
            least = max(5, math.ceil(slow.seconds) * 4)
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} {what}, which needs {slow.seconds:g} s before it can pass, but its "
                f"timeout is {probe.timeout} s. After {probe.give_up} s, the kubelet restarts the "
                "container.",
                f"Set timeoutSeconds to {least} or more, or use httpGet or grpc.",
                value=least,
            )
        elif probe.timeout > 1 or always_passes(probe) or is_too_strict(probe, facts):
            continue  # the other rule's finding leaves one probe with one warning
        elif probe.give_up < LENIENT and is_first_party(probe.template, probe.container, facts):
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} starts a process with a timeout of 1 s. On a busy node, the process "
                f"takes longer to start, and the kubelet restarts the container after {probe.give_up} s.",
                "Set timeoutSeconds to 5 or more, or use httpGet or grpc.",
                value=5,
            )


def _slow_program(probe: ContainerProbe) -> SlowProgram | None:
    """The program of the probe that needs longer than its timeout."""
    slow = (each for each in _slow_programs() if each.seconds > probe.timeout)
    return next((each for each in slow if any(map(each.is_run_by, probe.command.commands))), None)


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.EXEC))
