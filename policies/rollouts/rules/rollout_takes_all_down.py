"""Workloads that one rollout or one eviction takes down whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts, Resource
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import Target
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.json import Json, dig, integer, replaced, text
from policies.probes.serving import serving_containers
from policies.rollouts.rollouts import count_of, is_recreate, least_replicas, replicas_of, rolling_update


def check_takes_all_down(target: Target, facts: Facts) -> Iterator[Finding]:
    replicas = _replicas(target, facts)
    if replicas < 2 or not _serves(target, facts):
        return
    if target.kind == STATEFUL_SET:
        unavailable = _unavailable_of_stateful_set(target.obj, replicas)
        field = "spec.updateStrategy.rollingUpdate.maxUnavailable"
    else:
        if is_recreate(target.obj):
            yield Finding(
                "spec.strategy.type",
                f"Strategy Recreate stops all {replicas} replicas before the first new one starts: every "
                "change is an outage of at least one start.",
                "Use RollingUpdate, or keep Recreate only where two versions can't run side by side.",
                Certainty.LIKELY,
            )
            return
        rollout = rolling_update(replaced(target.obj, ("spec", "replicas"), replicas))
        unavailable = rollout.unavailable if rollout else None
        field = "spec.strategy.rollingUpdate.maxUnavailable"
    if unavailable is not None and unavailable >= replicas:
        yield Finding(
            field,
            f"All {replicas} replicas may be unavailable at once: a rollout takes them all down together, "
            "and one bad image leaves nothing that serves.",
            f"Set maxUnavailable below {replicas}: 1, 25%, or 0 with a maxSurge.",
        )


def check_single_replica(target: Target, facts: Facts) -> Iterator[Finding]:
    given = target.spec.get("replicas")
    if given is None and facts.listing(Resource.AUTOSCALERS) is None:
        return  # an autoscaler that isn't known may set it
    if _replicas(target, facts) == 1 and _serves(target, facts):
        yield Finding(
            "spec.replicas",
            "One replica serves: when its node is drained or fails, nothing serves until another pod has "
            "been scheduled and has loaded its model.",
            "Run two replicas with a PodDisruptionBudget of maxUnavailable 1, or accept the gap with an "
            "exemption.",
        )


def _replicas(target: Target, facts: Facts) -> int:
    """The pods that run at the least; 0 where it is switched off."""
    return least_replicas(target.obj, facts) if replicas_of(target.obj) else 0


def _serves(target: Target, facts: Facts) -> bool:
    return any(serving_containers(template.pod, facts) for template in target.templates)


def _unavailable_of_stateful_set(stateful_set: Json, replicas: int) -> int | None:
    """Pods that a rolling update may take away at once (rounded up, at the least 1); None if it's no such."""
    if text(stateful_set, "spec", "updateStrategy", "type") == "OnDelete":
        return None
    steps = dig(stateful_set, "spec", "updateStrategy", "rollingUpdate")
    value = dig(steps, "maxUnavailable")
    if value is None or integer(steps, "partition", default=0) > 0:
        return 1
    return count_of(value, replicas, up=True)


# --- the rules -----------------------------------------------------------------------------------

_DEPLOYMENTS: Final = "https://kubernetes.io/docs/concepts/workloads/controllers/deployment/"
_DISRUPTIONS: Final = "https://kubernetes.io/docs/concepts/workloads/pods/disruptions/"


def _workload(replicas: int, strategy: str = "") -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: scorer}}
spec:
  replicas: {replicas}
{strategy}\
  selector: {{matchLabels: {{app: scorer}}}}
  template:
    metadata: {{labels: {{app: scorer}}}}
    spec:
      containers:
        - name: server
          image: registry.example/scorer:5
          ports: [{{containerPort: 8080}}]
          livenessProbe:
            httpGet: {{path: /live, port: 8080}}
            periodSeconds: 20
            failureThreshold: 6
"""


RULES = (
    Rule(
        id="rollout-takes-all-down",
        family=Family.CASCADE,
        check=check_takes_all_down,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        likely=(Mode.WARN, Mode.ENFORCE),
        kinds=(DEPLOYMENT, STATEFUL_SET),
        needs=(Resource.AUTOSCALERS,),
        what="A serving workload of several replicas whose rolling update may make all of them unavailable "
        "at once, or (less certain) a Deployment with strategy Recreate.",
        why="With maxUnavailable at or above the number of replicas the controller stops every old pod "
        "before a new one is ready. The service is away for as long as the new pods pull their image and "
        "load their model, and for good if they can't start. Recreate does the same on purpose.",
        mend="Set maxUnavailable below the number of replicas, or 0 with a maxSurge where there is room for "
        "one more pod.",
        source=f"{_DEPLOYMENTS}#max-unavailable",
        bad=_workload(3, "  strategy:\n    rollingUpdate: {maxSurge: 0, maxUnavailable: 100%}\n"),
        good=_workload(3, "  strategy:\n    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}\n"),
    ),
    Rule(
        id="single-replica-eviction",
        family=Family.CASCADE,
        check=check_single_replica,
        standard=Mode.WARN,
        strict=Mode.WARN,
        kinds=(DEPLOYMENT, STATEFUL_SET),
        needs=(Resource.AUTOSCALERS,),
        what="A serving Deployment or StatefulSet of one replica, with no autoscaler whose minReplicas is "
        "above 1.",
        why="Nodes are drained for upgrades and bin-packing, and spot nodes go at two minutes' notice. An "
        "eviction deletes the only replica first and replaces it afterwards, so the service is away for a "
        "whole start, which with a large model is many minutes.",
        mend="Run two replicas, with a PodDisruptionBudget so that they are not evicted together.",
        source=f"{_DISRUPTIONS}#dealing-with-disruptions",
        bad=_workload(1),
        good=_workload(2),
    ),
)
