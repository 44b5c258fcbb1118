"""The commands of containers, probes and hooks, read once however many rules ask."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import orjson

from policies import commands
from policies.commands import CommandSummary, Reach, reach_of
from policies.core.target import PodTemplate
from policies.kube.json import Json, dig, maps, strings, text
from policies.kube.pods import Container

NOTHING: Final = CommandSummary()
LARGEST_REMEMBERED: Final = 16 * 1024
"""Bytes of command and environment beyond which a summary is not kept: memory must stay bounded."""


def container_command(template: PodTemplate, container: Container) -> CommandSummary:
    """What a container runs: its `command` and `args`."""
    asked = (container.list, container.index)
    if asked not in template.memo:
        argv = [*strings(container.spec, "command"), *strings(container.spec, "args")]
        template.memo[asked] = _summary(template, container, argv, static=False)
    summary: CommandSummary = template.memo[asked]
    return summary


def exec_command(template: PodTemplate, container: Container, *handler: str) -> CommandSummary:
    """What an exec handler of a container runs, such as that at `"lifecycle", "preStop"`."""
    asked = (container.list, container.index, *handler)
    if asked not in template.memo:
        argv = strings(container.spec, *handler, "exec", "command")
        template.memo[asked] = _summary(template, container, argv, static=True)
    summary: CommandSummary = template.memo[asked]
    return summary


def _summary(template: PodTemplate, container: Container, argv: list[str], *, static: bool) -> CommandSummary:
    if not argv:
        return NOTHING
    on_host = template.spec.get("hostNetwork") is True
    env, env_from = _listed(container.spec, "env"), _listed(container.spec, "envFrom")
    names = _own_names(template.spec)
    try:
        key = orjson.dumps((argv, env, env_from, static, on_host, names))
    except orjson.JSONEncodeError:  # a number or a character that JSON from an API server can't have
        key = None
    if key is None or len(key) > LARGEST_REMEMBERED:
        return commands.read(argv, env, env_from, static=static, host_network=on_host, local_names=names)
    return _read(key)


def _own_names(pod_spec: Json) -> list[str]:
    """Names that lead back to the pod: its `hostname`, and `hostAliases` of a loopback address."""
    names = [name] if (name := text(pod_spec, "hostname")) else []
    for alias in maps(pod_spec, "hostAliases"):
        if reach_of(text(alias, "ip")) is Reach.LOCAL:
            names += strings(alias, "hostnames")
    return names


def _listed(container: Json, field: str) -> list[Any]:
    value = dig(container, field)
    return value if isinstance(value, list) else []


@lru_cache(maxsize=1024)
def _read(key: bytes) -> CommandSummary:
    argv, env, env_from, static, on_host, names = orjson.loads(key)
    return commands.read(argv, env, env_from, static=static, host_network=on_host, local_names=names)


def forget() -> None:
    """Drop every remembered summary, to measure what reading them costs."""
    _read.cache_clear()
