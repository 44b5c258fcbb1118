"""training-shared-memory: trainings whose processes exchange data through the default /dev/shm."""

from __future__ import annotations

from typing import Final

from policies.accelerators.parallelism import devices
from policies.accelerators.rank_launchers import RankLauncher, rank_launcher, ranks_of
from policies.accelerators.shared_memory import HINT, has_default_shm, is_small
from policies.commands import argument_of, is_python
from policies.containers.commands import container_command
from policies.containers.programs import Program, flags_and_values, option
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.data import entries
from policies.core.lifecycles import known_lifecycles
from policies.core.runs import run_of
from policies.core.settings import Field, Model
from policies.core.workloads import Workload
from policies.kube.field_paths import every_value_at
from policies.kube.json import Json
from policies.kube.pods import Container, Role
from policies.kube.quantities import whole_number


class Loader(Model):
    """An entry of the table shared_memory.yaml."""

    flags: tuple[str, ...] = Field((), description="flags with the number of loading processes")
    settings: tuple[str, ...] = Field(
        (), description="the last words of settings with that number: `num_workers` in data.num_workers=8"
    )
    call: str = Field("", description="the class whose argument such a setting is, in code after `python -c`")
    program: str = Field("", description="the program that it is about; empty: programs of Python")
    trains: frozenset[str] = Field(frozenset(), description="arguments of which one makes that program train")
    default: int = Field(0, description="the number without a flag or setting")
    source: str = Field(description="the documentation of the library")


_loaders = entries(Loader, "policies.jobs", "shared_memory.yaml")


def check(target: Target, facts: Facts) -> Findings:
    run = run_of(target.obj)
    per_pod = "" if run is None else run.per_pod
    for template in target.templates:
        workload = template.workload
        if not template.is_as_written and not (workload is not None and workload.without_shm):
            continue  # its operator may mount one, as KubeRay does
        if workload is not None and workload.completed_by and template.base is None:
            continue  # the object that completes the pod may
        if template.is_ray or not template.completes or not has_default_shm(template):
            continue
        for container in template.containers(Role.MAIN):
            why = _exchanges(template, container, per_pod)
            if why and is_small(template, container) and not _is_patched(target, template):
                yield Finding(
                    template.at(container, "volumeMounts"),
                    f"Container {container.name} has the default size of /dev/shm, 64 MiB, and {why}. "
                    "After hours, it may end with a bus error or 'No space left on device'.",
                    HINT,
                )


def _is_patched(target: Target, template: PodTemplate) -> bool:
    """Whether a patch in a string, as Argo's podSpecPatch, may mount one."""
    workload = template.workload
    return workload is not None and target.cache.once_for(workload.group_kind, _patches, target.obj, workload)


def _patches(obj: Json, workload: Workload) -> bool:
    paths = (each.path for each in workload.unread)
    return any("shm" in str(value) for path in paths for _, value in every_value_at(obj, path))


def _exchanges(template: PodTemplate, container: Container, per_pod: str) -> str:
    """Why the processes of a training need a large /dev/shm, as half a sentence; empty if they do not.
    `per_pod`: the number of processes that the kind writes."""
    for command in container_command(template, container).commands:
        words = command.argv
        launcher = rank_launcher(command.name, words)
        if launcher is not None:
            ranks = ranks_of(launcher, words, container, per_pod)
            if launcher.least_alone and _is_remote(template, container, launcher, words):
                continue
            if launcher.least_alone and ranks >= launcher.least_alone:
                return f"{launcher.run} starts {ranks} processes, which exchange their data through it"
            if ranks > 1 and devices(container) > 1:
                return f"{launcher.run} starts {ranks} processes, which NCCL may connect through it"
        of_python = launcher is not None or is_python(command.name)
        for loader in _loaders():
            if count := _loading(loader, words, container, of_python=of_python):
                return f"{count} data loading processes pass their batches through it"
    return ""


def _loading(loader: Loader, words: Program, container: Container, *, of_python: bool) -> int:
    """The number of processes that load batches."""
    if loader.program:
        name = words[0].rpartition("/")[2] if words else ""
        of_python = name == loader.program and not loader.trains.isdisjoint(words)
    if not of_python:
        return 0
    if loader.call:
        code = option(container.typed.argv, "-c") or ""  # words are cut
        return max((argument_of(code, loader.call, each) or 0 for each in loader.settings), default=0)
    given = option(words, *loader.flags) if loader.flags else None
    for word in words if given is None and loader.settings else ():
        name, found, value = word.partition("=")
        if found and name.lstrip("+").rpartition(".")[2] in loader.settings:
            given = value
    return loader.default if given is None else whole_number(given, 5) or 0


def _is_remote(template: PodTemplate, container: Container, launcher: RankLauncher, words: Program) -> bool:
    """Whether the processes may be in other pods: by flags, by variables, or by the kind, one of whose roles
    runs for the other, as the workers of an MPIJob do for its launcher."""
    for name, value in flags_and_values(words):
        # A number is for a flag of the program: `mpirun -np 8 all_reduce_perf -f 2`.
        if name in launcher.remote and whole_number(value, 5) is None and not _is_this_pod(value):
            return True
    if any("hostfile" in variable.name.lower() for variable in container.typed.env):
        return True
    lives = () if template.workload is None else known_lifecycles().get(template.workload.group_kind, ())
    roles = [role for life in lives for role in life.roles]
    return any(role.ends for role in roles) and any(role.endless for role in roles)


def _is_this_pod(hosts: str) -> bool:
    """Whether a list of hosts names this pod only: `localhost:4`."""
    return all(each.partition(":")[0] in _THIS_POD for each in hosts.split(","))


_THIS_POD: Final = frozenset(("localhost", "127.0.0.1"))


RULE = rule(__name__, check, requires=(PodFeature.COMPLETES, PodFeature.COMMAND))
