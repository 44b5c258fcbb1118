"""probe-always-passes: liveness and readiness by commands that cannot fail."""

from __future__ import annotations

import re
from typing import Final

from policies.commands import Command, is_python
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.probe import LIVENESS, READINESS, ContainerProbe, probes
from policies.probes.serving import recognised

_PASS: Final = frozenset({"true", ":", "echo", "printf", "exit"})
"""Programs that succeed; `exit` with 0 or without a number."""


_PYTHON: Final = re.compile(
    r"pass|import (?:sys|os)(?:, ?(?:sys|os))?|(?:sys\.)?exit\(0?\)|quit\(0?\)"
    r"|print\((?:'[^']{0,80}'|\"[^\"]{0,80}\")?\)"
)
"""A statement of Python that cannot fail."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS, READINESS):
        if probe.typed.exec is None or not always_passes(probe):
            continue
        may_get_one = recognised(probe.container, facts) is not None
        then = "never restarted" if probe.field == LIVENESS else "ready as soon as its container runs"
        yield Finding(
            probe.at("exec.command"),
            f"The {probe.name} runs {' '.join(probe.typed.exec.command)[:60]}, which always succeeds. The "
            f"server is {then}, no matter what happens.",
            "Check a health endpoint of the server"
            + (", or remove the probe so that the webhook can add one." if may_get_one else "."),
        )


def always_passes(probe: ContainerProbe) -> bool:
    """Whether the probe's command cannot fail."""
    words = () if probe.typed.exec is None else probe.typed.exec.command
    if words[1:3] == ("-c", "exec"):
        return True  # further words are only names: https://github.com/apache/airflow/issues/21994
    commands = [each for each in probe.command.commands if each.name not in ("sh", "bash")]
    return bool(commands) and all(map(_passes, commands))


def _passes(command: Command) -> bool:
    if is_python(command.name) and command.argv[1:2] == ("-c",) and len(command.argv) == 3:
        lines = [line.strip() for line in command.argv[2].replace(";", "\n").splitlines()]
        return all(_PYTHON.fullmatch(line) for line in lines if line)
    return command.name in _PASS and (command.name != "exit" or command.argv[1:] in ((), ("0",)))


RULE = rule(__name__, check, requires=(PodFeature.EXEC,))
