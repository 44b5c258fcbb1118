"""The commands of containers, probes and hooks. Each is read once, within the budget of its review."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct, field

from policies import commands
from policies.commands import SHELLS, BudgetSpent, CommandSummary, Reach, StepBudget, reach_of
from policies.core import data
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.kube.cache import BoundedCache
from policies.kube.images import Globs
from policies.kube.json import Json, strings
from policies.kube.objects.pods import ContainerSpec, PodSpec
from policies.kube.pods import Container

_SUMMARY_BYTES: Final = 64
"""Approximate size of a summary for each step that reading took."""
_KEY_BYTES: Final = 32
"""Bytes of a cache key for one step."""

PYTHON_SHELL: Final = (
    "sh",
    "-c",
    "p=`command -v python3`"
    " || for e in /proc/[0-9]*/exe; do p=`readlink $e`; case $p in */python*) break;; esac; p=; done;"
    ' ${p:-false} -I -S -c "$0" "$@"; s=$?;'
    ' test $s -ne 100 || exit 1; test $s -ne 0 -a $3 -eq 0 -a -n "$4" || exit 0;'
    ' echo "no python3 runs here ($s): progress is not checked"; command -v curl >/dev/null || exit 0;'
    ' curl -gksfm 10 -o /dev/null "$2://localhost:$1$4"; s=$?;'
    " test $s -ne 7 -a $s -ne 22 -a $s -ne 28 -a $s -ne 52",
)
"""The words with which a check of ours runs the Python program in the next argument in any image, with the
image's Python, or that of a process of the container.

Its exit status 100 fails the probe. Any other means that the program did not run: then curl asks the path, if
there is one, a startupProbe has waited for the start (START is 0), and the image has curl. Else it passes."""

_SUMMARIES: Final[BoundedCache[bytes, CommandSummary]] = BoundedCache()


class Entrypoint(Model):
    """An entry of `entrypoints.yaml`: the program that images start."""

    program: str
    images: tuple[str, ...] = Field(min_length=1, description="globs")
    only_options: bool = Field(
        False, description="its arguments begin with an option or a URL, else they are a program"
    )
    alone: bool = Field(False, description="whether it is also known to run without arguments")
    source: str = Field(description="the file that shows it")


@data.table
def _entrypoints() -> tuple[Globs, dict[str, Entrypoint]]:
    known = {
        glob: each
        for each in data.load_list(Entrypoint, "policies.containers", "entrypoints.yaml")
        for glob in each.images
    }
    return Globs(known), known


def words_of(container: Container) -> tuple[str, ...]:
    """The `command` and `args` of a container; `args` alone follow the program that its image is known to
    start."""
    argv = container.typed.argv
    if container.typed.command:
        return argv
    globs, known = _entrypoints()
    first = argv[0] if argv else ""
    for glob in globs.matching(container.image):
        entrypoint, is_option = known[glob], first.startswith("-") or "://" in first
        if not argv and not entrypoint.alone:
            continue
        if is_option or not (entrypoint.only_options or first.startswith("/") or first in SHELLS):
            return (entrypoint.program, *argv)
    return argv


def container_command(template: PodTemplate, container: Container) -> CommandSummary:
    """The `command` and `args` of a container."""
    return template.cache.once_for(container, _container_command, template, container)


def _container_command(template: PodTemplate, container: Container) -> CommandSummary:
    if _is_pod_dependent(template):
        return _read(container, words_of(container), template, static=False)
    return command_without_pod(container)


def _is_pod_dependent(template: PodTemplate) -> bool:
    """Whether a name or an address has another meaning than in other pods."""
    return template.typed.spec.host_network or bool(_local_names(template))


def exec_command(template: PodTemplate, container: Container, *handler: str) -> CommandSummary:
    """The command of an exec handler of a container, such as the one at `"lifecycle", "preStop"`."""
    return template.cache.once_for((container, handler), _exec_command, template, container, handler)


def _exec_command(template: PodTemplate, container: Container, handler: tuple[str, ...]) -> CommandSummary:
    argv = strings(container.spec, *handler, "exec", "command")
    return _read(container, argv, template, static=True)


def handler_command(container: Container, argv: Sequence[str]) -> CommandSummary:
    """The command of a handler of a container in any pod: its host names and addresses are not the pod's."""
    return _read(container, argv, None, static=True)


