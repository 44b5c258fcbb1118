"""Containers that nothing restarts when they hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.target import Target
from policies.kube.pods import Container
from policies.probes.serving import serving_containers


def check_liveness(target: Target, facts: Facts) -> Iterator[Finding]:
    for path, container in _without_liveness(target, facts):
        if not container.spec.get("readinessProbe"):
            yield Finding(
                path,
                f"Container {container.name} serves and has no livenessProbe: when it hangs, nothing "
                "restarts it.",
                "Add a livenessProbe on a local health endpoint, or name the endpoint in the pod template's "
                "annotation mlchassis.dev/health-path.",
            )


def check_readiness(target: Target, facts: Facts) -> Iterator[Finding]:
    for path, container in _without_liveness(target, facts):
        if container.spec.get("readinessProbe"):
            yield Finding(
                path,
                f"Container {container.name} has a readinessProbe and no livenessProbe: when it hangs, it "
                "leaves its Service and nothing restarts it.",
                "Add a livenessProbe on a cheap local endpoint, more patient than the readinessProbe.",
            )


def _without_liveness(target: Target, facts: Facts) -> Iterator[tuple[str, Container]]:
    """The serving containers that have no livenessProbe after mutation, each with the field's path.

    KubeRay fills the probes of Ray's own container when it makes the pod, and a serving runtime has its own.
    """
    for template in target.templates:
        if template.is_ray or template.container_path:
            continue
        for container in serving_containers(template.pod, facts):
            if not container.spec.get("livenessProbe"):
                yield template.at(container, "livenessProbe"), container


# --- the rules ---------------------------------------------------------------------------------

_PROBES: Final = "https://kubernetes.io/docs/concepts/workloads/pods/probes/"
_WORKLOAD: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: embedder}
spec:
  replicas: 2
  selector: {matchLabels: {app: embedder}}
  template:
    metadata: {labels: {app: embedder}}
    spec:
      containers:
        - name: server
          image: registry.example/embedder:1
          ports: [{containerPort: 8080}]
"""
_LIVENESS: Final = """\
          livenessProbe:
            httpGet: {path: /live, port: 8080}
            periodSeconds: 20
            failureThreshold: 6
"""
_EXEC_READINESS: Final = """\
          readinessProbe:
            exec: {command: [test, -f, /tmp/ready]}
"""

RULES = (
    Rule(
        id="liveness-missing",
        family=Family.DEADLOCK,
        check=check_liveness,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="A serving container that has neither a livenessProbe nor a readinessProbe, and for which the "
        "webhook knows none to add.",
        why="Model servers hang more often than they crash: a CUDA call that never returns, a deadlocked "
        "worker pool, a full queue. Kubernetes restarts what exits; what hangs keeps its traffic and its "
        "accelerator until a person notices. Ray's containers are exempt, because KubeRay gives them "
        "probes.",
        mend="Add a livenessProbe on a local health endpoint, with a startupProbe that covers the load "
        "time; or name the endpoint in the pod template's annotation mlchassis.dev/health-path and the "
        "webhook adds all three.",
        source=_PROBES,
        bad=_WORKLOAD,
        good=_WORKLOAD + _LIVENESS,
    ),
    Rule(
        id="readiness-without-liveness",
        family=Family.DEADLOCK,
        check=check_readiness,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="A serving container with a readinessProbe and no livenessProbe, where the readinessProbe is "
        "none that could be mirrored.",
        why="A readiness failure takes the pod out of its Service and does nothing else. A server that "
        "hangs is thus hidden and stays hidden: the capacity is gone, nothing restarts it, and when all "
        "replicas have gone that way the Service is empty with every pod Running. A readinessProbe that is "
        "local and cheap is mirrored by the webhook; an exec or a call to another host is not.",
        mend="Add a livenessProbe that asks the container itself and gives up later than the readinessProbe.",
        source=_PROBES,
        bad=_WORKLOAD + _EXEC_READINESS,
        good=_WORKLOAD + _EXEC_READINESS + _LIVENESS,
    ),
)
