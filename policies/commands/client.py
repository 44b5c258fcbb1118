"""What the reader has to know of a network or database client: the type of the client tables' rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from policies.commands.model import Reach
from policies.commands.options import Style, Syntax


class Operands(Enum):
    """What a client's operands are."""

    NONE = "none"
    URLS = "urls"
    """Each is a URL, its scheme optional."""
    HOSTS = "hosts"
    """Each is a host or host:port."""
    HOST = "host"
    """The first is a host or host:port, or a URL."""
    HOST_PORT = "host port"
    """The first is a host, the second its port."""
    LOCATION = "location"
    """A URL or connection string where it looks like one; otherwise a database, a key, a path."""
    REMOTE = "remote"
    """`host:path` or a URL for another machine, a plain path otherwise (scp, rsync, git)."""
    LOOKUP = "lookup"
    """The first is a name to look up, the second the DNS server that is asked."""


@dataclass(frozen=True, slots=True)
class Client:
    """One row of a client table, made by `client`."""

    syntax: Syntax
    operands: Operands = Operands.NONE
    hosts: frozenset[str] = frozenset()
    """Options whose value is a host, host:port, URL, or a comma-separated list of them."""
    locations: frozenset[str] = frozenset()
    """Options whose value is a database's name, or a URL or connection string for one."""
    ports: frozenset[str] = frozenset()
    env: tuple[str, ...] = ()
    """Variables that name the host when no option does."""
    default: Reach | None = None
    """What is reached when nothing names a host; None where nothing is."""
    default_name: str = ""
    timeouts: dict[str, float] = field(default_factory=dict)
    """Options that bound the run, with the seconds that a bare number of theirs counts."""
    parts: frozenset[str] = frozenset()
    """Timeouts of one part alone (connecting, say): they count only where none of `timeouts` is given."""
    repeats: dict[str, int] = field(default_factory=dict)
    """Options that repeat the run: what to add to their number to get the tries."""
    sockets: frozenset[str] = frozenset()
    """Options that name a Unix socket: nothing leaves the container."""
    unread: frozenset[str] = frozenset()
    """Options that name a file or a profile with further settings, which nobody can read here."""
    offline: frozenset[str] = frozenset()
    """Options and first operands with which the client reaches nothing (`--version`)."""


def client(
    operands: Operands = Operands.NONE,
    *,
    hosts: str = "",
    locations: str = "",
    ports: str = "",
    valued: str = "",
    flags: str = "",
    attached: str = "",
    env: str = "",
    default: Reach | None = None,
    default_name: str = "",
    timeouts: dict[str, float] | None = None,
    parts: dict[str, float] | None = None,
    repeats: dict[str, int] | None = None,
    sockets: str = "",
    unread: str = "",
    offline: str = "--version --help",
    style: Style = Style.GNU,
) -> Client:
    """A row; option lists are separated by blanks. `timeouts` and `parts`: see `Client`."""
    bounds = {**(timeouts or {}), **(parts or {})}
    listed = " ".join((hosts, locations, ports, valued, sockets, unread, *bounds, *(repeats or {})))
    return Client(
        syntax=Syntax(
            frozenset(listed.split()), frozenset(flags.split()), frozenset(attached.split()), style
        ),
        operands=operands,
        hosts=frozenset(hosts.split()),
        locations=frozenset(locations.split()),
        ports=frozenset(ports.split()),
        env=tuple(env.split()),
        default=default,
        default_name=default_name,
        timeouts=bounds,
        parts=frozenset(parts or {}),
        repeats=repeats or {},
        sockets=frozenset(sockets.split()),
        unread=frozenset(unread.split()),
        offline=frozenset(offline.split()),
    )