class ReviewBudget(Struct, frozen=True):
    """The budget of one review, and the cache keys of the commands that it has paid for."""

    steps: StepBudget
    paid: set[bytes] = field(default_factory=set)


def commands_fit(template: PodTemplate, review: ReviewBudget) -> bool:
    """Whether all commands of a template can be read with the rest of a review's budget, which pays for them.

    A review also pays, once, for commands in the cache: decisions must not depend on earlier reviews.
    """
    try:
        pod_dependent = _is_pod_dependent(template)
        for container in template.containers():
            if not command_without_pod(container, review).complete:
                return False
            if (
                pod_dependent
                and not _read(container, words_of(container), template, static=False, review=review).complete
            ):
                return False
            for words in _handler_commands(container.typed):
                if not _read(container, words, template, static=True, review=review).complete:
                    return False
    except BudgetSpent:
        return False
    return True


def _handler_commands(container: ContainerSpec) -> Iterator[tuple[str, ...]]:
    """The commands of a container's probes and hooks."""
    lifecycle = container.lifecycle
    hooks = () if lifecycle is None else (lifecycle.pre_stop, lifecycle.post_start)
    for handler in (container.liveness_probe, container.readiness_probe, container.startup_probe, *hooks):
        if handler is not None and handler.exec is not None and handler.exec.command:
            yield handler.exec.command


def command_without_pod(container: Container, review: ReviewBudget | None = None) -> CommandSummary:
    """The `command` and `args` of a container in any pod: its host names and addresses are not the pod's."""
    known: CommandSummary | None = container.cache.get(command_without_pod)
    if known is None or review is not None:
        known = _read(container, words_of(container), None, static=False, review=review)
        if known.complete:
            container.cache[command_without_pod] = known
    return known


def environment_of(container: Json) -> tuple[list[Any], list[Any]]:
    """`env` and `envFrom` of a container."""
    return container.get("env") or [], container.get("envFrom") or []


def _local_names(template: PodTemplate) -> tuple[str, ...]:
    """The pod's own names: its `hostname`, and `hostAliases` of a loopback address."""
    return template.cache.once(_read_local_names, template.typed.spec)


def _read_local_names(pod: PodSpec) -> tuple[str, ...]:
    names = [pod.hostname] if pod.hostname else []
    for alias in pod.host_aliases:
        if reach_of(alias.ip) is Reach.LOCAL:
            names += alias.hostnames
    return tuple(names)


def _read(
    container: Container,
    argv: Sequence[str],
    template: PodTemplate | None,
    *,
    static: bool,
    review: ReviewBudget | None = None,
) -> CommandSummary:
    """The summary of a command of a container, which does not depend on the pod without a template.

    That of our own program is empty: it cannot be wrong by a rule, and each reading would take milliseconds.
    """
    if not argv or tuple(argv[: len(PYTHON_SHELL)]) == PYTHON_SHELL:
        return CommandSummary()
    on_host = template is not None and template.typed.spec.host_network
    names = () if template is None else _local_names(template)
    key = cache_key(container, argv, static, on_host, names)
    budget = _charged(key, review) if review is not None else None
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
        _SUMMARIES.put(key, summary, len(key) + _SUMMARY_BYTES * summary.steps)
    return summary


def _charged(key: bytes | None, review: ReviewBudget) -> StepBudget | None:
    """The budget for a command; None if the review has paid for it. Raises BudgetSpent."""
    if key is None:
        return review.steps
    if key in review.paid:
        return None
    review.paid.add(key)
    review.steps.spend(len(key) // _KEY_BYTES)
    return review.steps


def cache_key(container: Container, *parts: object) -> bytes | None:
    """A key that is equal for equal parts and environments; None for values that JSON cannot contain."""
    words, environment = _json(*parts), container.cache.once(_environment_key, container.spec)
    return None if words is None or environment is None else b"%b,%b" % (words, environment)


def _environment_key(container: Json) -> bytes | None:
    written = _json(*environment_of(container))
    return written and written[1:-1]


def _json(*parts: object) -> bytes | None:
    try:
        return orjson.dumps(parts)
    except orjson.JSONEncodeError:
        return None


def clear_cache() -> None:
    """Drop all summaries, for measurements."""
    _SUMMARIES.clear()
