"""autoscaler-never-scales: autoscalers without a workload, or whose utilization is unknown or too low."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Final

from msgspec import Struct

from policies.core.autoscalers import MAKERS, autoscaler_minimum, autoscaler_of, scaled_by
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.data import table
from policies.core.facts import WholeObjects
from policies.core.ray_pods import start_parameters
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import (
    AUTOSCALER,
    DAEMON_SET,
    LEADER_WORKER_SET,
    RAY_KINDS,
    SCALED_OBJECT,
    SERVING,
    GroupKind,
)
from policies.kube.images import numbers_of_tag, repository_and_tag
from policies.kube.json import dig, text
from policies.kube.names import alike, listed
from policies.kube.objects.ray import RayObject
from policies.kube.objects.scaling import (
    KEDA_MOST,
    HorizontalPodAutoscaler,
    Metric,
    MetricTarget,
    ResourceMetric,
    ScaledObject,
)
from policies.kube.pods import Container, Role
from policies.kube.quantities import parse_quantity
from policies.quotas.limit_ranges import (
    NO_DEFAULTS,
    ContainerResources,
    LimitDefaults,
    defaults_in,
    has_pod_level_resources,
    resources_of,
)

_DEFAULT_TARGET: Final = 80
"""Percent of the CPU request, for an autoscaler without metrics."""
_TOLERANCE: Final = Decimal("0.1")
_MORE_METRICS: Final = "autoscaling.alpha.kubernetes.io/metrics"
"""The annotation of autoscaling/v1 with all metrics except CPU utilization."""
_CPUS: Final = "num-cpus"
_RAY_IMAGES: Final = ("rayproject/ray", "rayproject/ray-ml", "rayproject/ray-llm")
_READS_REQUESTS: Final = (2, 41)
"""The first version of Ray whose autoscaler falls back to the requests."""
_MAX: Final = 4
"""Findings for one autoscaler."""
_PARTS: Final = 8
_NAMES: Final = 64
"""Workloads of a namespace that the name of an autoscaler's target is compared with."""


class _Utilization(Struct, frozen=True):
    """A metric in percent of the containers' requests."""

    resource: str
    container: str
    """Empty for all containers."""
    target: int


class _Obstacle(Struct, frozen=True):
    """Why a metric adds no pods."""

    container: Container
    why: str
    hint: str
    fails: bool = False
    """Whether the metrics cannot be computed."""
    metrics: int = 1
    sure: bool = True


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in RAY_KINDS:
        yield from _of_ray(target)
        return
    if target.kind in (AUTOSCALER, *MAKERS):
        yield from _without_workload(target, facts)
        yield from _out_of_order(target)
        return
    if not target.replicas or len(target.templates) != 1:
        return
    [template] = target.templates  # of a LeaderWorkerSet, whose autoscaler reads its leaders
    autoscaler = autoscaler_of(target.kind.kind, target.name, facts)
    if autoscaler is None or has_pod_level_resources(template.typed.spec):
        return
    if (autoscaler.spec.max_replicas or 0) <= autoscaler_minimum(autoscaler):
        return
    metrics = _metrics(autoscaler)
    try:
        defaults = defaults_in(facts, template.workload)
        # As in `calculateRequests` of pkg/controller/podautoscaler/replica_calculator.go in Kubernetes 1.36,
        # and its predecessor in 1.29.
        running = resources_of(template.containers(Role.MAIN, Role.SIDECAR), defaults or NO_DEFAULTS)
        tolerance = _tolerance(autoscaler)
    except ValueError:
        return  # the API server refuses such a quantity
    for found in _obstacles(metrics, running, defaults, tolerance):
        yield Finding(
            template.at(found.container, "resources"),
            f"{autoscaler.title} {found.why}. {_effect(found, len(metrics))}.",
            found.hint,
            Certainty.CERTAIN if found.sure else Certainty.LIKELY,
        )


