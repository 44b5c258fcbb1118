"""liveness-, readiness-, startup-external-dependency: probes that ask another host, or more than the process.

If the host fails, every replica is restarted or leaves its Service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from policies.commands import Command, CommandSummary, Host, Reach, reach_of
from policies.containers.commands import container_command
from policies.containers.programs import idles
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.groups import RAY_NODE_TYPE
from policies.core.services import own_service, selects
from policies.core.workloads import is_builtin
from policies.kube.objects.services import Service
from policies.kube.pods import Role
from policies.probes.endpoints import liveness_advice
from policies.probes.liveness_program import is_program
from policies.probes.preset import dependency_of
from policies.probes.probe import LIVENESS, READINESS, STARTUP, ContainerProbe, probes
from policies.probes.serving import recognised

_HANDLERS: Final = ("httpGet", "tcpSocket", "exec", "grpc")
_SHELLS: Final = frozenset({"sh", "bash"})
_FETCHES: Final = frozenset({"curl", "wget"})
_EXIT: Final = re.compile(r"exit( \$\?| 0*[1-9][0-9]{0,2})?")
"""An `exit` with the status of the command before, or with that of a failure."""
_PASSES: Final = (("exit", "0"), ("true",), (":",))
_FAILS: Final = re.compile(r"--fail|--fail-with-body|-[a-eg-zA-Z]*f[a-zA-Z]*")
_CONSEQUENCE: Final = {
    LIVENESS: "every replica is restarted at once",
    READINESS: "every replica leaves its Service at once",
    STARTUP: "no replica can start or restart",
}
_REMEDIATION: Final = {
    LIVENESS: (
        "Let liveness check only the container (httpGet without host, or localhost in a command), and "
        "handle failures of the dependency with retries and alerts."
    ),
    READINESS: (
        "Let readiness check only the container, and handle errors of the dependency in the application: a "
        "degraded answer is better than none."
    ),
    STARTUP: "Let startup check only the container, and wait for the dependency in the application.",
}


def _asking_others(field: str, target: Target, facts: Facts) -> Iterator[Finding]:
    """One finding for each probe at `field` that reaches a host outside its pod."""
    for probe in probes(target, field):
        if (field == STARTUP and _repeats_liveness(probe)) or is_program(probe.spec):
            continue
        if field == READINESS and not _is_routed_to(target, probe.template, facts):
            continue
        finding = _handler_finding(probe) or _exec_finding(probe, target, facts)
        if finding is None or _is_own_service(probe, target, facts):
            continue
        if field == LIVENESS and idles(container_command(probe.template, probe.container)):
            continue  # a restart interrupts nothing
        if field != LIVENESS and finding.certainty is Certainty.CERTAIN and facts.is_unread(Service):
            finding = replace(finding, certainty=Certainty.LIKELY)  # it may be the pods' own Service
        yield finding


def _is_routed_to(target: Target, template: PodTemplate, facts: Facts) -> bool:
    """Whether something may send requests to the pods: a declared port or a Service shows it. Nobody notices
    the readiness of others, such as a pod that waits for a server to run a test against it, or a Job's."""
    if not is_builtin(target.kind):
        return True
    services = facts.objects(Service)
    if not template.completes and any(container.tcp_ports for container in template.containers()):
        return True
    if template.completes and services is None:
        return False
    if services is None:  # a pod that only idles serves nobody
        mains = template.containers(Role.MAIN)
        return not all(idles(container_command(template, container)) for container in mains)
    labels = template.typed.metadata.labels
    return any(selects(service, labels) for service in services)


def _repeats_liveness(probe: ContainerProbe) -> bool:
    """Whether liveness has the same handler, as with `standard-probes`, so that its finding is enough."""
    liveness = probe.container.spec.get(LIVENESS)
    return isinstance(liveness, dict) and any(
        handler in probe.spec and probe.spec[handler] == liveness.get(handler) for handler in _HANDLERS
    )


