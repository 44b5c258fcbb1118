"""rendezvous-at-localhost: trainings over several pods that meet at localhost, where each pod is alone, or
at a name that none of their pods has, or that wait for more pods than there are; and servers that give
another pod an address at which it finds itself."""

from __future__ import annotations

from typing import Final

from policies.accelerators.rank_launchers import rank_launcher, ranks_of
from policies.commands.hosts import reach_of, split_port
from policies.commands.model import Reach
from policies.containers.commands import container_command
from policies.containers.programs import Program, ProgramOptions, flags_and_values
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.data import entries
from policies.core.runs import run_of
from policies.core.settings import Field, Model
from policies.jobs.training import launcher_of
from policies.kube.group_kinds import JOB, JOB_SET, STATEFUL_SET
from policies.kube.json import dig
from policies.kube.names import is_numbered
from policies.kube.objects.jobs import Job, JobSet
from policies.kube.objects.workloads import StatefulSet
from policies.kube.pods import Container, Role
from policies.kube.quantities import whole_number
from policies.probes.serving import recognised

_DIGITS: Final = 6


class Rendezvous(Model):
    """An entry of the table rendezvous.yaml."""

    launchers: tuple[str, ...] = Field(min_length=1, description="programs, as in training_programs.yaml")
    nodes: tuple[str, ...] = Field(description="flags with the number of nodes: `2`, or `2:4`")
    rank: tuple[str, ...] = Field(description="flags with the rank of the node")
    address: tuple[str, ...] = Field(description="flags with the address at which the nodes meet")
    variables: tuple[str, ...] = Field((), description="variables with the same address")
    default: str = Field("", description="the address without a flag or a variable")
    source: str


