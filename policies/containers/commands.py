"""The commands of containers, probes and hooks: each read once however many rules ask, within a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from policies import commands
from policies.commands import Budget, BudgetSpent, CommandSummary, Reach, reach_of
from policies.containers.bounded_cache import BoundedCache
from policies.core.target import PodTemplate
from policies.kube.json import Json, dig, maps, strings, text
from policies.kube.pods import Container

NOTHING: Final = CommandSummary()
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_STEP: Final = 64
"""Bytes of a summary for each step that its reading took, roughly."""
_COPIED: Final = 32
"""Bytes of a command and its environment that are written out for one step."""

_SUMMARIES: Final[BoundedCache[bytes, CommandSummary]] = BoundedCache()


def container_command(template: PodTemplate, container: Container) -> CommandSummary:
    """What a container runs: its `command` and `args`."""
    return template.cache.once_for(container, _container_command, template, container)


def _container_command(template: PodTemplate, container: Container) -> CommandSummary:
    argv = container.argv
    if argv and template.spec.get("hostNetwork") is not True and not _own_names(template):
        return command_without_pod(container)  # no name or address means anything else than in another pod
    return _summary(template, container, argv, static=False)


def exec_command(template: PodTemplate, container: Container, *handler: str) -> CommandSummary:
    """What an exec handler of a container runs, such as that at `"lifecycle", "preStop"`."""
    return template.cache.once_for((container, handler), _exec_command, template, container, handler)


def _exec_command(template: PodTemplate, container: Container, handler: tuple[str, ...]) -> CommandSummary:
    argv = strings(container.spec, *handler, "exec", "command")
    return _summary(template, container, argv, static=True)


@dataclass(frozen=True, slots=True)
class ReviewBudget:
    """The budget of one review, in steps, and the commands that it has paid for."""

    budget: Budget
    paid: set[bytes] = field(default_factory=set)


def commands_fit(template: PodTemplate, allowance: ReviewBudget) -> bool:
    """Whether all commands of a template can be read with the rest of a review's budget, which pays for them.

    Readings are remembered for mutators and rules. A review also pays, once, for a remembered reading:
    whether an object can be decided must not depend on earlier reviews.
    """
    try:
        named = template.spec.get("hostNetwork") is True or bool(_own_names(template))
        for container in template.containers():
            argv = container.argv
            if argv and not command_without_pod(container, allowance).complete:
                return False
            if named and not _summary(template, container, argv, static=False, allowance=allowance).complete:
                return False
            for words in _handled(container.spec):
                if not _summary(template, container, words, static=True, allowance=allowance).complete:
                    return False
    except BudgetSpent:
        return False
    return True


def _handled(container: Json) -> Iterator[list[str]]:
    """The commands of a container's probes and hooks."""
    for probe in _PROBES:
        if probe in container and (words := strings(container[probe], "exec", "command")):
            yield words
    if "lifecycle" in container and (words := strings(container["lifecycle"], "preStop", "exec", "command")):
        yield words


def command_without_pod(container: Container, allowance: ReviewBudget | None = None) -> CommandSummary:
    """The programs that a container runs, independent of its pod: host names are not located."""
    known: CommandSummary | None = container.cache.get(command_without_pod)
    if known is None or allowance is not None:
        argv = container.argv
        known = _read(argv, container, static=False, on_host=False, names=(), allowance=allowance)
        if known.complete:
            container.cache[command_without_pod] = known
    return known


def _summary(
    template: PodTemplate,
    container: Container,
    argv: list[str],
    *,
    static: bool,
    allowance: ReviewBudget | None = None,
) -> CommandSummary:
    if not argv:
        return NOTHING
    on_host = template.spec.get("hostNetwork") is True
    names = _own_names(template)
    return _read(argv, container, static=static, on_host=on_host, names=names, allowance=allowance)


def environment_of(container: Json) -> tuple[list[Any], list[Any]]:
    """The variables of a container, and where it has further ones from, as JSON."""
    return _listed(container, "env"), _listed(container, "envFrom")


def environment_written(container: Container) -> bytes | None:
    """Both as JSON texts with a comma between; None where they can't be written."""
    return container.cache.once(_environment_written, container.spec)


def _environment_written(container: Json) -> bytes | None:
    written = written_out(*environment_of(container))
    return written and written[1:-1]


def _own_names(template: PodTemplate) -> tuple[str, ...]:
    """Names that lead back to the pod: its `hostname`, and `hostAliases` of a loopback address."""
    return template.cache.once(_read_own_names, template.spec)


def _read_own_names(spec: Json) -> tuple[str, ...]:
    names = [name] if (name := text(spec, "hostname")) else []
    for alias in maps(spec, "hostAliases"):
        if reach_of(text(alias, "ip")) is Reach.LOCAL:
            names += strings(alias, "hostnames")
    return tuple(names)


def _listed(container: Json, field: str) -> list[Any]:
    value = dig(container, field)
    return value if isinstance(value, list) else []


def _read(
    argv: Sequence[str],
    container: Container,
    *,
    static: bool,
    on_host: bool,
    names: Sequence[str],
    allowance: ReviewBudget | None,
) -> CommandSummary:
    words, environment = written_out(argv, static, on_host, names), environment_written(container)
    key = None if words is None or environment is None else b"%b,%b" % (words, environment)
    budget = _charged(key, allowance) if allowance is not None else None
    known = _SUMMARIES.get(key) if key is not None else None
    if known is not None:
        if budget is not None:
            budget.spend(known.steps)
        return known
    env, env_from = environment_of(container.spec)
    summary = commands.read(
        argv, env, env_from, static=static, host_network=on_host, local_names=names, budget=budget
    )
    if key is not None and summary.complete:
        _SUMMARIES.put(key, summary, len(key) + _STEP * summary.steps)
    return summary


def _charged(key: bytes | None, allowance: ReviewBudget) -> Budget | None:
    """The budget that pays for the reading with this key; None if it is paid for. Raises BudgetSpent."""
    if key is None:
        return allowance.budget
    if key in allowance.paid:
        return None
    allowance.paid.add(key)
    allowance.budget.spend(len(key) // _COPIED)
    return allowance.budget


def written_out(*parts: object) -> bytes | None:
    """JSON that is equal for equal values; None for values that JSON from an API server can't contain."""
    try:
        return orjson.dumps(parts)
    except orjson.JSONEncodeError:
        return None


def clear_cache() -> None:
    """Drop every remembered summary, to measure what reading them costs."""
    _SUMMARIES.clear()