def _is_own_service(probe: ContainerProbe, target: Target, facts: Facts) -> bool:
    """Whether it only asks its own Service, which `readiness-waits-on-own-service` reports."""
    if probe.field == LIVENESS:
        return False
    names = [host.lower() for _, host in _hosts(probe)]
    names += [host.name for host in probe.command.hosts if host.reach is not Reach.LOCAL]
    hosts = [name for name in names if name]
    return bool(hosts) and all(
        own_service(name, target, probe.template, probe.container, facts) is not None for name in hosts
    )


def _handler_finding(probe: ContainerProbe) -> Finding | None:
    handler, host = next(_hosts(probe), ("", ""))
    return _host_finding(probe, handler, host) if host else None


def _hosts(probe: ContainerProbe) -> Iterator[tuple[str, str]]:
    """The handler with a `host`, and the host."""
    for handler, action in (("httpGet", probe.typed.http_get), ("tcpSocket", probe.typed.tcp_socket)):
        if action is not None and action.host:
            yield handler, action.host


def _host_finding(probe: ContainerProbe, handler: str, host: str) -> Finding | None:
    """Report a `host` in httpGet or tcpSocket. The kubelet asks from the node, so loopback is the node's."""
    on_host = probe.template.typed.spec.host_network
    reach = reach_of(host)
    path = probe.at(handler, "host")
    if reach is Reach.LOCAL:
        if on_host:
            return None
        return Finding(
            path,
            f"The {probe.name} checks {host}, which is the node's loopback address and not the pod's, "
            "because the kubelet sends probes from the node.",
            "Remove host, so that the kubelet uses the pod's own address. A server that listens only on "
            "loopback needs an exec probe.",
        )
    hint = "Remove host, so that the kubelet uses the pod's own address."
    if on_host or reach is Reach.UNDECIDABLE:
        # With hostNetwork, the address may be the node's, as in the static pods of a control plane.
        return Finding(
            path,
            f"The {probe.name} checks {host}, which may be another machine. If it is and fails, "
            f"{_CONSEQUENCE[probe.field]}.",
            hint,
            Certainty.UNDECIDED,
        )
    return Finding(
        path,
        f"The {probe.name} checks {host} instead of its pod. When {host} fails, {_CONSEQUENCE[probe.field]}.",
        hint,
    )


def _exec_finding(probe: ContainerProbe, target: Target, facts: Facts) -> Finding | None:
    summary = probe.command
    external = summary.reaching(Reach.EXTERNAL)
    if probe.field != LIVENESS:
        external = tuple(
            each
            for each in external
            if own_service(each.name, target, probe.template, probe.container, facts) is None
        )
    deciding = {host for each in _deciding(summary) for host in each.hosts}
    certain = tuple(host for host in external if host in deciding)
    if certain:
        return Finding(
            probe.at("exec.command"),
            f"The {probe.name} depends on {_listed(certain)}. When that fails, {_CONSEQUENCE[probe.field]}.",
            _REMEDIATION[probe.field],
        )
    if external:
        return Finding(
            probe.at("exec.command"),
            f"The {probe.name} asks {_listed(external)} only in some cases, or ignores its failure. If the "
            f"probe waits too long for it, or fails with it, {_CONSEQUENCE[probe.field]}.",
            _REMEDIATION[probe.field],
            Certainty.UNDECIDED,
        )
    undecided = summary.reaching(Reach.UNDECIDABLE)
    if _is_ray_head(probe):
        undecided = tuple(host for host in undecided if host.client != "ray")
    if not undecided:
        return None
    empty_variable = next((note for note in summary.undecidable if "is empty in a probe" in note), None)
    if empty_variable and not any(host.name for host in undecided):
        return Finding(
            probe.at("exec.command"),
            f"The {probe.name} names no host, since {empty_variable}.",
            "Run it in a shell (sh -c) and write $NAME instead of $(NAME): the shell sees every variable.",
            Certainty.UNDECIDED,
        )
    return Finding(
        probe.at("exec.command"),
        f"The {probe.name} depends on {_listed(undecided)}, which only the running container knows. If "
        f"it's another host and fails, {_CONSEQUENCE[probe.field]}.",
        _REMEDIATION[probe.field],
        Certainty.UNDECIDED,
    )