_table = entries(Rendezvous, "policies.jobs", "rendezvous.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.typed.spec.host_network:
            continue  # pods of one node may meet there
        for container in template.containers(Role.MAIN):
            yield from _of_server(template, container, facts)
            for command in container_command(template, container).commands:
                yield from _of_command(target, template, container, command.argv)
                yield from _of_mpi(target, template, container, command.argv)


def _of_command(target: Target, template: PodTemplate, container: Container, words: Program) -> Findings:
    launcher = launcher_of(words)
    if not launcher:
        return
    options = ProgramOptions(words)
    for known in _table():
        if launcher not in known.launchers:
            continue
        address = options.value(known.address)
        yield from _at_no_pod(split_port(address or "")[0], target, template, container)
        nodes = _at_least(options.value(known.nodes))
        pods = _of_one_group(options.value(known.rank), address, target) if nodes > 1 else 0
        if 0 < pods < nodes:
            yield Finding(
                template.command_path(container),
                f"Container {container.name} waits for {nodes} nodes, but this {target.kind.kind} has {pods} "
                f"pod{'s' * (pods > 1)}. The missing ones never join, and all pods fail when the rendezvous "
                "times out.",
                f"Wait for {pods}, or raise the number of pods to {nodes}.",
            )
            continue
        if nodes < 2 or _is_first(options.value(known.rank), target, template):
            continue
        where = address
        if address is None and not _is_set_elsewhere(target, container, known):
            address, where = known.default, f"{known.default} (the default of {launcher})"
        if address and reach_of(split_port(address)[0]) is Reach.LOCAL:
            yield Finding(
                template.command_path(container),
                f"Container {container.name} waits for {nodes} nodes at {where}, but in each pod that "
                "address is the pod itself. No pod meets another one, and all of them fail when the "
                "rendezvous times out.",
                "Use the address of the first pod, such as NAME-0.SERVICE of a headless Service.",
            )


def _of_server(template: PodTemplate, container: Container, facts: Facts) -> Findings:
    """A variable of a server with the address at which servers in other pods ask it."""
    server = recognised(container, facts)
    known = None if server is None else server.preset.peer_address
    if (
        server is None
        or known is None
        or any(name in template.typed.metadata.labels for name in known.unless_labels)
    ):
        return
    value = server.variables.get(known.env) or ""
    wanted = server.options.value(known.flags) or ""
    if not value or not any(text in wanted for text in known.texts):
        return
    if reach_of(value.strip("[]")) is Reach.LOCAL and not _has_another(
        known.flags, template, container, facts
    ):
        yield Finding(
            template.at(container),
            f"Container {container.name} tells {server.name} in other pods to ask {value} {known.what}, and "
            "in each pod that address is the pod itself. Their requests fail, or the server ends.",
            f"Set {known.env} from status.podIP, by a fieldRef.",
            Certainty.LIKELY,
        )


def _has_another(flags: tuple[str, ...], template: PodTemplate, container: Container, facts: Facts) -> bool:
    """Whether the pod has another server, which may be the one that asks, in the same container or not."""
    words = " ".join(container.typed.argv)
    if any(words.count(flag) > 1 for flag in flags):
        return True
    others = (each for each in template.containers(Role.MAIN) if each is not container)
    return any(recognised(each, facts) is not None for each in others)


def _of_mpi(target: Target, template: PodTemplate, container: Container, words: Program) -> Findings:
    """More ranks than Open MPI has slots for in the operator's hostfile."""
    starts_ranks = bool(words) and words[0] in _MPI  # a redirection may have no words
    run = run_of(target.obj) if starts_ranks else None
    if run is None or run.life.slots is None or container.typed.env_from:
        return
    launcher, slots, role = rank_launcher(words[0], words), run.slots, run.role_of(template)
    if launcher is None or not slots or role is None or role.role.endless:
        return
    if container.typed.resources.has_devices:
        return  # a launcher may be a worker, too, as that of kubeflow.org/v1 with a GPU is
    texts = (*words, *(f"{each.name}={each.value}" for each in container.typed.env))
    if any(_OVERSUBSCRIBED in text.lower() for text in texts) or any(
        name in launcher.remote and value != _HOSTFILE for name, value in flags_and_values(words)
    ):
        return
    ranks = ranks_of(launcher, words, container)
    if ranks > slots:
        yield Finding(
            template.command_path(container),
            f"Container {container.name} starts {ranks} processes by {words[0]}, but the workers have "
            f"{slots} slot{'s' * (slots > 1)} ({run.life.slots.field} times their number). Open MPI starts "
            "none of them, and each retry fails in the same way.",
            f"Start {slots} processes, or raise {run.life.slots.field} or the number of workers.",
        )


_MPI: Final = ("mpirun", "mpiexec")
_OVERSUBSCRIBED: Final = "oversubscribe"
"""In options, and in variables such as OMPI_MCA_rmaps_base_oversubscribe."""
_HOSTFILE: Final = "/etc/mpi/hostfile"


def _of_one_group(rank: str | None, address: str | None, target: Target) -> int:
    """The number of all pods of a workload that is known to be one group; 0 if others may join. A rank that
    is written belongs to one of several workloads."""
    run = run_of(target.obj)
    if run is None or run.is_elastic or (rank is not None and whole_number(rank, _DIGITS) is not None):
        return 0
    if not run.life.collective:
        pod = split_port(address or "")[0].lower().partition(".")[0]
        names = _names_of_pods(target, target.templates[0])[0]
        if not any(is_numbered(pod, name) for name in names):
            return 0
    if target.kind == JOB:
        return target.read(Job).spec.at_once
    return sum(role.pods for role in run.roles())


def _at_no_pod(host: str, target: Target, template: PodTemplate, container: Container) -> Findings:
    """A name like that of a pod of the workload, under a Service to which the pods do not belong: the DNS of
    the cluster has `POD.SERVICE` only for the `subdomain` of the pod."""
    pod, _, rest = host.lower().partition(".")
    service = rest.partition(".")[0]
    names, own = _names_of_pods(target, template)
    if not service or service == own or not any(is_numbered(pod, name) for name in names):
        return
    has = f"have names under Service {own} only" if own else "have no names, because subdomain is not set"
    yield Finding(
        template.command_path(container),
        f"Container {container.name} looks for the first pod at {host}, but the pods of this "
        f"{target.kind.kind} {has}. That name doesn't resolve, so no pod meets another one.",
        f"Use {pod}.{own}." if own else f"Set subdomain: {service}, the name of a headless Service.",
    )


def _names_of_pods(target: Target, template: PodTemplate) -> tuple[tuple[str, ...], str]:
    """What the names of the workload's pods begin with, before one or two numbers, and their `subdomain`.

    Source: JobSet v0.10, GetSubdomain in pkg/controllers/jobset_controller.go.
    """
    own = template.typed.spec.subdomain
    if not dig(target.obj, "metadata", "name"):
        return (), ""
    if target.kind == JOB_SET:
        spec = target.read(JobSet).spec
        if dig(target.spec, "network", "enableDNSHostnames") is not False:
            own = spec.network.subdomain or target.name
        return tuple(f"{target.name}-{job.name}-" for job in spec.replicated_jobs), own
    if target.kind == STATEFUL_SET:
        return (f"{target.name}-",), target.read(StatefulSet).spec.service_name
    if target.kind == JOB and target.read(Job).spec.completion_mode == "Indexed":
        return (f"{target.name}-",), own
    return (), ""


def _at_least(nodes: str | None) -> int:
    """The least number of nodes, such as 2 of `2:4`; 0 if it is unknown."""
    return whole_number((nodes or "").partition(":")[0], _DIGITS) or 0


def _is_first(rank: str | None, target: Target, template: PodTemplate) -> bool:
    """Whether the pod may be the one where the others meet, for which localhost is right: the only pod of its
    template, unless its rank says something else."""
    if rank is not None and whole_number(rank, _DIGITS) is not None:
        return int(rank) == 0
    return _pods(target, template) < 2


def _pods(target: Target, template: PodTemplate) -> int:
    """The number of pods of a template."""
    if target.kind == JOB:
        return target.read(Job).spec.at_once
    run = run_of(target.obj)
    role = run.role_of(template) if run is not None else None
    return target.replicas if role is None else role.pods


def _is_set_elsewhere(target: Target, container: Container, known: Rendezvous) -> bool:
    """Whether a variable sets the address, or may: Kubeflow's operators add the variables themselves."""
    if target.kind.group.endswith("kubeflow.org") or container.typed.env_from:
        return True
    return any(each.name in known.variables for each in container.typed.env)


RULE = rule(__name__, check)
