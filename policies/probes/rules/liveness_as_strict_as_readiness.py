"""liveness-as-strict-as-readiness: liveness with the check of readiness that fails no later."""

from __future__ import annotations

from typing import Final

from policies.commands import SHELLS
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.reasons import in_words
from policies.probes.first_party import is_first_party
from policies.probes.probe import (
    LENIENT,
    LIVENESS,
    ContainerProbe,
    liveness_and_readiness,
    probe_of,
    readiness_next_to,
)
from policies.probes.rules.probe_always_passes import always_passes
from policies.probes.serving import recognised

SHORT: Final = 2
"""Seconds in which a busy server may not answer. The API server's default of timeoutSeconds is 1."""
LATE: Final = 10
"""Seconds in which a busy server still answers."""
_FILE_AND_PROCESS_CHECKS: Final = frozenset(
    {"test", "[", "[[", "cat", "ls", "stat", "true", "pgrep", "pidof", "kill", "ps", "grep", "echo", "exit"}
)
"""Programs that check a file or a process, or its output, and so pass under load."""


def check(target: Target, facts: Facts) -> Findings:
    for liveness, readiness in liveness_and_readiness(target):
        if not _is_too_strict(liveness, readiness, facts):
            continue
        server = recognised(liveness.container, facts)
        late = hint = ""
        if liveness.failures == 1:
            late = " With failureThreshold 1, one slow or lost answer is enough."
            hint = " Set failureThreshold to 3 or more."
        if server is not None and server.preset.busy is not None and liveness.timeout <= SHORT:
            late += f" Its timeout is {liveness.timeout} s, and under load, the answer of {server.name} "
            late += f"{server.preset.busy.why}."
            hint += f" Set timeoutSeconds to {LATE} or more."
        elif liveness.typed.exec is not None and liveness.timeout == 1:
            late += " It starts a process with a timeout of 1 s, which is short on a busy node."
            hint += " Set timeoutSeconds to 5 or more."
        if liveness.starts_late:
            late += f" A server that hangs in its first {in_words(liveness.delay)} isn't restarted."
            hint += " Use a startupProbe instead of initialDelaySeconds."
        yield Finding(
            liveness.at("failureThreshold"),
            f"The liveness and readiness probes of container {liveness.container.name} make the same "
            f"check. Liveness gives up after {liveness.give_up} s and readiness after {readiness.give_up} "
            f"s, so overload restarts the container before it gets less traffic.{late}",
            f"Give liveness more time: set periodSeconds * failureThreshold above {readiness.give_up}, or "
            f"better, to {LENIENT} or more.{hint}",
        )


def _is_too_strict(liveness: ContainerProbe, readiness: ContainerProbe, facts: Facts) -> bool:
    """Whether overload restarts the container before it gets less traffic."""
    if not liveness.has_same_check_as(readiness) or liveness.give_up > readiness.give_up:
        return False
    if liveness.give_up >= LENIENT or not _fails_under_load(liveness):
        return False
    return is_first_party(liveness.template, liveness.container, facts)


def is_too_strict(probe: ContainerProbe, facts: Facts) -> bool:
    """Whether `liveness-as-strict-as-readiness` reports the probe's container, and so its other settings,
    too."""
    liveness = probe_of(probe.template, probe.container, LIVENESS)
    if liveness is None or not liveness.is_sent:
        return False
    readiness = readiness_next_to(liveness)
    return readiness is not None and _is_too_strict(liveness, readiness, facts)


def _fails_under_load(probe: ContainerProbe) -> bool:
    if probe.typed.tcp_socket is not None:  # the kernel accepts connections
        return False
    commands = probe.command.commands
    if always_passes(probe):
        return False
    # A shell without a script of its own only runs the other commands.
    read = [each for each in commands if each.name not in SHELLS or len(each.argv) > 1]
    return not read or any(command.name not in _FILE_AND_PROCESS_CHECKS for command in read)


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.READINESS))
