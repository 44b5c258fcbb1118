"""The types that the reader of commands returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class Reach(StrEnum):
    """Where a host is, seen from inside the container."""

    LOCAL = "local"
    """Loopback, a Unix socket, or the pod's own address or name."""
    EXTERNAL = "external"
    """Another machine or another pod: a Service, the node, the API server, the internet."""
    UNDECIDABLE = "undecidable"
    """Only the running container knows. Rules warn about these and never deny."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host that a command reaches.

    `name` is the host without its port, lower case, without brackets and without a trailing dot; a part that
    only the running container knows is shown as the script spells it (`$DB_HOST`), and `name` is empty if no
    host is named. `client`: the program that reaches it.
    """

    name: str
    reach: Reach
    client: str
    name_lookup: bool = False
    """The name is only resolved (nslookup, getent), without a connection."""

    def doubted(self) -> Host:
        """This host in a command that perhaps does not run or asks no other machine: undecidable, never
        external."""
        return replace(self, reach=Reach.UNDECIDABLE) if self.reach is Reach.EXTERNAL else self


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command of a script, in reading order, its wrappers (`timeout`, `env`, `exec`) removed.

    `argv` holds the words after expansion; parts that only the running container knows stay as they are
    spelled.
    """

    name: str
    """The program: the last part of argv[0]'s path, in lower case. Empty for a redirection without a
    command."""
    argv: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    timeout: float | None = None
    """Seconds that its own flags allow it (curl -m, wget -T, nc -w …); None if they state none."""
    calls: tuple[str, ...] = ()
    """For code given to an interpreter (`python -c`): the dotted names it imports and calls."""
    conditional: bool = False
    """It runs only in some cases: in a branch, after a test, or unless a branch before it took over."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop, with what it reaches in its condition and body."""

    keyword: str
    """`for`, `while` or `until`."""
    bounded: bool
    """It ends by itself: a list, a counter, a deadline, or an enclosing `timeout N`."""
    hosts: tuple[Host, ...] = ()
    count: int | None = None
    """The greatest number of rounds, if the text limits it."""


@dataclass(frozen=True, slots=True)
class CommandSummary:
    """What `read` found in one container's or probe's command."""

    commands: tuple[Command, ...] = ()
    loops: tuple[Loop, ...] = ()
    scripts: tuple[str, ...] = ()
    """The files that an interpreter or shell runs; `-m module` for Python."""
    seconds: float = 0.0
    """The longest time that the stated timeouts and sleeps allow: summed over a sequence, the
    longest of a pipeline's or a branch's parts, capped by an enclosing `timeout N`; infinite for an
    unbounded loop around any of them; 0 if no time is stated."""
    undecidable: tuple[str, ...] = ()
    """Sentences for people: undecidable parts of the text, and why."""
    complete: bool = True
    """False where reading it all would cost more than the budget had left, or the text is longer than
    Linux executes: the summary then holds only a sentence about that. Its lack of hosts and commands is no
    evidence: no rule may do more than warn, no mutator may act on it."""
    steps: int = field(default=0, compare=False)
    """What reading it cost, taken off the budget. Who keeps a summary takes them again where it is used
    again: whether a command can be decided must not depend on earlier readings."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host of every command, in reading order."""
        return tuple(host for command in self.commands for host in command.hosts)

    def reaching(self, reach: Reach) -> tuple[Host, ...]:
        """The hosts at `reach`."""
        return tuple(host for host in self.hosts if host.reach is reach)
