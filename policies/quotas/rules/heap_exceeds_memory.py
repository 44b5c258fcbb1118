"""heap-exceeds-memory: runtimes whose heap may grow to the memory limit of their container, or above it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from policies.containers.programs import programs
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.settings import Field, Model
from policies.kube.pods import Container

_AMOUNT: Final = re.compile(r"([0-9]{1,15})([kKmMgG]?)")
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_MIB: Final = 1024**2


class Heap(Model):
    """An entry of `heaps.yaml`."""

    runtime: str = Field(description="whose heap it is")
    env: tuple[str, ...] = Field(min_length=1, description="variables with the setting")
    program: str = Field("", description="the program that takes the option, too")
    option: str = Field("", description="the option, with what is before its value; empty: a number alone")
    unit: int = Field(ge=1, description="bytes of a value without a unit")
    source: str = Field(description="the documentation of the setting")


_heaps = data.entries(Heap, "policies.quotas", "heaps.yaml")


@data.table
def _heaps_by_variable() -> Mapping[str, tuple[Heap, ...]]:
    names = {name for heap in _heaps() for name in heap.env}
    return {name: tuple(heap for heap in _heaps() if name in heap.env) for name in names}


@data.table
def _heaps_by_program() -> Mapping[str, tuple[Heap, ...]]:
    names = {heap.program for heap in _heaps() if heap.program}
    return {name: tuple(heap for heap in _heaps() if heap.program == name) for name in names}


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers():
            found = list(_set(container))
            limit = container.typed.resources.memory_limit if found else 0
            if not limit:
                continue
            heap, where, size = found[0]
            # Of several settings, it depends on the runtime and its version which one wins.
            if all(each[2] >= limit for each in found):
                yield Finding(
                    template.at(container, "resources"),
                    f"With {where}, the heap of {heap.runtime} in container {container.name} may grow to "
                    f"{size // _MIB} MiB, and the memory limit is {limit // _MIB} MiB. The kernel kills it "
                    "before it collects its garbage.",
                    "Set a limit of a quarter above the heap, or a smaller heap.",
                )


def _set(container: Container) -> Iterator[tuple[Heap, str, int]]:
    """The settings of heaps, with where they are and their sizes."""
    by_program, by_variable = _heaps_by_program(), _heaps_by_variable()
    for program in programs(container):
        for heap in by_program.get(program[0], ()):
            yield from _in(heap, program[1:], heap.program)
    for each in container.typed.env:
        for heap in by_variable.get(each.name, ()):
            yield from _in(heap, each.value.split(), each.name)


def _in(heap: Heap, words: tuple[str, ...] | list[str], where: str) -> Iterator[tuple[Heap, str, int]]:
    """The last setting among words, which wins."""
    for word in reversed(words):
        name, value = heap.option, word.removeprefix(heap.option)
        found = _AMOUNT.fullmatch(value) if word.startswith(name) else None
        if found is not None:
            size = int(found[1]) * (_UNITS[found[2].lower()] if found[2] else heap.unit)
            yield heap, f"{word} in {where}" if name else f"{where} {word}", size
            return


RULE = rule(__name__, check)
