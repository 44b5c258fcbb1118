"""Rollouts that can't go forward: the new pod waits for what the old pod holds, the old for the new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts, Listing, Resource
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT
from policies.kube.json import Json, dig, indexed_maps, integer, mapping, maps, strings, text
from policies.kube.names import listed
from policies.kube.pods import Container, Role, containers
from policies.rollouts.rollouts import replicas_of, rolling_update

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
DEFAULT_PROGRESS_DEADLINE: Final = 600
"""Seconds; what the API server fills in."""
NO_PROGRESS_DEADLINE: Final = 2**31 - 1
"""The value that switches the deadline off."""


# --- volumes ---------------------------------------------------------------------------------


def check_volumes(target: Target, facts: Facts) -> Iterator[Finding]:
    rollout = rolling_update(target.obj)
    claims = facts.listing(Resource.CLAIMS)
    # Where every old pod may go first, the volume comes free whatever the surge.
    if rollout is None or not claims or not rollout.surge or rollout.unavailable >= rollout.replicas:
        return
    modes = claims.derive(_access_modes)
    for template in target.templates:
        pinned = _pinned_to_one_node(template.spec)
        for index, volume in indexed_maps(template.spec, "volumes"):
            name = text(volume, "persistentVolumeClaim", "claimName")
            certainty = _exclusive(modes.get(name, []), pinned=pinned)
            if name and certainty:
                yield _volume_finding(template, index, name, certainty)


def _access_modes(claims: Listing) -> dict[str, list[str]]:
    return {text(claim, "metadata", "name"): strings(claim, "spec", "accessModes") for claim in claims}


def _exclusive(modes: list[str], *, pinned: bool) -> Certainty | None:
    """How sure it is that a second pod can't mount a claim beside the first."""
    if "ReadWriteOncePod" in modes:
        return Certainty.SURE
    if modes and set(modes) == {"ReadWriteOnce"} and not pinned:
        return Certainty.LIKELY
    return None


def _volume_finding(template: PodTemplate, index: int, claim: str, certainty: Certainty) -> Finding:
    if certainty is Certainty.SURE:
        message = (
            f"Claim {claim} is ReadWriteOncePod and the new pod starts before the old one stops: it waits "
            "for the volume, and the old pod keeps that until the new one is ready."
        )
    else:
        message = (
            f"Claim {claim} is ReadWriteOnce and the new pod starts before the old one stops: on another "
            "node it waits for the volume, and the old pod keeps that until the new one is ready."
        )
    return Finding(
        f"{template.spec_path}.volumes[{index}].persistentVolumeClaim",
        message,
        "Set strategy.type to Recreate, or maxSurge 0 with maxUnavailable 1, or use a ReadWriteMany claim.",
        certainty,
    )


def _pinned_to_one_node(spec: Json) -> bool:
    if text(spec, "nodeName") or text(spec, "nodeSelector", HOSTNAME_LABEL):
        return True
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = maps(required, "nodeSelectorTerms")
    return len(terms) == 1 and any(
        term.get("operator") == "In" and term.get("key") == key and len(strings(term, "values")) == 1
        for field, key in (("matchExpressions", HOSTNAME_LABEL), ("matchFields", "metadata.name"))
        for term in maps(terms[0], field)
    )


# --- host ports ------------------------------------------------------------------------------


def check_host_ports(target: Target, facts: Facts) -> Iterator[Finding]:
    if target.kind == DAEMON_SET:
        surges, certainty = _daemon_set_surges(target.obj), Certainty.SURE
    else:
        rollout = rolling_update(target.obj)
        surges, certainty = rollout is not None and rollout.unavailable == 0, Certainty.LIKELY
    if not surges:
        return
    for template in target.templates:
        sure = certainty is Certainty.SURE or _pinned_to_one_node(template.spec)
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            taken = _host_ports(template, container)
            if taken:
                yield Finding(
                    template.at(container, f"ports[{next(iter(taken))}]"),
                    f"The new pod needs host port {listed(map(str, taken.values()))} of "
                    f"{'the same node' if sure else 'a node'}, and the old pod holds it until the new one is "
                    "ready.",
                    "Set maxSurge to 0 and maxUnavailable to 1, or drop the host port and use a Service.",
                    Certainty.SURE if sure else Certainty.LIKELY,
                )


