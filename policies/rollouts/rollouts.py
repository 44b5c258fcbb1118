"""Rolling updates and replicas, by the arithmetic of the controllers, and whether a rollout completes if only
some pods fit.

The result is None for values that an API server would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.autoscalers import autoscaler_minimum, autoscaler_of
from policies.core.facts import Facts
from policies.core.runs import role_of, runs_in
from policies.core.target import PodTemplate, Target
from policies.core.workloads import MadeDeployment
from policies.kube import group_kinds
from policies.kube.field_paths import Steps, field_path, maps_at
from policies.kube.group_kinds import LEADER_WORKER_SET
from policies.kube.json import Json, dig, text
from policies.kube.objects.metadata import IntOrString, Object
from policies.kube.objects.pods import ContainerSpec, PodSpec
from policies.kube.objects.reading import readable
from policies.kube.objects.workloads import (
    DaemonSet,
    Deployment,
    LeaderWorkerSet,
    Replicated,
    RollingUpdateSteps,
    Rollout,
    StatefulSet,
    UpdateStrategy,
)
from policies.kube.quantities import whole_number

_QUARTER: Final = "25%"
"""The default of a Deployment's maxSurge and maxUnavailable."""


class RollingUpdate(Struct, frozen=True):
    """How many pods (of a LeaderWorkerSet: groups) a rolling update may add (`surge`) and remove
    (`unavailable`)."""

    replicas: int
    surge: int
    unavailable: int
    first: int = 1
    """How many new pods must be ready before further old ones are removed."""
    path: str = "spec.strategy.rollingUpdate.maxUnavailable"
    """The field that would let an old pod stop before a new one starts."""
    in_place: str = "Set maxUnavailable to 1 and maxSurge to 0"
    """How to change that, as the start of a sentence."""

    @property
    def starts(self) -> str:
        """What is started before an old pod stops."""
        return self.either("a new pod", f"{self.first} new pods")

    def either(self, one: str, several: str) -> str:
        """The words for one new pod, or for several that start at once."""
        return one if self.first == 1 else several


class RolloutOutcome(Enum):
    """How a rolling update ends."""

    COMPLETES = "completes"
    STUCK = "stuck"
    """All replicas run, but a rollout cannot replace the first one."""
    SHORT = "short"
    """Not all replicas can run, with or without a rollout."""


def outcome(update: RollingUpdate, room: float) -> RolloutOutcome:
    """How a rolling update ends if at most `room` pods of both revisions together fit.

    The controller adds pods up to `replicas + surge` and removes ready old pods down to
    `replicas - unavailable` (`reconcileNewReplicaSet` and `reconcileOldReplicaSets` in the deployment
    controller's `rolling.go`). So the first new pod needs room next to all old pods, or the room of an old
    pod that may be removed; in a Rollout, it may be all new pods. minReadySeconds and readiness only delay
    this. PodDisruptionBudgets do not apply, because controllers delete pods and do not evict them.
    """
    if room < update.replicas:
        return RolloutOutcome.SHORT
    return (
        RolloutOutcome.STUCK
        if room < update.replicas - update.unavailable + update.first
        else RolloutOutcome.COMPLETES
    )


def pending_replicas(replicas: int, room: float) -> str:
    """How many replicas stay Pending, as the end of a sentence."""
    left = replicas - int(room)
    return f"{left} of {replicas} replicas {'stays' if left == 1 else 'stay'} Pending"


