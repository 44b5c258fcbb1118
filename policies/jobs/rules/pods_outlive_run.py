"""pods-outlive-run: pods that keep running, with their accelerators, after their workload has ended."""

from __future__ import annotations

from collections.abc import Iterator

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import EACH, Run, runs_in
from policies.kube.names import listed


def check(target: Target, facts: Facts) -> Findings:
    runs = list(runs_in(target.obj))
    for run in runs:
        ending = run.life.ending
        if ending is None or any(map(run.has, ending.unless)) or any(run.refused()):
            continue
        values = [value for value in map(run.value, ending.fields) if value is not None]
        value = values[0] if values else ending.default
        if value not in ending.keeps:
            continue
        roles = list(dict.fromkeys(_endless(target, run, runs, facts, decided=bool(values))))
        if roles:
            yield Finding(
                run.at(ending.fields[0]),
                f"The pods of {listed(roles)} run until somebody deletes them, since {ending.fields[0]} is "
                f"{_text(value)}. After the {run.life.kind} has ended, they keep their nodes and the "
                "resources that they requested.",
                f"Set {ending.fields[0]} to {_text(ending.instead)}.",
            )


def _endless(target: Target, run: Run, runs: list[Run], facts: Facts, *, decided: bool) -> Iterator[str]:
    """The roles that never end by themselves. If somebody decided that they stay, only those whose pods
    request accelerators, or of kinds that train."""
    inside = [each for each in runs if each.steps[: len(run.steps)] == run.steps]
    for template in target.templates:
        for each in inside:
            role = each.role_of(template)
            if role is None or not role.role.endless or not role.pods:
                continue
            if not decided or run.life.trains or wants_accelerator(template.view, facts):
                yield role.name or ("workers" if role.role.name == EACH else role.role.name)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


RULE = rule(__name__, check, tuple(known_lifecycles()), unowned=True)
