"""Programs that start several ranks of a training in one container: their number."""

from __future__ import annotations

from typing import Final

from policies.accelerators.parallelism import devices
from policies.containers.programs import Program, launch_of, option
from policies.core.data import entries
from policies.core.settings import Field, Model
from policies.kube.pods import Container
from policies.kube.quantities import whole_number

_DIGITS: Final = 5


class RankLauncher(Model):
    """An entry of the table rank_launchers.yaml."""

    run: str = Field(description="the program, or the module that Python runs")
    ranks: tuple[str, ...] = Field(description="flags with the number of processes on the node")
    all_devices: tuple[str, ...] = Field((), description="values that stand for one process per GPU")
    variable: str = Field("", description="the variable that is read without the flag")
    remote: tuple[str, ...] = Field(
        (), description="flags for other nodes, with which it is the number on all"
    )
    machines: tuple[str, ...] = Field(
        (), description="flags with the number of nodes, to which the processes are divided"
    )
    least_alone: int = Field(
        0, description="the least number of processes that need it without GPUs, too; 0: only GPUs need it"
    )
    source: str = Field(description="the documentation of the program")


_table = entries(RankLauncher, "policies.accelerators", "rank_launchers.yaml")


def rank_launcher(name: str, words: Program) -> RankLauncher | None:
    """The launcher that a command runs, by its name or the module of Python among its first words."""
    return next((each for each in _table() if each.run in (name, *words[:4])), None)


def ranks_of(launcher: RankLauncher, words: Program, container: Container, written: str = "") -> int:
    """The number of processes that a launcher starts in a container; 0 if unknown. `written`: what the kind's
    operator sets the launcher's variable to."""
    value = option(words, *launcher.ranks)
    if value is None and launcher.variable:
        value = launch_of(container).variables.get(launcher.variable) or written
    if value in launcher.all_devices:
        return devices(container)
    ranks = whole_number(value, _DIGITS) or 0
    machines = option(words, *launcher.machines) if launcher.machines else None
    if machines is None:
        return ranks
    count = whole_number(machines, _DIGITS) or 0
    return ranks // count if count and ranks % count == 0 else 0
