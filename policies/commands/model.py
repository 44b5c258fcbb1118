"""The types that `read` returns, and the limit on its work.

Anyone who may create a pod chooses the text that is read, so the work of a review is limited. It is counted
in steps, not in seconds: the same text costs the same on every machine, and is undecided on all or on none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace


class Reach(StrEnum):
    """Where a host is, seen from inside the container."""

    LOCAL = "local"
    """Loopback, a Unix socket, or the pod's own address or name."""
    EXTERNAL = "external"
    """Another machine or another pod: a Service, the node, the API server, the internet."""
    UNDECIDABLE = "undecidable"
    """Only the running container knows. Rules warn about these and never deny."""


class Host(Struct, frozen=True):
    """One host that a command reaches.

    `name` is in lower case, without port, brackets and trailing dot. A part that only the running container
    knows is spelled as in the script (`$DB_HOST`). `name` is empty if the command names no host. `client` is
    the program that reaches the host.
    """

    name: str
    reach: Reach
    client: str
    name_lookup: bool = False
    """The name is only resolved (nslookup, getent), without a connection."""

    def uncertain(self) -> Host:
        """The host of a command that may not run, or may reach another host instead: undecidable, not
        external."""
        return replace(self, reach=Reach.UNDECIDABLE) if self.reach is Reach.EXTERNAL else self


class Command(Struct, frozen=True):
    """One simple command of a script, without its wrappers (`timeout`, `env`, `exec`)."""

    name: str
    """The program: the last part of argv[0]'s path, in lower case. Empty for a redirection without a
    command."""
    argv: tuple[str, ...]
    """The words after expansion. Parts that only the running container knows are spelled as in the script."""
    hosts: tuple[Host, ...] = ()
    timeout: float | None = None
    """Seconds that its own flags set (curl -m, wget -T, nc -w …)."""
    calls: tuple[str, ...] = ()
    """For code given to an interpreter (`python -c`): the dotted names it imports and calls."""
    conditional: bool = False
    """The command runs only in some cases: in a branch, after a test, or after a branch that may have ended
    the script."""
    forgiven: bool = False
    """Its failure ends nothing: it runs in the background, or before `|| true`."""
    variables: tuple[tuple[str, str], ...] = ()
    """Those that are set for it only, as in `A=b command`, spelled as `argv`."""

    @property
    def subcommand(self) -> str:
        """The program and its first word, such as `ollama pull`."""
        return " ".join((self.name, *self.argv[1:2]))


class ScriptLoop(Struct, frozen=True):
    """A loop of a script."""

    keyword: str
    """`for`, `while` or `until`."""
    bounded: bool
    """The text sets an end: a list, a counter, a deadline, or an enclosing `timeout N`."""
    hosts: tuple[Host, ...] = ()
    """The hosts that the condition and the body reach."""
    count: int | None = None
    """The maximum number of rounds, if the text sets one."""
    background: bool = False
    """The script goes on without waiting for its end."""
    endless: bool = False
    """It is a `while true` without an exit, on which the script always waits."""
    alternative: bool = False
    """One of several commands in its condition ends it: `until a || b`, `while a && b`."""


@dataclass(frozen=True, slots=True)
class CommandSummary:
    """What the command of a container, probe or hook does, as far as its text shows."""

    commands: tuple[Command, ...] = ()
    """In reading order."""
    loops: tuple[ScriptLoop, ...] = ()
    scripts: tuple[str, ...] = ()
    """The files that an interpreter or shell runs; `-m module` for Python."""
    seconds: float = 0.0
    """The longest time that the timeouts and sleeps in the text allow: the sum over a sequence, the maximum
    over branches and the parts of a pipeline, limited by an enclosing `timeout N`. Infinite for an unbounded
    loop around any of them; 0 if the text sets no time."""
    undecidable: tuple[str, ...] = ()
    """Sentences for users: the parts that could not be read, and why."""
    complete: bool = True
    """False if reading exceeds the budget, or the text is longer than Linux executes. The summary then
    contains only a sentence about that. Rules may only warn about it, and mutators must not act on it."""
    steps: int = field(default=0, compare=False)
    """The steps that reading took. A cache charges them again for each use: otherwise a decision would
    depend on earlier readings."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host of every command, in reading order."""
        return tuple(host for command in self.commands for host in command.hosts)

    @property
    def awaited(self) -> tuple[Host, ...]:
        """The hosts that loops reach on which the script waits, and to which its text sets no end."""
        waits = (loop for loop in self.loops if not loop.bounded and not loop.background)
        return tuple(host for loop in waits for host in loop.hosts)

    def reaching(self, reach: Reach) -> tuple[Host, ...]:
        """The hosts at `reach`."""
        return tuple(host for host in self.hosts if host.reach is reach)


REVIEW_STEPS = 200_000
"""The budget of all the commands of one review."""

CHARACTERS = 64
"""The number of characters that are scanned or copied for one step."""


class BudgetSpent(Exception):
    """The budget is spent; the rest of the text is not read."""


class StepBudget:
    """The steps that reading may take; one budget covers all the commands of a review.

    A step is about a microsecond's work: a word of a script, a node of a syntax tree, or the scanning of
    64 characters.
    """

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int = REVIEW_STEPS) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Raises BudgetSpent if fewer than `steps` are left."""
        self.spent += steps
        if self.spent > self.limit:
            raise BudgetSpent

    def scan(self, characters: int) -> None:
        """Spend the steps for scanning or copying `characters` characters. Raises BudgetSpent."""
        self.spent += 1 + characters // CHARACTERS
        if self.spent > self.limit:
            raise BudgetSpent
