"""shell-keeps-sigterm: servers that are child processes of a shell, which does not pass SIGTERM on."""

from __future__ import annotations

from policies.commands import children
from policies.containers.programs import program_of
from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, Target, rule
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
        for container in serving_containers(template.view, facts):
            server = _child(container, facts) if container.role is Role.MAIN else ""
            if server and not runs_training(template.view):
                yield Finding(
                    template.at(container, "command"),
                    f"Container {container.name} runs {server} as a child of its shell, and a shell that "
                    "is the first process doesn't pass on SIGTERM. After the whole grace period of "
                    f"{spec.grace} s, the kubelet kills {server} and its open requests.",
                    f"Start {server} with `exec` as the last command of the script, or pass the signal on "
                    "with a trap.",
                )
        for container in template.containers(Role.MAIN):
            if worker := _task_worker(container):
                yield Finding(
                    template.at(container, "command"),
                    f"Container {container.name} runs {worker} as a child of its shell, and a shell that is "
                    f"the first process doesn't pass on SIGTERM. {worker} takes further tasks, and after the "
                    f"whole grace period of {spec.grace} s, the kubelet kills it with those it has begun.",
                    f"Start {worker} with `exec` as the last command of the script, or pass the signal on "
                    "with a trap.",
                )


def _child(container: Container, facts: Facts) -> str:
    """The server that a container's shell certainly starts as a child process; empty if there is none.

    Without a `command` the image's entrypoint runs, which is unknown.
    """
    if not container.typed.command:
        return ""
    server = recognised(container, facts)
    if server is None or not server.argv:
        return ""
    for words in children(container.typed.argv):
        program = program_of(words)
        if program and program[0] == server.argv[0]:
            return program[0].partition(".")[0]
    return ""


def _task_worker(container: Container) -> str:
    """The program that takes tasks from a queue as a child of the shell; empty if there is none."""
    if not container.typed.command:
        return ""
    for words in children(container.typed.argv):
        program = program_of(words)
        for each in _task_workers():
            if program and program[0] == each.run and (not each.word or each.word in program[1:]):
                return each.run
    return ""


RULE = rule(__name__, check)
