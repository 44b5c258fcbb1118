"""gpu-unschedulable: pods with accelerators that no node and no declared pool can take."""

from __future__ import annotations

from policies.accelerators.placement import Cause, Obstacle, placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule


def check(target: Target, facts: Facts) -> Findings:
    settings = facts.settings(GpuAffinity)
    for template in target.templates:
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
