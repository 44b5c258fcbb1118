"""Pods that wait for themselves through their own Service, and waits that have no end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.commands import CommandSummary, Host, Reach
from policies.containers.commands import container_command
from policies.core.contracts import Family, Rule
from policies.core.facts import Facts, Resource
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.services import own_service
from policies.core.target import PodTemplate, Target
from policies.kube.json import strings
from policies.kube.pods import Container, Role
from policies.startup.rules.ordered_start_deadlock import waits_for_peer
from policies.startup.waits import init_waits, probe_waits

KUBERAY_WAIT: Final = "wait-gcs-ready"
"""The init container by which KubeRay's workers wait for their head; it can't be left out."""


# --- one's own Service -------------------------------------------------------------------------


def check_probes(target: Target, facts: Facts) -> Iterator[Finding]:
    if not facts.listing(Resource.SERVICES):
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            told: set[str] = set()
            for called, wait in probe_waits(template, container):
                service = own_service(wait.host.name, target, template, container, facts)
                if service and wait.for_service(service) and called not in told:
                    told.add(called)
                    yield Finding(
                        wait.path,
                        f"The {called} probe of container {container.name} asks Service {service.name}, "
                        "which leads to ready pods of this workload alone: none of them can be the first "
                        "to get ready.",
                        "Ask the container itself: httpGet without a host, or localhost in the command.",
                        wait.certainty_of(service.certainty),
                    )


def check_init(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = _waits_for_own_service(target, template, container, facts)
            if finding:
                yield finding


def _waits_for_own_service(
    target: Target, template: PodTemplate, container: Container, facts: Facts
) -> Finding | None:
    if not facts.listing(Resource.SERVICES):
        return None
    for wait in init_waits(template, container):
        service = own_service(wait.host.name, target, template, container, facts)
        if service and wait.for_service(service):
            return Finding(
                wait.path,
                f"Init container {container.name} waits for Service {service.name}, which leads to ready "
                "pods of this workload alone: none of them can be the first to get ready.",
                "Drop the wait; let the main container look for its peers once it runs.",
                wait.certainty_of(service.certainty),
            )
    return None


# --- no end ------------------------------------------------------------------------------------


def check_unbounded(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            host = _endless(container_command(template, container))
            if host is None or container.name == KUBERAY_WAIT:
                continue
            if _waits_for_own_service(target, template, container, facts):
                continue  # said already, and better
            if waits_for_peer(target, template, container, facts):
                continue
            yield Finding(
                template.at(container, "command" if strings(container.spec, "command") else "args"),
                f"Init container {container.name} waits for {host.name or 'a host'} in a loop without an "
                "end: if that never answers, the pod stays in Init and nothing says why.",
                "Give up with an error after some minutes (timeout 10m …): kubelet tries again, and it "
                "shows.",
            )


def _endless(summary: CommandSummary) -> Host | None:
    """What a loop without a bound waits for, if it is on the network."""
    for loop in summary.loops:
        if not loop.bounded:
            for host in loop.hosts:
                if host.reach is not Reach.LOCAL:
                    return host
    return None


# --- the rules ---------------------------------------------------------------------------------

_NAMES: Final = "https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/"
_WORKLOAD: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
"""
_SERVICE: Final = """\
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 8080}]
"""

RULES = (
    Rule(
        id="readiness-waits-on-own-service",
        family=Family.DEADLOCK,
        check=check_probes,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        needs=(Resource.SERVICES, Resource.WORKLOADS),
        what="A readiness or startup probe that asks a Service which selects the probed pod itself and does "
        "not publish pods that are not ready.",
        why="A Service sends traffic to ready pods only. A pod that becomes ready by getting an answer from "
        "its own Service waits for another pod to be ready first, and so does that one: at the first "
        "start, and after any outage of them all, none ever is. During a rolling update it goes well, "
        "which is why the mistake is found at the worst time.",
        mend="Let the probe ask its own container (httpGet without `host`, or localhost in a command).",
        source=_NAMES,
        bad=_WORKLOAD
        + """\
      containers:
        - name: web
          image: registry.example/web:1
          ports: [{containerPort: 8080}]
          readinessProbe:
            httpGet: {host: web.default.svc, path: /ready, port: 8080}
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            failureThreshold: 6
"""
        + _SERVICE,
        good=_WORKLOAD
        + """\
      containers:
        - name: web
          image: registry.example/web:1
          ports: [{containerPort: 8080}]
          readinessProbe:
            httpGet: {path: /ready, port: 8080}
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            failureThreshold: 6
"""
        + _SERVICE,
    ),
    Rule(
        id="init-waits-on-own-service",
        family=Family.DEADLOCK,
        check=check_init,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        needs=(Resource.SERVICES, Resource.WORKLOADS),
        what="An init container that polls a Service which selects its own pod and does not publish pods "
        "that are not ready.",
        why="While a pod is in its init containers it is not ready, and none of its main containers runs. If "
        "only such pods stand behind the Service, nobody ever answers and none of them starts. A look-up "
        "of the name alone waits forever only where the Service is headless; any other Service's name "
        "resolves at once.",
        mend="Drop the wait and let the main container look for its peers once it runs. For discovery by "
        "name, give the headless Service publishNotReadyAddresses: true.",
        source=_NAMES,
        bad=_WORKLOAD
        + """\
      initContainers:
        - name: wait-for-web
          image: registry.example/tools:1
          command: [timeout, 10m, sh, -c, "until nc -z web 8080; do sleep 2; done"]
      containers: [{name: web, image: "registry.example/web:1"}]
"""
        + _SERVICE,
        good=_WORKLOAD
        + """\
      initContainers:
        - name: wait-for-database
          image: registry.example/tools:1
          command: [timeout, 10m, sh, -c, "until nc -z database 5432; do sleep 2; done"]
      containers: [{name: web, image: "registry.example/web:1"}]
"""
        + _SERVICE,
    ),
    Rule(
        id="init-wait-unbounded",
        family=Family.DEADLOCK,
        check=check_unbounded,
        standard=Mode.WARN,
        strict=Mode.WARN,
        needs=(Resource.SERVICES, Resource.WORKLOADS),
        what="An init container that loops on a network check without any bound.",
        why="If what it waits for never comes (a renamed Service, a policy that blocks the port, two "
        "workloads that wait for each other), the pod stays in Init forever: no restart, no event, no "
        "alert. A wait that fails after some minutes is tried again by kubelet all the same, and its "
        "restarts are seen. KubeRay's own wait-gcs-ready is left alone.",
        mend="Bound the wait, with `timeout 10m` before it or a counter in it, and fail when it runs out.",
        source="https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#detailed-behavior",
        bad=_WORKLOAD
        + """\
      initContainers:
        - name: wait-for-database
          image: registry.example/tools:1
          command: [sh, -c, "until nc -z database 5432; do sleep 2; done"]
      containers: [{name: web, image: "registry.example/web:1"}]
""",
        good=_WORKLOAD
        + """\
      initContainers:
        - name: wait-for-database
          image: registry.example/tools:1
          command: [timeout, 10m, sh, -c, "until nc -z database 5432; do sleep 2; done"]
      containers: [{name: web, image: "registry.example/web:1"}]
""",
    ),
)