def _daemon_set_surges(daemon_set: Json) -> bool:
    if text(daemon_set, "spec", "updateStrategy", "type") == "OnDelete":
        return False
    surge = dig(daemon_set, "spec", "updateStrategy", "rollingUpdate", "maxSurge")
    return surge not in (None, 0, "0", "0%")


def _host_ports(template: PodTemplate, container: Container) -> dict[int, int]:
    """The ports of the node that a container takes, by their index; under hostNetwork that is each port
    it declares."""
    on_host = template.spec.get("hostNetwork") is True
    taken = {}
    for index, port in indexed_maps(container.spec, "ports"):
        inside = integer(port, "containerPort", default=0) if on_host else 0
        number = integer(port, "hostPort", default=0) or inside
        if number:
            taken[index] = number
    return taken


# --- the progress deadline -------------------------------------------------------------------


def check_progress_deadline(target: Target, facts: Facts) -> Iterator[Finding]:
    given = target.spec.get("progressDeadlineSeconds")
    deadline = integer(target.spec, "progressDeadlineSeconds", default=DEFAULT_PROGRESS_DEADLINE)
    if (
        deadline == NO_PROGRESS_DEADLINE
        or target.spec.get("paused") is True
        or replicas_of(target.obj) < 1
        or not isinstance(given, int | None)
    ):
        return
    # The user's own template: what the webhook injects is generous on purpose and must not count.
    slowest = _slowest_start(mapping(target.obj, "spec", "template"))
    if slowest is None or slowest[1] < deadline:
        return
    name, seconds = slowest
    yield Finding(
        "spec.progressDeadlineSeconds",
        f"The rollout counts as failed after {deadline} s{'' if given else ' (the default)'}, but the probes "
        f"of container {name} allow {seconds} s until it is ready.",
        f"Set spec.progressDeadlineSeconds above {seconds}, with room to pull the image.",
    )


def _slowest_start(pod: Json) -> tuple[str, int] | None:
    """The container that may take longest until ready, and how long its pod may then take, in seconds.

    Native sidecars start one after the other, before the main containers.
    """
    before = sum(_startup_budget(sidecar.spec) for sidecar in containers(pod, Role.SIDECAR))
    starts = [(main.name, before + _time_until_ready(main.spec)) for main in containers(pod, Role.MAIN)]
    return max(starts, key=lambda start: start[1], default=None)


def _startup_budget(container: Json) -> int:
    probe = mapping(container, "startupProbe")
    if not probe:
        return 0
    attempts = integer(probe, "failureThreshold", default=3)
    return integer(probe, "initialDelaySeconds", default=0) + attempts * integer(
        probe, "periodSeconds", default=10
    )


def _time_until_ready(container: Json) -> int:
    """Seconds from its start that a container's own probes allow until it is ready.

    A readiness probe never gives up, so its failureThreshold bounds nothing; its initial delay is
    time in which the pod can't be ready. A liveness probe that stands alone tells by its delay how
    long the author lets the start take.
    """
    startup = _startup_budget(container)
    readiness = integer(container, "readinessProbe", "initialDelaySeconds", default=0)
    liveness = 0 if startup else integer(container, "livenessProbe", "initialDelaySeconds", default=0)
    return max(startup, readiness, liveness)


# --- the rules -------------------------------------------------------------------------------

_DEPLOYMENTS: Final = "https://kubernetes.io/docs/concepts/workloads/controllers/deployment/"

