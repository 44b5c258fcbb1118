"""shell-keeps-sigterm: servers that are child processes of a shell, which does not pass SIGTERM on."""

from __future__ import annotations

from collections.abc import Iterator

from policies.commands import children
from policies.containers.programs import Program, program_of
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.settings import Field, Model
from policies.jobs.training import runs_training
from policies.kube.pods import Container, Role
from policies.probes.serving import recognised, serving_containers


class TaskWorker(Model):
    """An entry of `task_workers.yaml`."""

    run: str = Field(description="the program")
    word: str = Field("", description="an argument with which it takes tasks; empty: it always does")
    source: str = Field(description="the documentation of what it does at SIGTERM")


@data.table
def _task_workers() -> tuple[TaskWorker, ...]:
    return data.load_list(TaskWorker, "policies.disruption", "task_workers.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        spec = template.typed.spec
        if template.completes or spec.share_process_namespace or spec.host_pid:
            continue
        after = f"the whole grace period of {spec.grace} s, the kubelet kills"
        for container in serving_containers(template.view, facts):
            server = _child(container, facts) if container.role is Role.MAIN else ""
            if server and not runs_training(template.view):
                lost = f"After {after} {server} and its open requests."
                yield _finding(template, container, server, lost)
        for container in template.containers(Role.MAIN):
            if worker := _task_worker(container):
                lost = f"{worker} takes further tasks, and after {after} it with those it has begun."
                yield _finding(template, container, worker, lost)


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


def _children(container: Container) -> Iterator[Program]:
    """The programs that a container's shell certainly starts as child processes. None without a `command`:
    then the image's entrypoint runs, which is unknown."""
    if container.typed.command:
        yield from filter(None, map(program_of, children(container.typed.argv)))


RULE = rule(__name__, check)
