"""training-hang-unnoticed: trainings whose settings keep a hanging collective from ending them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from policies.commands import Command
from policies.containers.commands import container_command
from policies.containers.programs import ProgramOptions
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.data import entry, table
from policies.core.settings import Field, Model
from policies.kube.pods import Container, Role
from policies.kube.quantities import whole_number


class HangSetting(Model):
    """A variable or flag that decides when a training with a hanging rank ends."""

    names: tuple[str, ...] = Field(description="its names")
    disabled: frozenset[str] = Field(frozenset(), description="values that switch the detection off")
    longest: int | None = Field(None, description="seconds; more are taken for a mistake")
    unit: int = Field(1, description="seconds in one unit of the value")
    default: str = Field(description="the default in words")
    source: str = Field(description="where it is from")

    def fault(self, value: str) -> str:
        """What the value does, as half a sentence; empty if a hang ends the training."""
        if value in self.disabled:
            return "turns off the detection that ends a hung training"
        number = whole_number(value, 18)
        if self.longest is None or number is None:
            return ""
        seconds = number * self.unit
        return f"lets a training hang for {seconds // 86400} days" if seconds > self.longest else ""


class HangSettings(Model):
    """The table hangs.yaml."""

    variables: tuple[HangSetting, ...]
    flags: tuple[HangSetting, ...]


_table = entry(HangSettings, "policies.jobs", "hangs.yaml")


@table
def _variables() -> Mapping[str, HangSetting]:
    return {name: each for each in _table().variables for name in each.names}


@table
def _flags() -> Mapping[str, HangSetting]:
    return {name: each for each in _table().flags for name in each.names}


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            for path, name, value, setting in _settings(template, container):
                if fault := setting.fault(value):
                    yield Finding(
                        path,
                        f"{name}={value} of container {container.name} {fault}. If one rank dies, the "
                        "others wait for it and hold their accelerators, and the job isn't retried.",
                        f"Remove {name}. The default is {setting.default}.",
                    )


def _settings(template: PodTemplate, container: Container) -> Iterator[tuple[str, str, str, HangSetting]]:
    """Field path, name and value of each setting."""
    by_variable, by_flag = _variables(), _flags()
    for index, variable in enumerate(container.typed.env):
        if variable.value and (setting := by_variable.get(variable.name)):
            yield template.at(container, f"env[{index}]", "value"), variable.name, variable.value, setting
    commands = container_command(template, container).commands
    for exported, last in _of_script(commands).items():
        if setting := by_variable.get(exported):
            yield template.command_path(container), exported, last, setting
    for command in commands:
        options = ProgramOptions(command.argv)
        for name, setting in by_flag.items():
            if value := options.value((name,)):
                yield template.command_path(container), name, value, setting


def _of_script(commands: Sequence[Command]) -> dict[str, str]:
    """The variables that a script always sets, with their last values."""
    found: dict[str, str] = {}
    for command in commands:
        exported = command.argv[1:] if command.name == "export" else ()
        written = (word.partition("=") for word in exported if "=" in word)
        for name, value in (*((name, value) for name, _, value in written), *command.variables):
            found[name] = "" if command.conditional else value
    return found


RULE = rule(__name__, check)