def _without_workload(target: Target, facts: Facts) -> Findings:
    """An autoscaler of a workload that is not there, while one of another kind or of a like name is."""
    reference, whole, namespace = scaled_by(target), facts.whole, facts.namespace
    wanted = reference.kind or "Deployment"
    kind = next((each for each in SERVING if each.kind == wanted), None)
    if kind is None or whole is None or whole.named(kind, namespace, reference.name) is not None:
        return
    others = (each for each in (*SERVING, DAEMON_SET) if whole.together(each, namespace, reference.name))
    other, like = next(others, None), ""
    if other is None and whole.makes_no(kind, namespace, reference.name):
        known = [text(obj, "metadata", "name") for obj in islice(whole.every(kind, namespace), _NAMES + 1)]
        if len(known) > _NAMES:
            return  # each autoscaler would be compared with all of them
        free = [name for name in known if autoscaler_of(wanted, name, facts) is None]
        like = alike(reference.name, free)
    if (other is None and (not like or "$" in reference.name)) or _is_made(reference.name, namespace, whole):
        return
    instead = f"{other.kind if other else wanted} {like or reference.name}"
    yield Finding(
        f"spec.scaleTargetRef.{'kind' if other else 'name'}",
        f"There is no {wanted} {reference.name} to scale, only {instead}, so this autoscaler does nothing.",
        "Remove it: a DaemonSet has one pod on each node." if other == DAEMON_SET else f"Scale {instead}.",
        Certainty.LIKELY,
    )


def _out_of_order(target: Target) -> Findings:
    """Bounds with which KEDA neither makes nor changes an autoscaler (`CheckReplicaCountBoundsAreValid` in
    apis/keda/v1alpha1/scaledobject_types.go)."""
    if target.kind != SCALED_OBJECT:
        return
    spec = target.read(ScaledObject).spec
    low = 0 if spec.min_replica_count is None else max(1, spec.min_replica_count)
    high = KEDA_MOST if spec.max_replica_count is None else spec.max_replica_count
    if low > high:
        field, than = "minReplicaCount", f"above maxReplicaCount ({high})"
    elif spec.idle_replica_count is not None and spec.idle_replica_count >= low:
        field, than = "idleReplicaCount", f"not below minReplicaCount ({low})"
    else:
        return
    value = low if field == "minReplicaCount" else spec.idle_replica_count
    yield Finding(
        f"spec.{field}",
        f"The {field} of this ScaledObject ({value}) is {than}. KEDA refuses that: it makes no autoscaler, "
        "or leaves an older one unchanged.",
        f"Lower {field}.",
    )


def _is_made(name: str, namespace: str, whole: WholeObjects) -> bool:
    """Whether the operator of an object with the beginning of a name may make the workload: KServe makes the
    Deployment llm-predictor of the InferenceService llm."""
    parts = name.split("-")[:_PARTS]
    owners = ["-".join(parts[: length + 1]) for length in range(len(parts))]
    return any(whole.named(kind, namespace, owner) for kind in _operated() for owner in owners)


@table
def _operated() -> tuple[GroupKind, ...]:
    """Kinds of operators that create workloads."""
    return tuple(
        each.group_kind
        for each in known_workloads()
        if each.group_kind.group not in ("", "apps", "batch") and each.group_kind not in SERVING
    )


def _of_ray(target: Target) -> Findings:
    """Groups of a Ray cluster whose number of CPUs its autoscaler does not find (`_get_num_cpus` in
    ray/autoscaler/_private/kuberay/autoscaling_config.py of Ray 2.40 and 2.41)."""
    cluster = target.read(RayObject).cluster
    if not cluster.enable_in_tree_autoscaling:
        return
    name, tag = repository_and_tag(
        next((each.image for each in cluster.head_group_spec.template.spec.containers), "")
    )
    version = numbers_of_tag(tag) if name in _RAY_IMAGES else ()
    for template in target.templates:
        container = next(iter(template.containers(Role.MAIN)), None)
        above = template.steps[:-1]
        if container is None or dig(target.obj, *above, "resources"):  # KubeRay 1.5 prefers the group's own
            continue
        resources = container.typed.resources
        if "cpu" in resources.limits or _CPUS in start_parameters(cluster, template):
            continue
        requested = "cpu" in resources.requests
        if requested and not () < version < _READS_REQUESTS:
            continue
        before = ", and Ray before 2.41 doesn't read requests" if requested else ""
        yield Finding(
            template.at(container, "resources"),
            f"Ray's autoscaler doesn't find the number of CPUs of container {container.name}, which has no "
            f"CPU {'limit' if requested else 'limit or request'}{before}. The autoscaler exits with an error "
            "each time it starts.",
            f"Set a CPU limit, or {_CPUS} in rayStartParams.",
        )


