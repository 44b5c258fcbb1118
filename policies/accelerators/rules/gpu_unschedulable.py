"""gpu-unschedulable: pods with accelerators that no node and no declared pool can take, or whose request the
API server refuses.

Source: `ValidateContainerResourceRequirements` in pkg/apis/core/validation/validation.go of Kubernetes 1.36.
"""

from __future__ import annotations

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import Cause, Obstacle, competing, placement
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.queues import is_queued
from policies.core.runs import run_of
from policies.kube.names import plural
from policies.kube.objects.limits import LimitRange
from policies.kube.objects.pods import is_extended
from policies.kube.quantities import parse_quantity
from policies.rollouts.rollouts import pods_in_group


def check(target: Target, facts: Facts) -> Findings:
    found = list(_of_pods(target, facts))
    yield from found or _of_group(target, facts)


def _of_group(target: Target, facts: Facts) -> Findings:
    """A finding about pods that need each other, of which only some fit on all nodes together."""
    run = run_of(target.obj)
    if run is None or not run.needs_all_pods or is_queued(target.obj):
        return
    counts = pods_in_group(target)
    templates = ((each, counts.get(each.path, 0)) for each in target.templates)
    for template, placed, pods in competing(templates, facts):
        room = placed.room(one_each=False)
        if pods > room:
            yield Finding(
                _asking(template, facts.settings(GpuAffinity)),
                f"{pods} pods of this {target.kind.kind} request {placed.requested} each and need each "
                f"other, but all nodes and pools together fit only {int(room)}. The others stay Pending, and "
                "those that run wait for them and hold their accelerators.",
                f"Run at most {plural(int(room), 'pod')}, or declare a pool that can grow in "
                "gpu-affinity.yaml.",
                Certainty.UNDECIDED,  # an autoscaler may add nodes
            )
            return


def _of_pods(target: Target, facts: Facts) -> Findings:
    settings = facts.settings(GpuAffinity)
    for template in target.templates:
        if refused := list(_refused(template, facts)):
            yield from refused
            continue
        found = placement(template.view, facts)
        if found is not None and found.obstacle is not None:
            obstacle = found.obstacle
            certainty = Certainty.CERTAIN if settings.knows_all_nodes else Certainty.LIKELY
            yield Finding(
                _path(template, obstacle, settings),
                obstacle.message,
                obstacle.hint,
                certainty if obstacle.certain else Certainty.UNDECIDED,
            )


def _refused(template: PodTemplate, facts: Facts) -> Findings:
    """Extended resources, which no pod may request without that limit. The API server checks the templates of
    its own kinds too, and those of others only when their controller creates the pods."""
    for container in template.containers():
        resources = container.typed.resources
        for name, request in resources.requests.items():
            limit = resources.limits.get(name)
            if request is None or not is_extended(name):
                continue
            equal = _has_a_default(name, facts) if limit is None else not _differ(request, limit)
            if equal:
                continue
            has = "without a limit" if limit is None else f"with a limit of {limit}"
            yield Finding(
                template.at(container, f"resources.requests[{name}]"),
                f"Container {container.name} requests {request} {name} {has}. For extended resources the two "
                "must be equal, so the API server refuses every pod.",
                "Set the limit only, which is also the request.",
                # Another webhook may add a limit, and a LimitRange may be there that is not known.
                Certainty.LIKELY if limit is None else Certainty.CERTAIN,
            )


def _has_a_default(name: str, facts: Facts) -> bool:
    items = (item for each in facts.objects(LimitRange) or () for item in each.spec.limits)
    return any(name in item.default or name in item.max for item in items)


def _differ(request: object, limit: object) -> bool:
    try:
        return parse_quantity(request) != parse_quantity(limit)
    except ValueError:
        return False


def _path(template: PodTemplate, obstacle: Obstacle, settings: GpuAffinity) -> str:
    match obstacle.cause:
        # The webhook adds tolerations, so a missing one is reported at the request.
        case Cause.RESOURCES | Cause.TAINTS:
            return _asking(template, settings)
        case Cause.PRODUCT | Cause.MEMORY as cause:
            return f"{template.metadata_path}.annotations[{cause.value}]"
    selects = template.typed.spec.node_selector
    return f"{template.spec_path}.{'nodeSelector' if selects else 'affinity.nodeAffinity'}"


def _asking(template: PodTemplate, settings: GpuAffinity) -> str:
    """The resources of the first container that requests an accelerator."""
    for container in template.containers():
        if settings.catalogue.requests_of(container.typed.resources):
            return template.at(container, "resources")
    return template.spec_path


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,), at_once=True)
