"""shell-keeps-sigterm: servers that are child processes of a shell, which does not pass SIGTERM on, and tasks
that get it together with the worker that waits for them."""

from __future__ import annotations

from collections.abc import Iterator

from policies.commands import children
from policies.containers.programs import Program, launch_of, option, program_of, programs
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.settings import Field, Model
from policies.jobs.training import runs_training
from policies.kube.images import Globs
from policies.kube.pods import Container, Role
from policies.probes.serving import recognised, serving_containers


class Forks(Model):
    """The choice of a worker to run its tasks in child processes, which SIGTERM ends at once."""

    flags: tuple[str, ...] = ()
    variable: str = ""
    values: tuple[str, ...] = Field(description="those that choose it; it is also the default")


class TaskWorker(Model):
    """An entry of `task_workers.yaml`."""

    run: str = Field(description="the program")
    word: str = Field("", description="an argument with which it takes tasks; empty: it always does")
    forks: Forks | None = None
    source: str = Field(description="the documentation of what it does at SIGTERM")


class Init(Model):
    """An entry of `inits.yaml`."""

    run: str = Field(description="the program")
    unless_flags: tuple[str, ...] = Field(description="options with which it signals its child only")
    unless_env: str = Field(description="a variable that has the same effect if its value is 0")
    images: tuple[str, ...] = Field((), description="globs of images that start it without options")
    source: str = Field(description="its documentation")


_task_workers = data.entries(TaskWorker, "policies.disruption", "task_workers.yaml")


_inits = data.entries(Init, "policies.disruption", "inits.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        spec = template.typed.spec
        if template.completes or spec.share_process_namespace or spec.host_pid:
            continue
        after = f"the whole grace period of {spec.grace} s, the kubelet kills"
        for container in serving_containers(template.view, facts):
            server = _child(container, facts) if container.role is Role.MAIN else ""
            if server and not facts.pod_caches[template.view].once(runs_training, template.view):
                lost = f"After {after} {server} and its open requests."
                yield _finding(template, container, server, lost)
        for container in template.containers(Role.MAIN):
            if worker := _task_worker(container):
                lost = f"{worker} takes further tasks, and after {after} it with those it has begun."
                yield _finding(template, container, worker, lost)
            elif (worker := _forking_worker(container)) and (init := _signals_all(container)):
                yield Finding(
                    template.at(container),
                    f"Container {container.name} runs {worker} under {init.run}, which sends SIGTERM to all "
                    f"processes. The tasks of {worker} end at once, although it would wait for them.",
                    f'Set the variable {init.unless_env}: "0", or give {init.run} the option '
                    f"{init.unless_flags[-1]}.",
                )


def _finding(template: PodTemplate, container: Container, program: str, lost: str) -> Finding:
    return Finding(
        template.at(container, "command"),
        f"Container {container.name} runs {program} as a child of its shell, and a shell that is the first "
        f"process doesn't pass on SIGTERM. {lost}",
        f"Start {program} with `exec` as the last command of the script, or pass the signal on with a trap.",
    )


def _child(container: Container, facts: Facts) -> str:
    """The server that a container's shell certainly starts as a child process; empty if there is none."""
    server = recognised(container, facts)
    if server is None or not server.argv:
        return ""
    known = (program[0] for program in _children(container) if program[0] == server.argv[0])
    return next(known, "").partition(".")[0]


def _task_worker(container: Container) -> str:
    """The program that takes tasks from a queue as a child of the shell; empty if there is none."""
    for program in _children(container):
        for each in _task_workers():
            if program[0] == each.run and (not each.word or each.word in program[1:]):
                return each.run
    return ""


def _forking_worker(container: Container) -> str:
    """The program that runs the tasks of a queue in child processes; empty if there is none."""
    variables = launch_of(container).variables
    for program in programs(container):
        for each in _task_workers():
            forks = each.forks
            if forks is None or program[0] != each.run or each.word not in program[1:]:
                continue
            chosen = option(program, *forks.flags) or variables.get(forks.variable, "")
            if chosen == "" or chosen in forks.values:
                return each.run
    return ""


def _signals_all(container: Container) -> Init | None:
    """The first process of a container, if it certainly sends SIGTERM to all others, too."""
    launch = launch_of(container)
    for init in _inits():
        words = launch.command[: launch.command.index("--")] if "--" in launch.command else launch.command
        if words:
            starts = words[0].rpartition("/")[2] == init.run and not set(words).intersection(
                init.unless_flags
            )
        else:
            starts = bool(Globs(init.images).matching(container.image))
        value = launch.variables.get(init.unless_env, "0" if launch.has_env_from else "1")
        if starts and value not in (None, "0"):
            return init
    return None


def _children(container: Container) -> Iterator[Program]:
    """The programs that a container's shell certainly starts as child processes. None without a `command`:
    then the image's entrypoint runs, which is unknown."""
    if container.typed.command:
        yield from filter(None, map(program_of, children(container.typed.argv)))


RULE = rule(__name__, check)
