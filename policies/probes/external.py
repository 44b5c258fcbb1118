"""Probes that ask somebody else: when that one fails, every replica is restarted or leaves at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from policies.commands import Host, Reach, reach_of
from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.services import own_service
from policies.core.target import Target
from policies.kube.json import text
from policies.probes.probe import LIVENESS, READINESS, STARTUP, Probe, probes

_HANDLERS: Final = ("httpGet", "tcpSocket", "exec", "grpc")
_CONSEQUENCE: Final = {
    LIVENESS: "every replica is restarted at once",
    READINESS: "every replica leaves its Service at once",
    STARTUP: "no replica can start or restart",
}
_MEND: Final = {
    LIVENESS: "Let liveness ask the container alone (httpGet without host, or localhost in a command) and "
    "leave the dependency to retries and alerts.",
    READINESS: "Let readiness ask the container alone, and answer errors of the dependency in the "
    "application: a degraded answer serves better than none.",
    STARTUP: "Let the startup probe ask the container alone, and wait for the dependency in the application.",
}


def check(field: str, target: Target, facts: Facts) -> Iterator[Finding]:
    """What the probes at `field` reach outside their pod, one finding a probe."""
    for probe in probes(target, field):
        if field == STARTUP and _is_liveness_again(probe):
            continue
        finding = _handler_finding(probe) or _exec_finding(probe, target, facts)
        if finding is not None and not _is_own_service(probe, target, facts):
            yield finding


def _is_liveness_again(probe: Probe) -> bool:
    """Whether liveness asks the same, as where `standard-probes` put it in front: one hazard."""
    liveness = probe.container.spec.get(LIVENESS)
    return isinstance(liveness, dict) and any(
        handler in probe.spec and probe.spec[handler] == liveness.get(handler) for handler in _HANDLERS
    )


def _is_own_service(probe: Probe, target: Target, facts: Facts) -> bool:
    """Whether the only thing wrong is that it waits for itself: `readiness-waits-on-own-service` says so."""
    if probe.field == LIVENESS:
        return False
    names = [text(probe.spec, handler, "host").lower() for handler in ("httpGet", "tcpSocket")]
    names += [host.name for host in probe.command.hosts if host.reach is not Reach.LOCAL]
    asked = [name for name in names if name]
    return bool(asked) and all(
        own_service(name, target, probe.template, probe.container, facts) is not None for name in asked
    )


def _handler_finding(probe: Probe) -> Finding | None:
    for handler in ("httpGet", "tcpSocket"):
        host = text(probe.spec, handler, "host")
        if host:
            return _host_finding(probe, handler, host)
    return None


def _host_finding(probe: Probe, handler: str, host: str) -> Finding | None:
    """A `host` in httpGet or tcpSocket. Kubelet asks from the node, so loopback there is the node's."""
    on_host = probe.template.spec.get("hostNetwork") is True
    reach = reach_of(host)
    path = probe.at(handler, "host")
    if reach is Reach.LOCAL:
        if on_host:
            return None
        return Finding(
            path,
            f"The {probe.name} asks {host}, which is the node's own loopback and not the pod's: kubelet "
            "probes from the node.",
            "Drop host: empty means the pod's own address. What listens on loopback alone needs an exec "
            "probe.",
        )
    hint = "Drop host: empty means the pod's own address."
    if on_host or reach is Reach.UNDECIDABLE:
        # With hostNetwork an address may well be the node's own, as in the static pods of a control plane.
        return Finding(
            path,
            f"The {probe.name} asks {host}, which may be another machine: if it is and fails, "
            f"{_CONSEQUENCE[probe.field]}.",
            hint,
            Certainty.UNDECIDED,
        )
    return Finding(
        path,
        f"The {probe.name} asks {host} instead of its own pod: when {host} fails, "
        f"{_CONSEQUENCE[probe.field]}.",
        hint,
    )


def _exec_finding(probe: Probe, target: Target, facts: Facts) -> Finding | None:
    summary = probe.command
    external = summary.reaching(Reach.EXTERNAL)
    if probe.field != LIVENESS:
        named = (own_service(each.name, target, probe.template, probe.container, facts) for each in external)
        external = tuple(each for each, own in zip(external, named, strict=True) if own is None)
    if external:
        asked = _listed(external)
        return Finding(
            probe.at("exec.command"),
            f"The {probe.name} asks {asked}: when that fails, {_CONSEQUENCE[probe.field]}.",
            _MEND[probe.field],
        )
    perhaps = summary.reaching(Reach.UNDECIDABLE)
    if not perhaps:
        return None
    emptied = next((note for note in summary.undecidable if "is empty in a probe" in note), None)
    if emptied and not any(host.name for host in perhaps):
        return Finding(
            probe.at("exec.command"),
            f"The {probe.name} names no host, since {emptied}.",
            "Run it in a shell (sh -c) and write $NAME instead of $(NAME): the shell sees every variable.",
            Certainty.UNDECIDED,
        )
    return Finding(
        probe.at("exec.command"),
        f"The {probe.name} asks {_listed(perhaps)}, which only the running container knows: if it is another "
        f"host and fails, {_CONSEQUENCE[probe.field]}.",
        _MEND[probe.field],
        Certainty.UNDECIDED,
    )