RULES = (
    Rule(
        id="rollout-volume-deadlock",
        family=Family.DEADLOCK,
        check=check_volumes,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        likely=(Mode.WARN, Mode.ENFORCE),
        kinds=(DEPLOYMENT,),
        needs=(Resource.CLAIMS,),
        what="A Deployment that adds the new pod before it removes the old one, while both need one "
        "volume that only one pod (ReadWriteOncePod) or one node (ReadWriteOnce) can have.",
        why="A rolling update with surge keeps the old pod until the new one is ready. The new pod is not "
        "ready before it has the volume, which the old pod holds: the scheduler leaves it Pending "
        "(ReadWriteOncePod), or the attach fails with a Multi-Attach error on another node "
        "(ReadWriteOnce). With ReadWriteOnce it goes well when both land on one node, hence a warning.",
        mend="Use strategy Recreate, or maxSurge 0 with maxUnavailable 1, so that the old pod goes first; "
        "or a claim that several nodes can mount (ReadWriteMany, ReadOnlyMany).",
        source="https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes",
        bad="""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: notebook}
spec:
  replicas: 1
  selector: {matchLabels: {app: notebook}}
  template:
    metadata: {labels: {app: notebook}}
    spec:
      containers:
        - name: notebook
          image: registry.example/notebook:4
      volumes:
        - name: home
          persistentVolumeClaim: {claimName: home}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: home}
spec:
  accessModes: [ReadWriteOncePod]
  resources: {requests: {storage: 10Gi}}
""",
        good="""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: notebook}
spec:
  replicas: 1
  strategy:
    type: Recreate
  selector: {matchLabels: {app: notebook}}
  template:
    metadata: {labels: {app: notebook}}
    spec:
      containers:
        - name: notebook
          image: registry.example/notebook:4
      volumes:
        - name: home
          persistentVolumeClaim: {claimName: home}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: home}
spec:
  accessModes: [ReadWriteOncePod]
  resources: {requests: {storage: 10Gi}}
""",
    ),
    Rule(
        id="rollout-host-port-deadlock",
        family=Family.DEADLOCK,
        check=check_host_ports,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        likely=(Mode.WARN, Mode.ENFORCE),
        kinds=(DEPLOYMENT, DAEMON_SET),
        what="A pod that takes a port of its node, in a rollout that removes no old pod before the new one "
        "is ready.",
        why="A host port can be held once per node, and the scheduler leaves a pod Pending when it finds no "
        "node where the port is free. With maxUnavailable 0 in effect (25% of fewer than four replicas "
        "is 0) the old pod keeps the port until the new one is ready. When the pods are bound to one "
        "node, or are a DaemonSet's that surges, that is a deadlock; otherwise it is one as soon as "
        "every node that fits has a pod. Under hostNetwork every declared port is a host port.",
        mend="Set maxSurge to 0 and maxUnavailable to 1, or reach the pods through a Service instead of a "
        "port of the node.",
        source="https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins (NodePorts)",
        bad="""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: exporter}
spec:
  replicas: 1
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      nodeSelector:
        kubernetes.io/hostname: gpu-node-1
      containers:
        - name: gpu-exporter
          image: registry.example/exporter:2
          ports: [{containerPort: 9400, hostPort: 9400}]
          livenessProbe:
            httpGet: {path: /health, port: 9400}
            failureThreshold: 6
""",
        good="""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: exporter}
spec:
  replicas: 1
  strategy:
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      nodeSelector:
        kubernetes.io/hostname: gpu-node-1
      containers:
        - name: gpu-exporter
          image: registry.example/exporter:2
          ports: [{containerPort: 9400, hostPort: 9400}]
          livenessProbe:
            httpGet: {path: /health, port: 9400}
            failureThreshold: 6
""",
    ),
    Rule(
        id="progress-deadline-too-short",
        family=Family.DEADLOCK,
        check=check_progress_deadline,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        kinds=(DEPLOYMENT,),
        what="A Deployment whose progressDeadlineSeconds (600 by default) is not above the time until ready "
        "that its own probes allow.",
        why="When no pod becomes ready within the deadline, the Deployment reports ProgressDeadlineExceeded: "
        "`kubectl rollout status` fails and delivery tools roll back, while the pod is still loading its "
        "model within the time its startupProbe or initialDelaySeconds gives it. The next attempt meets "
        "the same end, so the new version can never go out. Only probes in the object itself count, not "
        "those that the webhook injects into its pods.",
        mend="Raise progressDeadlineSeconds above the startup budget (initialDelaySeconds + periodSeconds * "
        "failureThreshold), or lower the budget to what the start really takes.",
        source=f"{_DEPLOYMENTS}#progress-deadline-seconds",
        bad="""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 2
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      containers:
        - name: server
          image: registry.example/llm:7
          ports: [{containerPort: 8080}]
          startupProbe:
            httpGet: {path: /health, port: 8080}
            periodSeconds: 10
            failureThreshold: 90
          livenessProbe:
            httpGet: {path: /health, port: 8080}
            failureThreshold: 6
""",
        good="""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 2
  progressDeadlineSeconds: 1800
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      containers:
        - name: server
          image: registry.example/llm:7
          ports: [{containerPort: 8080}]
          startupProbe:
            httpGet: {path: /health, port: 8080}
            periodSeconds: 10
            failureThreshold: 90
          livenessProbe:
            httpGet: {path: /health, port: 8080}
            failureThreshold: 6
""",
    ),
)
