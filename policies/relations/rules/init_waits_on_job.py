"""init-waits-on-job: init containers that wait for a Job that is deleted, or deployed only after them, and
servers that are not ready before such a Job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.commands import CommandSummary
from policies.containers.commands import container_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.data import entries
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.kube.group_kinds import JOB, SERVING
from policies.kube.json import Json, text
from policies.kube.objects.jobs import Job
from policies.kube.objects.metadata import Object
from policies.kube.objects.pods import ContainerSpec, PodSpec
from policies.kube.objects.reading import readable
from policies.kube.objects.workloads import Replicated
from policies.kube.pods import Role
from policies.relations.order import Phase, argo_position, helm_position

_CLIENTS: Final = frozenset({"kubectl", "oc"})
_WORDS: Final = frozenset({"job", "jobs", "job.batch", "jobs.batch"})
_WAITER: Final = "wait_for.sh"
"""Its arguments are a kind and a name: https://github.com/groundnuty/k8s-wait-for."""
_WAITER_KINDS: Final = frozenset({"job", "job-we", "job-wr"})
_DELETE: Final = "helm.sh/hook-delete-policy"


class Migration(Model):
    """An entry of the table migrations.yaml."""

    waits: str = Field(description="the command that waits for it, and fails if it does not come")
    server: bool = Field(False, description="whether a server waits, which is not ready before it")
    path: str = Field("", description="path of the readinessProbe that fails before it; empty: of any probe")
    done_by: tuple[str, ...] = Field(min_length=1, description="the commands or values that do it")
    source: str = Field(description="where this is from")


_migrations = entries(Migration, "policies.relations", "migrations.yaml")


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.cluster
    if not isinstance(cluster, WholeObjects) or target.has_controller:
        return
    waiting = target.read(Object)
    for template in target.templates:
        for container in template.containers(Role.INIT):
            summary, path = container_command(template, container), template.command_path(container)
            for name in dict.fromkeys(_jobs_waited_for(summary)):
                job = _job(name, facts.namespace, cluster)
                lost = _lost(job, completes=template.completes) if job is not None else ""
                late = _deployed_later(waiting, job) if job is not None and not lost else ""
                if lost or late:
                    yield Finding(
                        path,
                        f"Init container {container.name} waits for Job {name}, {lost or late}",
                        _HINT_LATE if late else _HINT_LOST,
                        Certainty.LIKELY if late else Certainty.CERTAIN,
                    )
            for job, late in _late_migrations(waiting, _waited_for(summary), facts, cluster):
                yield Finding(
                    path,
                    f"Init container {container.name} waits for the migration of Job {job.name}, {late}",
                    _HINT_LATE,
                    Certainty.LIKELY,
                )
        for container in () if template.completes else template.containers(Role.MAIN):
            migrations = _delaying(container.typed)
            for job, late in _late_migrations(waiting, migrations, facts, cluster):
                yield Finding(
                    template.at(container, "readinessProbe"),
                    f"Container {container.name} is not ready before Job {job.name} has ended, {late}",
                    _HINT_BESIDE,
                    Certainty.LIKELY,
                )


def _waited_for(summary: CommandSummary) -> list[Migration]:
    """The migrations for which a command waits, at its end or in a loop."""
    looped = any(not loop.bounded for loop in summary.loops)
    waiting = [" ".join(each.argv) for each in summary.commands[0 if looped else -1 :]]
    return [
        each
        for each in _migrations()
        if not each.server and any(_runs(words, each.waits) for words in waiting)
    ]


def _delaying(container: ContainerSpec) -> list[Migration]:
    """The migrations before which a server is not ready."""
    probe = container.readiness_probe
    if probe is None:
        return []
    path, words = "" if probe.http_get is None else probe.http_get.path, _words_of(container)
    return [
        each for each in _migrations() if each.server and each.path in ("", path) and _runs(words, each.waits)
    ]


def _late_migrations(
    waiting: Object, migrations: list[Migration], facts: Facts, cluster: WholeObjects
) -> Iterator[tuple[Job, str]]:
    """The Job that does a migration, if nothing else does it, and why it starts too late. Of several
    workloads that wait for it, the first by name reports it."""
    for migration in migrations:
        waits, doing = facts.cache.once_for(migration.waits, _around, migration, facts.namespace, cluster)
        if waiting.name != min(waits, default="") or len(doing) != 1:
            continue
        job = _job(doing[0], facts.namespace, cluster)
        if job is not None and (late := _deployed_later(waiting, job)):
            yield job, late