def _listed(hosts: tuple[Host, ...]) -> str:
    """Up to two hosts for a sentence, each with the program that asks it."""
    shown = [
        f"{host.name[:60] or 'a host'} ({'a look-up with ' if host.name_lookup else ''}{host.client})"
        for host in dict.fromkeys(hosts)
    ]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return (", " if more else " and ").join(shown[:2]) + more


# --- the rules ---------------------------------------------------------------------------------

_PROBES: Final = "https://kubernetes.io/docs/concepts/workloads/pods/probes/"
_BEST_PRACTICE: Final = "https://srcco.de/posts/kubernetes-liveness-probes-are-dangerous.html"


def _workload(probes_yaml: str) -> str:
    return (
        """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: ranker}
spec:
  replicas: 3
  selector: {matchLabels: {app: ranker}}
  template:
    metadata: {labels: {app: ranker}}
    spec:
      containers:
        - name: server
          image: registry.example/ranker:3
          ports: [{containerPort: 8080}]
"""
        + probes_yaml
    )


_LIVENESS_YAML: Final = """\
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            periodSeconds: 20
            failureThreshold: 6
"""

RULES = (
    Rule(
        id="liveness-external-dependency",
        family=Family.CASCADE,
        check=partial(check, LIVENESS),
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        what="A livenessProbe that touches another host: httpGet.host, tcpSocket.host, or a command that "
        "runs a network or database client against anything but the pod itself.",
        why="Liveness answers one question: would a restart help? When a database or another service is "
        "slow, a restart helps nothing, yet kubelet restarts every replica within the same minute; all of "
        "them load their models again and reconnect at once, and the slow dependency drowns. A short fault "
        "of one service becomes a long outage of all that ask it. A host of 127.0.0.1 in httpGet is the "
        "node's loopback, because kubelet probes from the node.",
        mend="Ask the container alone: httpGet without host, or localhost in a command. Report the state of "
        "dependencies in metrics and alerts.",
        source=f"{_PROBES} and {_BEST_PRACTICE}",
        bad=_workload("""\
          livenessProbe:
            exec: {command: [curl, -sf, -m, "3", "http://payments/health"]}
            periodSeconds: 20
            timeoutSeconds: 5
            failureThreshold: 6
"""),
        good=_workload(_LIVENESS_YAML),
    ),
    Rule(
        id="readiness-external-dependency",
        family=Family.CASCADE,
        check=partial(check, READINESS),
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        what="A readinessProbe that touches another host, by httpGet.host, tcpSocket.host or a client in a "
        "command.",
        why="Readiness takes one replica out of its Service when that replica can't serve. A shared "
        "dependency fails for all replicas in the same second, so the Service loses its last endpoint and "
        "callers get refused connections instead of errors they could handle; their own readiness then "
        "fails in turn. Rollouts stop too, because no new pod becomes ready.",
        mend="Ask the container alone, and let the application answer with an error or a degraded result "
        "while its dependency is away.",
        source=f"{_PROBES} and {_BEST_PRACTICE}",
        bad=_workload(
            _LIVENESS_YAML
            + """\
          readinessProbe:
            exec: {command: [sh, -c, "exec 3<>/dev/tcp/features-db/5432"]}
            timeoutSeconds: 5
"""
        ),
        good=_workload(
            _LIVENESS_YAML
            + """\
          readinessProbe:
            exec: {command: [sh, -c, "exec 3<>/dev/tcp/localhost/8080"]}
            timeoutSeconds: 5
"""
        ),
    ),
    Rule(
        id="startup-external-dependency",
        family=Family.CASCADE,
        check=partial(check, STARTUP),
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="A startupProbe that touches another host, by httpGet.host, tcpSocket.host or a client in a "
        "command.",
        why="While the dependency is away no pod passes its start: autoscaling adds pods that can't begin, a "
        "node failure can't be made good, and kubelet kills each start when its budget ends, so the "
        "dependency meets a crowd of restarting clients when it comes back.",
        mend="Ask the container alone, and let the application wait for the dependency, with backoff.",
        source=f"{_PROBES} and {_BEST_PRACTICE}",
        bad=_workload(
            _LIVENESS_YAML
            + """\
          startupProbe:
            exec: {command: [nc, -z, -w, "2", features-db, "5432"]}
            timeoutSeconds: 5
            failureThreshold: 30
"""
        ),
        good=_workload(
            _LIVENESS_YAML
            + """\
          startupProbe:
            httpGet: {path: /live, port: 8080}
            failureThreshold: 30
"""
        ),
    ),
)
