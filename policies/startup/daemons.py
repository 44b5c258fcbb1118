"""Programs that go to the background and return while they run."""

from __future__ import annotations

from collections.abc import Collection

from policies.commands import Command
from policies.core import data
from policies.core.settings import Field, Model


class Daemon(Model):
    """An entry of `daemons.yaml`."""

    programs: tuple[str, ...] = Field(min_length=1, description="in lower case")
    detaches: tuple[str, ...] = Field((), description="words, one of which it needs to go to the background")
    stays: tuple[str, ...] = Field(
        (), description="options with which it stays in the foreground, or prints something"
    )
    stays_variables: tuple[str, ...] = Field((), description="variables with which it does")
    stay: str = Field("", description="how it stays, in a word or two; by default with an option of `stays`")
    source: str = Field(pattern=r"^https://")


_daemons = data.entries(Daemon, __package__, "daemons.yaml")


def way_to_stay(command: Command, variables: Collection[str]) -> tuple[str, bool] | None:
    """How to keep the program of a command in the foreground, as a clause, and whether by a variable; None if
    it stays there, or if a word is known only in the running container. `variables`: the names of those that
    the container sets."""
    words = command.argv[1:]
    if any("$" in word for word in words):
        return None
    set_ = {*variables, *(name for name, _ in command.variables)}
    for each in _daemons():
        detaching = next((word for word in words if word in each.detaches), None)
        if (
            command.name in each.programs
            and (detaching is not None or not each.detaches)
            and not any(_has(words, option) for option in each.stays)
            and set_.isdisjoint(each.stays_variables)
        ):
            option = f"add {each.stays[0]}" if each.stays else f"remove {detaching}"
            return each.stay or option, bool(each.stays_variables)
    return None


def _has(words: Collection[str], option: str) -> bool:
    """Whether an option is given, if it is a letter also among others: `-De`."""
    if len(option) != len("-D"):
        return option in words
    return any(word[:1] == "-" and word[:2] != "--" and option[1] in word for word in words)