def _around(migration: Migration, namespace: str, cluster: WholeObjects) -> tuple[list[str], list[str]]:
    """The names of the workloads that wait for a migration, and of those and the Jobs that do it."""
    known = [(each, _words(each)) for kind in SERVING for each in cluster.every(kind, namespace)]
    waits = [text(each, "metadata", "name") for each, words in known if migration.waits in words]
    known += [(each, _words(each)) for each in cluster.every(JOB, namespace)]
    doing = [
        text(each, "metadata", "name")
        for each, words in known
        if any(command in words.replace(migration.waits, "") for command in migration.done_by)
    ]
    return waits, doing


def _runs(words: str, command: str) -> bool:
    """Whether the words of a command run one of the table, also by its path or with an interpreter."""
    return f"/{command} " in f"/{words} " or f" {command} " in f"{words} "


def _words(workload: Json) -> str:
    """The words of all commands of a workload's pods."""
    found = readable(workload, Replicated)
    pod = PodSpec() if found is None else found.spec.template.spec
    return " ".join(map(_words_of, (*pod.init_containers, *pod.containers)))


def _words_of(container: ContainerSpec) -> str:
    """The words of a container's command, and the values of its variables."""
    return " ".join((*container.argv, *(each.value for each in container.env)))


_HINT_LOST: Final = (
    "Wait for the Job's result instead, such as the database's schema, or do its work in the init "
    "container. Or keep the Job from being deleted."
)
_HINT_BESIDE: Final = "Make the Job no hook, so that it runs next to the pods."
_HINT_LATE: Final = "Make the Job a hook that runs earlier (pre-install, PreSync), or no hook at all."


def _job(name: str, namespace: str, cluster: WholeObjects) -> Job | None:
    found = cluster.named(JOB, namespace, name)
    return None if found is None else readable(found, Job)


def _lost(job: Job, *, completes: bool) -> str:
    """Why the Job does not exist when a pod of the workload starts later."""
    if completes:
        return ""  # its pods start once
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is not None:
        return (
            f"which is deleted {ttl} s after it ends (ttlSecondsAfterFinished). Pods that start later, "
            "after an eviction or by an autoscaler, never leave Init."
        )
    if "hook-succeeded" in job.metadata.annotations.get(_DELETE, ""):
        return (
            f"which Helm deletes after it ends ({_DELETE}). Pods that start later, after an eviction or by "
            "an autoscaler, never leave Init."
        )
    return ""


def _deployed_later(waiting: Object, job: Job) -> str:
    """Why the Job starts only after the workload is ready."""
    helm, argo = (position_of(job) for position_of in (helm_position, argo_position))
    later = next((each for each in (helm, argo) if each is not None and each.phase is Phase.AFTER), None)
    own = argo_position(waiting)
    if later is None or own is None or own.phase is Phase.AFTER:
        return ""
    return (
        f"which is deployed {later.description}. With `helm --wait` or Argo CD, it starts only when the "
        "pods that wait for it are ready, so the deployment never ends."
    )


def _jobs_waited_for(summary: CommandSummary) -> Iterator[str]:
    """The names of the Jobs that an init container waits for, as they are written."""
    looped = any(not loop.bounded for loop in summary.loops)
    for command in summary.commands:
        if command.name == _WAITER and len(command.argv) > 2 and command.argv[1] in _WAITER_KINDS:
            yield command.argv[2]
        if command.name in _CLIENTS and ("wait" in command.argv or (looped and "get" in command.argv)):
            yield from _operands(command.argv[1:])


def _operands(words: tuple[str, ...]) -> Iterator[str]:
    """The names after `job/`, or after the word `job`."""
    for index, word in enumerate(words):
        kind, slash, name = word.partition("/")
        if kind in _WORDS and slash and name:
            yield name
        elif word in _WORDS and words[index + 1 : index + 2] and not words[index + 1].startswith("-"):
            yield words[index + 1]


RULE = rule(__name__, check)
