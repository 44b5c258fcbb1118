"""The number of accelerators that a model server uses, from its flags and variables, and that it gets.

Law: the number is unknown if a flag moves a part of the server to other nodes, or an argument may be any
flag.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from policies.accelerators.catalogue import whole_quantity
from policies.accelerators.slices import is_cuda_device
from policies.accelerators.unrequested import VISIBLE
from policies.commands import DOWNLOADERS, LOCAL_PROGRAMS, SHELLS
from policies.containers.programs import joins_ray, launch_of, started
from policies.core.target import PodTemplate
from policies.kube.pods import Container
from policies.kube.quantities import whole_number
from policies.probes.preset import known_presets
from policies.probes.recognition import Server
from policies.probes.server_facts import Factor, Parallelism

MAX: Final = 1024
"""The server itself reports greater values of a flag as errors."""
_DIGITS: Final = 4
OF_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_INDEX: Final = re.compile(r"[ \t]*([0-9]{1,4})[ \t]*", re.ASCII)
_HARMLESS: Final = LOCAL_PROGRAMS | DOWNLOADERS
"""Programs that start nothing on other nodes."""


@cache
def _exact() -> frozenset[str]:
    """Flags that are no abbreviation, although others begin with them."""
    known = (each.parallelism for each in known_presets().values() if each.parallelism is not None)
    factors = (factor for each in known for factor in (*each.spread, each.copies))
    return frozenset(flag for factor in factors if factor is not None for flag in factor.flags)


def knows_weights(server: Server) -> bool:
    """Whether the size of one copy of a server's weights can be computed."""
    known = server.preset.parallelism
    return known is not None and bool(known.unknown_with) and _is_readable(server, known.unknown_with)


def per_copy(server: Server) -> int:
    """The number of accelerators for one copy of the weights; 0 if unknown."""
    known = server.preset.parallelism
    return _product(server, known.spread) if known is not None else 0


def on_this_node(server: Server) -> int:
    """The least number of accelerators that a server uses on its node; 0 if unknown."""
    return server.cache.once(_on_this_node, server)


def _on_this_node(server: Server) -> int:
    known = server.preset.parallelism
    if known is None or not _is_readable(server, _moving(server, known)):
        return 0
    factors = known.spread
    if known.copies is not None and not server.has_option(*known.shared_with):
        factors = (*factors, known.copies)
    return _product(server, factors)


def _moving(server: Server, known: Parallelism) -> tuple[str, ...]:
    """The options that move processes, without those of which the server has a harmless value."""
    local = known.local_values
    harmless = [flag for flag in local if server.options.value((flag,)) in local[flag]]
    if not harmless:
        return known.elsewhere_with
    return tuple(flag for flag in known.elsewhere_with if flag not in harmless)


def _is_readable(server: Server, flags: tuple[str, ...]) -> bool:
    """Whether all options of a server can be read, without one of the flags."""
    if server.conditional:
        return False
    for word in server.argv:
        if "$" in word and server.may_hold_options:
            return False
        if _may_be_one_of(flags, word):
            return False
    return True


def _may_be_one_of(flags: tuple[str, ...], word: str) -> bool:
    """Whether an argument may be one of the flags. argparse accepts abbreviated long flags, and a value right
    after a short one; vLLM accepts underscores."""
    given = word.partition("=")[0].replace("_", "-")
    if given in flags or given in _exact():
        return given in flags
    if given.startswith("--"):
        return f"\n{given}" in _lines(flags)
    return given.startswith(flags)


@cache
def _lines(flags: tuple[str, ...]) -> str:
    """The flags, each after a line break, to find one that begins with a text."""
    return "".join(f"\n{flag}" for flag in flags)


def _product(server: Server, factors: tuple[Factor, ...]) -> int:
    total = 1
    for factor in factors:
        value = server.configured(factor.flags, factor.variables)
        if value is None:
            continue
        number = whole_number(value, _DIGITS)
        if not number or number > MAX:
            return 0
        total *= number
    return total


def runs_ray(template: PodTemplate) -> bool:
    """Whether the pod may join a Ray cluster, whose other nodes have GPUs, too."""
    return any(
        joins_ray(program) for container in template.containers() for program in started(container).all
    ) or any(
        name.startswith("RAY_")
        for container in template.containers()
        for name in launch_of(container).variables
    )


def runs_only(container: Container, server: Server) -> bool:
    """Whether the container runs only the server: another entrypoint may start a cluster."""
    if not launch_of(container).command and not server.own_image:
        return False
    every = started(container)
    return every.complete and all(
        program == server.argv or program[0] in _HARMLESS or (len(program) == 1 and program[0] in SHELLS)
        for program in every.all
    )


def devices(container: Container) -> int:
    """The number of CUDA devices of a container; 0 if unknown."""
    return 0 if names_devices(container) else _given(container)


def names_devices(container: Container) -> bool:
    """Whether a variable names the devices that its programs see."""
    return OF_CUDA in launch_of(container).variables


def visible_devices(container: Container) -> int:
    """The number of CUDA devices of a container that its programs see by CUDA_VISIBLE_DEVICES; 0 if unknown.

    The first index that no device has hides those after it, too.
    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    """
    given = _given(container)
    if not given or not names_devices(container):
        return given
    value = launch_of(container).variables[OF_CUDA]
    if value is None or any(OF_CUDA in word for word in container.typed.argv):
        return 0
    seen = set()
    for each in value.split(","):
        index = _INDEX.fullmatch(each)
        if index is None or int(index[1]) in seen:
            return 0  # UUIDs, a variable, none at all, or an error of CUDA
        if int(index[1]) >= given:
            break
        seen.add(int(index[1]))
    return len(seen)


def _given(container: Container) -> int:
    """The number of CUDA devices that the device plugin gives a container; 0 if unknown."""
    resources = container.typed.resources
    if resources.claims or container.typed.security_context.privileged:
        return 0
    if VISIBLE in launch_of(container).variables:
        return 0
    requested = {**resources.requests, **resources.limits}
    counts = {name: value for name, value in requested.items() if name.startswith("nvidia.com/")}
    return sum(map(whole_quantity, counts.values())) if all(map(is_cuda_device, counts)) else 0