def count_of(value: IntOrString, total: int, *, up: bool) -> int | None:
    """An IntOrString as a number of pods: `2`, or a percentage of `total` rounded up or down.

    None for other values: the API server rejects `"2"` without a percent sign.
    """
    if isinstance(value, int):
        return value if value >= 0 else None
    percent = whole_number(value[:-1]) if value.endswith("%") else None
    if percent is None:
        return None
    return -(-percent * total // 100) if up else percent * total // 100


def pods_per_replica(target: Target) -> list[tuple[PodTemplate, int]]:
    """The templates, each with its number of pods in a replica."""
    if target.kind != LEADER_WORKER_SET:
        return [(template, 1) for template in target.templates]
    size = target.read(LeaderWorkerSet).spec.leader_worker_template.size
    is_leader = [template.path.endswith("leaderTemplate") for template in target.templates]
    counts = [1 if leader else size - any(is_leader) for leader in is_leader]
    return list(zip(target.templates, counts, strict=True))


def pods_in_group(target: Target) -> dict[str, int]:
    """The pods of each template of a group whose pods wait for each other, by the template's path; empty for
    other workloads, whose pods run one after the other if the quota admits only some."""
    runs = list(runs_in(target.obj))
    if (
        not runs
        or any(run.changes_size or any(map(run.has, run.life.in_turn)) for run in runs)
        or not any(t.workload is not None and t.workload.group for t in target.templates)
    ):
        return {}
    roles = {template.path: role_of(target.obj, template) for template in target.templates}
    return {path: role.pods for path, role in roles.items() if role is not None}


def replicas_of(workload: Replicated) -> int:
    """`spec.replicas`, by default 1."""
    return 1 if workload.spec.replicas is None else workload.spec.replicas


def is_recreate(target: Target) -> bool:
    """Whether a Deployment deletes all old pods before it creates the first new pod."""
    return target.kind == group_kinds.DEPLOYMENT and target.read(Deployment).spec.strategy.type == "Recreate"


def rolling_update(target: Target, replicas: int) -> RollingUpdate | None:
    """The rolling update of a workload with so many replicas.

    None for another strategy, no replicas, a paused workload, or invalid values. A DaemonSet's update is that
    of the one pod of a node.
    """
    if replicas < 1:
        return None
    match target.kind:
        case group_kinds.DEPLOYMENT:
            return _of_deployment(target.read(Deployment), replicas)
        case group_kinds.ROLLOUT:
            return _of_rollout(target.read(Rollout), replicas)
        case group_kinds.STATEFUL_SET:
            return _of_stateful_set(target.read(StatefulSet), replicas)
        case group_kinds.DAEMON_SET:
            return _of_daemon_set(target.read(DaemonSet))
        case group_kinds.LEADER_WORKER_SET:
            return _of_groups(target.read(LeaderWorkerSet), replicas)
    return None


def _of_deployment(deployment: Deployment, replicas: int) -> RollingUpdate | None:
    """Surge is rounded up, unavailable down; if both are 0, one pod may be unavailable
    (`ResolveFenceposts` in the deployment controller's `deployment_util.go`)."""
    return None if deployment.spec.paused else _of_strategy(deployment.spec.strategy, replicas)


def _of_rollout(rollout: Rollout, replicas: int) -> RollingUpdate | None:
    """A canary is a rolling update that pauses. A blue-green update, and a canary with a traffic router whose
    stable pods stay, end with all pods of both revisions (`NewRSNewReplicas` and
    `CalculateReplicaCountsForTrafficRoutedCanary` in utils/replicaset of Argo Rollouts 1.9, tried by
    tests/e2e/test_argo_rollouts.py).
    """
    strategy = rollout.spec.strategy
    if rollout.spec.paused:
        return None
    doubles = "Use a canary without trafficRouting, with maxSurge 0 and maxUnavailable 1"
    if strategy.blue_green is not None:
        return RollingUpdate(replicas, replicas, 0, replicas, "spec.strategy.blueGreen", doubles)
    if strategy.canary is None:
        return None
    if strategy.canary.traffic_routing is not None:
        first = 1 if strategy.canary.dynamic_stable_scale else replicas
        return RollingUpdate(replicas, replicas, 0, first, "spec.strategy.canary.trafficRouting", doubles)
    update = _of_strategy(UpdateStrategy(rolling_update=strategy.canary), replicas)
    return None if update is None else replace(update, path="spec.strategy.canary.maxUnavailable")


def _of_strategy(strategy: UpdateStrategy, replicas: int) -> RollingUpdate | None:
    if strategy.type == "Recreate":
        return None
    steps = strategy.rolling_update
    surge = count_of(_or_default(steps.max_surge, _QUARTER), replicas, up=True)
    unavailable = count_of(_or_default(steps.max_unavailable, _QUARTER), replicas, up=False)
    if surge is None or unavailable is None:
        return None
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return RollingUpdate(replicas, surge, min(unavailable, replicas))


def _or_default(value: IntOrString | None, default: IntOrString) -> IntOrString:
    return default if value is None else value


def _of_stateful_set(stateful_set: StatefulSet, replicas: int) -> RollingUpdate | None:
    """A percentage is rounded down, but not below 1, contrary to the API's comment
    (`getStatefulSetMaxUnavailable` in `stateful_set_utils.go`)."""
    strategy = stateful_set.spec.update_strategy
    if strategy.type == "OnDelete":
        return None
    value = strategy.rolling_update.max_unavailable
    if value is None or strategy.rolling_update.partition > 0:
        return RollingUpdate(replicas, 0, 1)
    count = count_of(value, replicas, up=False)
    return None if count is None else RollingUpdate(replicas, 0, min(max(count, 1), replicas))


def _of_daemon_set(daemon_set: DaemonSet) -> RollingUpdate | None:
    """The update on one node: with maxSurge, the new pod is added first."""
    strategy = daemon_set.spec.update_strategy
    if strategy.type == "OnDelete":
        return None
    surges = strategy.rolling_update.max_surge
    return RollingUpdate(1, 0, 1) if surges in (None, 0, "0", "0%") else RollingUpdate(1, 1, 0)


def _of_groups(workload: LeaderWorkerSet, replicas: int) -> RollingUpdate | None:
    """By default no group is added and one may be unavailable. Surge is rounded up, unavailable down, and
    both are limited to the replicas (`rollingUpdateParameters` in LWS 0.9, leaderworkerset_controller.go).
    """
    steps = workload.spec.rollout_strategy.rolling_update_configuration
    surge = count_of(_or_default(steps.max_surge, 0), replicas, up=True)
    unavailable = count_of(_or_default(steps.max_unavailable, 1), replicas, up=False)
    if (not surge and not unavailable) or surge is None or unavailable is None:
        return None
    path = "spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable"
    return RollingUpdate(replicas, min(surge, replicas), min(unavailable, replicas), path=path)


def minimum_replicas(target: Target, facts: Facts) -> int:
    """The minimum of the target's autoscaler, else `spec.replicas`."""
    return _minimum(target.kind.kind, target.name, target.replicas, facts)


def minimum_of(workload: Replicated, facts: Facts) -> int:
    """The same for a workload of the listing, which has its kind."""
    return _minimum(workload.kind, workload.name, replicas_of(workload), facts)


def _minimum(kind: str, name: str, replicas: int, facts: Facts) -> int:
    autoscaler = autoscaler_of(kind, name, facts) if replicas else None  # 0 switches the autoscaler off
    return replicas if autoscaler is None else autoscaler_minimum(autoscaler)


def running_update(target: Target, facts: Facts) -> RollingUpdate | None:
    """The rolling update of a workload at its minimum of replicas."""
    return rolling_update(target, minimum_replicas(target, facts))


class MadeRollout(Struct, frozen=True):
    """The rolling update of a Deployment that an operator makes of a template."""

    template: PodTemplate
    strategy: str
    """Field path of the strategy; empty if the kind has no field for it."""
    update: RollingUpdate


def made_rollouts(target: Target) -> Iterator[MadeRollout]:
    """The rolling updates of the Deployments that an operator makes of the workload. Values that the API
    server would refuse are left out."""
    for template, steps, node, made in _made(target):
        replicas, strategy = _made_replicas(target, steps, made), _made_strategy(node, made)
        update = _of_strategy(strategy, replicas) if strategy and replicas > 0 else None
        if update is not None:
            path = field_path((*steps, made.strategy)) if made.strategy else ""
            yield MadeRollout(template, path, update)


class MadeAutoscaler(Struct, frozen=True):
    """The autoscaler that an operator makes for the pods of a template."""

    template: PodTemplate
    path: str
    """Field path of the most pods."""
    least: int
    most: int
    metric: str
    """`cpu` or the name of another metric; empty if it is unknown."""


def made_autoscalers(target: Target) -> Iterator[MadeAutoscaler]:
    """The autoscalers that an operator makes for the workload, as far as their maximum is written."""
    annotations = target.read(Object).metadata.annotations
    for template, steps, node, made in _made(target):
        most = node.get(made.most) if made.most else None
        external = any(annotations.get(key) in values for key, values in made.most_unless.items())
        if isinstance(most, int) and not external:
            path = field_path((*steps, made.most))
            metric = text(node, made.metric)
            if not metric and not any(field in node for field in made.by_cpu_unless):
                metric = "cpu" if any(annotations.get(key) in made.by_cpu[key] for key in made.by_cpu) else ""
            yield MadeAutoscaler(template, path, _made_replicas(target, steps, made), most, metric)


def _made(target: Target) -> Iterator[tuple[PodTemplate, Steps, Json, MadeDeployment]]:
    """The Deployments that an operator makes, each with its template and the map that describes it."""
    for template in target.templates:
        for made in () if template.workload is None else template.workload.deployments:
            for steps, node in maps_at(target.obj, made.at):
                at = field_path((*steps, made.pod) if made.pod else steps)
                paths = (template.spec_path, template.path.rpartition(".")[0] if template.base else "")
                if at in paths and not any(field in node for field in made.unless):
                    yield template, steps, node, made


def _made_strategy(node: Json, made: MadeDeployment) -> UpdateStrategy | None:
    """The strategy in the map of a Deployment, or the operator's; None if it cannot be read."""
    written = node.get(made.strategy) if made.strategy else None
    if written is not None:
        return readable(written, UpdateStrategy)
    steps = RollingUpdateSteps(max_surge=made.max_surge, max_unavailable=made.max_unavailable)
    return UpdateStrategy(rolling_update=steps)


def _made_replicas(target: Target, steps: Steps, made: MadeDeployment) -> int:
    """The number of pods: of the map at `steps`, or of the nearest one around it if that counts."""
    for end in range(len(steps), 0, -1):
        value = dig(target.obj, *steps[:end], made.replicas)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not made.inherited:
            break
    return 1


def host_ports(pod: PodSpec, container: ContainerSpec) -> dict[int, int]:
    """The host ports of a container by their index; with hostNetwork, every port that it declares."""
    taken = {}
    for index, port in enumerate(container.ports):
        number = port.host_port or (port.container_port if pod.host_network else None)
        if number:
            taken[index] = number
    return taken