def _deciding(summary: CommandSummary) -> Iterator[Command]:
    """The commands whose failure certainly fails the probe: they always run, or unless it has failed before,
    and nothing forgives them."""
    commands = summary.commands
    if commands and not commands[-1].conditional and commands[-1].argv in _PASSES:
        return
    failed = False
    for each in commands:
        if not each.forgiven and (failed or not each.conditional):
            yield each
        failed = failed or (each.name == "exit" and each.argv not in _PASSES)


def _is_ray_head(probe: ContainerProbe) -> bool:
    """Whether the container starts the head of a Ray cluster, which `ray status` there asks."""
    labels, path = probe.template.typed.metadata.labels, probe.template.path
    if labels.get(RAY_NODE_TYPE) == "head" or path.endswith("headGroupSpec.template"):
        return True
    commands = container_command(probe.template, probe.container).commands
    return any(each.name == "ray" and {"start", "--head"} <= set(each.argv) for each in commands)


def _listed(hosts: tuple[Host, ...]) -> str:
    """Up to two hosts as a phrase, each with the program that asks it."""
    shown = [
        f"{host.name[:60] or 'a host'} ({'a lookup with ' if host.name_lookup else ''}{host.client})"
        for host in dict.fromkeys(hosts)
    ]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return (", " if more else " and ").join(shown[:2]) + more


def liveness(target: Target, facts: Facts) -> Findings:
    yield from _asking_others(LIVENESS, target, facts)
    for probe in probes(target, LIVENESS):
        if finding := _dependent_endpoint(probe, facts):
            yield finding


def _dependent_endpoint(probe: ContainerProbe, facts: Facts) -> Finding | None:
    """Report an endpoint of a recognised server that can fail while the process is alive."""
    asked = probe.typed.http_get
    path = _fetched_path(probe) if asked is None else "" if asked.host else asked.path
    path = path.partition("?")[0]
    server = recognised(probe.container, facts) if path else None
    dependency = None if server is None else dependency_of(server.preset, path)
    if server is None or dependency is None:
        return None
    and_readiness = f", and {path} for readiness" if path == server.preset.ready_path else ""
    return Finding(
        probe.at("exec.command") if asked is None else probe.at("httpGet", "path"),
        f"The {probe.name} sends GET {path} to {server.name}, which checks {dependency.of}. If that fails, "
        "the kubelet restarts a server that is alive.",
        f"For liveness, use {liveness_advice(probe.container, server)} instead{and_readiness}.",
        Certainty.UNDECIDED,
    )


def _fetched_path(probe: ContainerProbe) -> str:
    """The path that a command gets from its own pod, and that decides whether it fails; empty if none."""
    around = [each for each in probe.command.commands if each.name not in _SHELLS]
    fetched = [each for each in around if not _EXIT.fullmatch(" ".join(each.argv))]
    if len(fetched) != 1 or fetched[0].name not in _FETCHES:
        return ""
    (command,) = fetched
    urls = [word for word in command.argv[1:] if word.startswith(("http://", "https://"))]
    local = bool(command.hosts) and all(host.reach is Reach.LOCAL for host in command.hosts)
    # Without this flag, curl ends with 0 whatever the status of the answer is.
    fails = command.name != "curl" or any(_FAILS.fullmatch(word) for word in command.argv[1:])
    if len(urls) != 1 or not local or not fails or command.forgiven or command.conditional:
        return ""
    if probe.typed.exec is None or any("! " in word for word in probe.typed.exec.command):
        return ""  # it may be negated
    return f"/{urls[0].partition('://')[2].partition('/')[2]}"


RULES = (
    rule(__name__, liveness, requires=(PodFeature.LIVENESS,), name="liveness-external-dependency"),
    *(
        rule(__name__, partial(_asking_others, field), requires=(feature, PodFeature.OTHER_HOST), name=name)
        for name, field, feature in (
            ("readiness-external-dependency", READINESS, PodFeature.READINESS),
            ("startup-external-dependency", STARTUP, PodFeature.STARTUP),
        )
    ),
)
