"""Over how many accelerators a model server spreads itself, by its flags and variables.

Law: it is unknown where a flag moves a part of the server to other nodes, or a word may hold any flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from policies.containers.programs import has_option
from policies.core import data
from policies.core.settings import Model
from policies.probes.recognition import Server

MOST: Final = 1024
"""A greater value of a flag is a mistake that the server itself reports."""


class Factor(Model):
    """One number by which a server multiplies its processes; an absent one counts as 1."""

    flags: tuple[str, ...]
    variables: tuple[str, ...] = ()


class Parallelism(Model):
    """The options of a server that set over how many accelerators it spreads itself."""

    spread: tuple[Factor, ...]
    """The number of accelerators that one copy of the weights is spread over."""
    copies: Factor | None = None
    """The number of copies, each on separate accelerators."""
    shared_with: tuple[str, ...] = ()
    """Options with which copies share accelerators."""
    unknown_with: tuple[str, ...] = ()
    """Options that change which weights are loaded or where."""
    elsewhere_with: tuple[str, ...] = ()
    """Options with which a part of the processes runs on other nodes, or on no accelerator."""


@cache
def _servers() -> Mapping[str, Parallelism]:
    return data.load_map(Parallelism, __package__, "parallelism.yaml")


@cache
def _exact() -> frozenset[str]:
    """Flags that are read as they are, although they begin like others."""
    factors = (factor for known in _servers().values() for factor in (*known.spread, known.copies))
    return frozenset(flag for factor in factors if factor is not None for flag in factor.flags)


def knows_weights(server: Server) -> bool:
    """Whether the size of one copy of a server's weights can be computed."""
    known = _servers().get(server.name)
    return known is not None and bool(known.unknown_with) and _is_readable(server, known.unknown_with)


def per_copy(server: Server) -> int:
    """Over how many accelerators one copy of the weights is spread; 0 if that is not known."""
    known = _servers().get(server.name)
    return _product(server, known.spread) if known is not None else 0


def on_this_node(server: Server) -> int:
    """The least number of accelerators on its node that a server takes; 0 if that is not known."""
    known = _servers().get(server.name)
    if known is None or not _is_readable(server, known.elsewhere_with):
        return 0
    factors = known.spread
    if known.copies is not None and not has_option(server.argv, *known.shared_with):
        factors = (*factors, known.copies)
    return _product(server, factors)


def _is_readable(server: Server, flags: tuple[str, ...]) -> bool:
    """Whether all options of a server can be read, and none of the flags is among them."""
    return not (
        server.conditional
        or any("$" in word for word in server.argv)  # a variable may hold any option
        or any(_may_be_one_of(flags, word) for word in server.argv)
    )


def _may_be_one_of(flags: tuple[str, ...], word: str) -> bool:
    """Whether a word may be one of the flags.

    argparse accepts the beginning of a long flag, and a value right after a short one. vLLM accepts
    underscores.
    """
    given = word.partition("=")[0].replace("_", "-")
    if given in flags or given in _exact():
        return given in flags
    if given.startswith("--"):
        return any(flag.startswith(given) for flag in flags)
    return given.startswith(flags)


def _product(server: Server, factors: tuple[Factor, ...]) -> int:
    total = 1
    for factor in factors:
        value = server.configured(factor.flags, factor.variables)
        if value is None:
            continue
        if not (value.isascii() and value.isdigit() and 0 < int(value) <= MOST):
            return 0
        total *= int(value)
    return total