def _obstacles(
    metrics: Sequence[Metric],
    running: Sequence[ContainerResources],
    defaults: LimitDefaults | None,
    tolerance: Decimal,
) -> Iterator[_Obstacle]:
    """Metrics without a value because the same containers lack requests are one obstacle."""
    lacking: dict[tuple[tuple[str, ...], str], tuple[list[Container], list[str]]] = {}
    for metric in islice(filter(None, map(_utilization, metrics)), _MAX):
        counted = [each for each in running if metric.container in ("", each.container.name)]
        if not counted:
            continue  # another webhook may add the container
        without = [each for each in counted if metric.resource not in each.requests]
        if without or not any(each.requests[metric.resource] for each in counted):
            containers = [each.container for each in without or counted]
            key = (tuple(each.name for each in containers), "no" if without else "0")
            resources = lacking.setdefault(key, (containers, []))[1]
            resources += [metric.resource] if metric.resource not in resources else []
        elif found := _out_of_reach(metric, counted, tolerance):
            yield found
    for (_, amount), (containers, resources) in lacking.items():
        yield _without_request(containers, resources, amount, sure=amount == "0" or defaults is not None)


def _without_request(
    containers: Sequence[Container], resources: Sequence[str], amount: str, *, sure: bool
) -> _Obstacle:
    """Containers that have no request for what metrics are a percentage of, or a request of 0."""
    several, what = len(containers) > 1, " and ".join(resources)
    amounts = " and ".join(f"{amount} {resource}" for resource in resources)
    one = len(resources) == 1
    requests = f"a {what} request" if one else f"{what} requests"
    unless = "" if sure else f" (unless a LimitRange {'gives it one' if one else 'sets them'})"
    return _Obstacle(
        containers[0],
        f"scales by {what} as a percentage of the requests, but container{'s' if several else ''} "
        f"{listed((each.name for each in containers), 3)} request{'' if several else 's'} {amounts}{unless}",
        f"Set {requests} for each container, or use a target of type AverageValue.",
        fails=True,
        metrics=len(resources),
        sure=sure,
    )


def _out_of_reach(
    metric: _Utilization, counted: Sequence[ContainerResources], tolerance: Decimal
) -> _Obstacle | None:
    """If the containers' limits keep the use below the target."""
    if any(metric.resource not in each.limits or metric.resource in each.ambiguous for each in counted):
        return None
    limits = sum(each.limits[metric.resource] for each in counted)
    most = int(limits * 100 / sum(each.requests[metric.resource] for each in counted))
    if most > metric.target * (1 + tolerance):
        return None
    sure = most <= metric.target
    above = "" if sure else f" by more than the tolerance of {(tolerance * 100).normalize():f} %"
    return _Obstacle(
        counted[0].container,
        f"adds pods only if they use more than {metric.target} % of their {metric.resource} "
        f"requests{above}, but their limits allow at most {most} %",
        f"Lower averageUtilization, or raise the {metric.resource} limits above the requests.",
        sure=sure,
    )


def _effect(found: _Obstacle, metrics: int) -> str:
    """While one of several metrics fails, the others add pods and remove none (`computeReplicasForMetrics` in
    horizontal.go)."""
    if metrics > found.metrics:
        they = "it" if found.metrics == 1 else "they"
        others = f", and while {they} can't be computed, the others remove none" if found.fails else ""
        return f"{'This metric adds' if found.metrics == 1 else 'These metrics add'} no pods{others}"
    return f"The autoscaler {'neither adds nor removes' if found.fails else 'never adds'} pods"


def _tolerance(autoscaler: HorizontalPodAutoscaler) -> Decimal:
    """The fraction by which the use must exceed the target. Raises ValueError."""
    value = autoscaler.spec.behavior.scale_up.tolerance
    return _TOLERANCE if value is None else parse_quantity(value)


def _metrics(autoscaler: HorizontalPodAutoscaler) -> tuple[Metric, ...]:
    """The metrics as autoscaling/v2 has them, with the API server's default."""
    if autoscaler.spec.metrics:
        return autoscaler.spec.metrics
    others = (Metric(type="Unknown"),) if _MORE_METRICS in autoscaler.metadata.annotations else ()
    percent = autoscaler.spec.target_cpu_utilization_percentage
    if others and not percent:
        return others
    target = MetricTarget(type="Utilization", average_utilization=percent or _DEFAULT_TARGET)
    return (Metric(type="Resource", resource=ResourceMetric(name="cpu", target=target)), *others)


def _utilization(metric: Metric) -> _Utilization | None:
    """None for a metric of another kind."""
    of_container = metric.type == "ContainerResource"
    source = metric.container_resource if of_container else metric.resource
    if source is None or (metric.type != "Resource" and not of_container):
        return None
    percent = source.target.average_utilization or 0
    if source.target.type != "Utilization" or percent <= 0 or of_container != bool(source.container):
        return None
    return _Utilization(source.name, source.container, percent)


RULE = rule(__name__, check, (*SERVING, LEADER_WORKER_SET, *RAY_KINDS, AUTOSCALER, *MAKERS), unowned=True)
