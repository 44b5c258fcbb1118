"""The number of accelerators that a model server uses, from its flags and variables.

Law: the number is unknown if a flag moves a part of the server to other nodes, or an argument may be any
flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from policies.containers.programs import has_option
from policies.core import data
from policies.core.settings import Model
from policies.probes.recognition import Server

MAX: Final = 1024
"""The server itself reports greater values of a flag as errors."""


class Factor(Model):
    """A number that multiplies a server's processes; absent, it is 1."""

    flags: tuple[str, ...]
    variables: tuple[str, ...] = ()


class Parallelism(Model):
    """The options that set the number of accelerators of a server."""

    spread: tuple[Factor, ...]
    """Their product is the number of accelerators for one copy of the weights."""
    copies: Factor | None = None
    """The number of copies on separate accelerators."""
    shared_with: tuple[str, ...] = ()
    """Options with which copies share accelerators."""
    unknown_with: tuple[str, ...] = ()
    """Options that change which weights are loaded or where."""
    elsewhere_with: tuple[str, ...] = ()
    """Options that move processes to other nodes or off the accelerators."""


@data.table
def _servers() -> Mapping[str, Parallelism]:
    return data.load_map(Parallelism, __package__, "parallelism.yaml")


@cache
def _exact() -> frozenset[str]:
    """Flags that are no abbreviation, although others begin with them."""
    factors = (factor for known in _servers().values() for factor in (*known.spread, known.copies))
    return frozenset(flag for factor in factors if factor is not None for flag in factor.flags)


def knows_weights(server: Server) -> bool:
    """Whether the size of one copy of a server's weights can be computed."""
    known = _servers().get(server.name)
    return known is not None and bool(known.unknown_with) and _is_readable(server, known.unknown_with)


def per_copy(server: Server) -> int:
    """The number of accelerators for one copy of the weights; 0 if unknown."""
    known = _servers().get(server.name)
    return _product(server, known.spread) if known is not None else 0


def on_this_node(server: Server) -> int:
    """The least number of accelerators that a server uses on its node; 0 if unknown."""
    known = _servers().get(server.name)
    if known is None or not _is_readable(server, known.elsewhere_with):
        return 0
    factors = known.spread
    if known.copies is not None and not has_option(server.argv, *known.shared_with):
        factors = (*factors, known.copies)
    return _product(server, factors)


def _is_readable(server: Server, flags: tuple[str, ...]) -> bool:
    """Whether all options of a server can be read, without one of the flags."""
    if server.conditional:
        return False
    for word in server.argv:  # noqa: SIM110  # a generator is slower
        if "$" in word or _may_be_one_of(flags, word):  # a variable may hold any option
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
        if not (value.isascii() and value.isdigit() and 0 < int(value) <= MAX):
            return 0
        total *= int(value)
    return total
