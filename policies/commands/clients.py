"""The network and database clients that commands use: where each one takes its host and timeouts from.

The table is `clients.yaml`. A row lists the options with a value (so that it isn't taken for a host), the
options that name a host, the kind of operands, and the default host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from policies.commands.model import Reach
from policies.commands.options import OptionSyntax, Style


class Operands(Enum):
    """What a client's operands are."""

    NONE = "none"
    URLS = "urls"
    """Each is a URL, its scheme optional."""
    HOSTS = "hosts"
    """Each is a host or host:port."""
    HOST = "host"
    """The first is a host or host:port, or a URL."""
    LOCATION = "location"
    """A URL or connection string where it looks like one; otherwise a database, a key, a path."""
    REMOTE = "remote"
    """`host:path` or a URL for another machine, a plain path otherwise (scp, rsync, git)."""
    LOOKUP = "lookup"
    """The first is a name to look up, the second the DNS server that is asked."""


@dataclass(frozen=True, slots=True)
class Client:
    """One row of the table."""

    syntax: OptionSyntax
    operands: Operands
    hosts: frozenset[str]
    """Options whose value is a host, host:port, URL, or a comma-separated list of them."""
    locations: frozenset[str]
    """Options whose value is a database's name, or a URL or connection string for one."""
    env: tuple[str, ...]
    """Variables that name the host when no option does."""
    default: tuple[Reach, str] | None
    """The default host and its name; None if there is none."""
    timeouts: Mapping[str, float]
    """Options that bound the run, with the seconds that a bare number of theirs counts."""
    parts: frozenset[str]
    """Timeouts of one part, such as connecting: they count only if no other is given."""
    repeats: Mapping[str, int]
    """Options that repeat the run: what to add to their number to get the tries."""
    proxies: frozenset[str]
    """Options whose value is a proxy, which is asked instead of the host."""
    bypass: frozenset[str]
    """Options that list the hosts for which no proxy is asked."""
    resolve: frozenset[str]
    """Options that give a name an address: curl's `host:port:address`, or `host:address`."""
    instead: frozenset[str]
    """Options that put another host in place of one: curl's `host:port:host:port`."""
    sockets: frozenset[str]
    """Options that name a Unix socket: no traffic leaves the container."""
    unread: frozenset[str]
    """Options that name a file or a profile with further settings, which can't be read here."""
    offline: frozenset[str]
    """Options and first operands with which the client reaches nothing (`--version`)."""


_NAMED: Final = ("hosts", "locations", "proxies", "bypass", "resolve", "instead", "sockets", "unread")


@cache
def clients() -> Mapping[str, Client]:
    """The clients by the names of their programs."""
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    table = yaml.load(files(__package__).joinpath("clients.yaml").read_text("utf-8"), Loader=loader)  # noqa: S506
    rows = {names: _client(row) for names, row in table.items()}
    return {name: row for names, row in rows.items() for name in names.split()}


def _client(row: dict[str, Any]) -> Client:
    """A row of the file; its lists of options are separated by blanks."""
    named = {key: frozenset(row.pop(key, "").split()) for key in _NAMED}
    parts, repeats = row.pop("parts", {}), row.pop("repeats", {})
    timeouts = {**row.pop("timeouts", {}), **parts}
    others = f"{row.pop('ports', '')} {row.pop('valued', '')}".split()
    syntax = OptionSyntax(
        frozenset((*others, *timeouts, *repeats)).union(*named.values()),
        frozenset(row.pop("flags", "").split()),
        frozenset(row.pop("attached", "").split()),
        Style(row.pop("style", "gnu")),
    )
    default = row.pop("default", None)
    return Client(
        syntax=syntax,
        operands=Operands(row.pop("operands", "none")),
        env=tuple(row.pop("env", "").split()),
        default=default and (Reach(default[0]), default[1]),
        timeouts=timeouts,
        parts=frozenset(parts),
        repeats=repeats,
        offline=frozenset(row.pop("offline", "--version --help").split()),
        **named,
        **row,
    )
