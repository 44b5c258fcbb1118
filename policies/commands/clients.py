"""The network and database clients of commands, and where each one gets its host and timeouts from.

The table is `clients.yaml`. A row lists the options with a value (so that the value isn't mistaken for a
host), the options that name a host, the kind of operands, and the default host.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from msgspec import Struct

from policies.commands.model import Reach
from policies.commands.options import OptionSyntax, Style


class Operands(Enum):
    """The meaning of a client's operands."""

    NONE = "none"
    URLS = "urls"
    """Each is a URL, its scheme optional."""
    HOSTS = "hosts"
    """Each is a host or host:port."""
    HOST = "host"
    """The first is a host or host:port, or a URL."""
    LOCATION = "location"
    """A URL or connection string if it has that form; otherwise a database, a key or a path."""
    REMOTE = "remote"
    """`host:path` or a URL for another machine; otherwise a local path (scp, rsync, git)."""
    LOOKUP = "lookup"
    """The first is a name to resolve, the second the DNS server."""


class Client(Struct, frozen=True):
    """One row of the table."""

    syntax: OptionSyntax
    operands: Operands
    hosts: frozenset[str]
    """Options whose value is a host, host:port, URL, or a comma-separated list of them."""
    locations: frozenset[str]
    """Options whose value is a database's name, or a URL or connection string for one."""
    env: tuple[str, ...]
    """Variables that name the host if no option does."""
    default: tuple[Reach, str] | None
    """The default host and its name; None if there is none."""
    timeouts: Mapping[str, float]
    """Options that limit the duration, with the seconds that a number without a unit counts."""
    phase_timeouts: frozenset[str]
    """Those that limit one phase, such as connecting. They count only without another timeout."""
    retries: Mapping[str, int]
    """Options that set the number of attempts: the attempts are their number plus this one."""
    proxies: frozenset[str]
    """Options whose value is a proxy."""
    no_proxy: frozenset[str]
    """Options that list the hosts for which no proxy is used."""
    resolve: frozenset[str]
    """Options that set the address of a name: curl's `host:port:address`, or `host:address`."""
    connect_to: frozenset[str]
    """Options that replace a host by another one: curl's `host:port:host:port`."""
    sockets: frozenset[str]
    """Options that name a Unix socket: no traffic leaves the container."""
    config_files: frozenset[str]
    """Options that name a file or a profile with further settings, which are unknown."""
    offline: frozenset[str]
    """Options and first operands with which the client reaches no host (`--version`)."""


_OPTIONS = ("hosts", "locations", "proxies", "no_proxy", "resolve", "connect_to", "sockets", "config_files")


@cache
def clients() -> Mapping[str, Client]:
    """The clients by the names of their programs."""
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    table = yaml.load(files(__package__).joinpath("clients.yaml").read_text("utf-8"), Loader=loader)  # noqa: S506
    rows = {names: _client(row) for names, row in table.items()}
    return {name: row for names, row in rows.items() for name in names.split()}


def _client(row: dict[str, Any]) -> Client:
    """A row of the file, in which lists of options are separated by blanks."""
    options = {key: frozenset(row.pop(key, "").split()) for key in _OPTIONS}
    phases, retries = row.pop("phase_timeouts", {}), row.pop("retries", {})
    timeouts = {**row.pop("timeouts", {}), **phases}
    others = f"{row.pop('ports', '')} {row.pop('valued', '')}".split()
    syntax = OptionSyntax(
        frozenset((*others, *timeouts, *retries)).union(*options.values()),
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
        phase_timeouts=frozenset(phases),
        retries=retries,
        offline=frozenset(row.pop("offline", "--version --help").split()),
        **options,
        **row,
    )
