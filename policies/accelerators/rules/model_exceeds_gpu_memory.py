"""model-exceeds-gpu-memory: served models whose weights fit on no accelerator that the pod can get."""

from __future__ import annotations

from policies.accelerators.fit import Misfit, misfit
from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.slices import slice_memory
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Container, Role


def check(target: Target, facts: Facts) -> Findings:
    settings = facts.settings(GpuAffinity)
    certainty = Certainty.CERTAIN if settings.knows_all_nodes else Certainty.LIKELY
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            found = misfit(template.view, container, facts)
            if found is not None:
                field = "args" if container.typed.args else "command"
                yield Finding(
                    template.at(container, field), _message(found), _hint(found, container), certainty
                )


def _message(found: Misfit) -> str:
    weights, accelerators = found.load.weights, found.load.accelerators
    each = f" over {accelerators} accelerators, {_gigabytes(weights / accelerators)} each"
    return (
        f"The weights of {found.load.model.rpartition('/')[2][:60]} take about "
        f"{_gigabytes(weights)}{each if accelerators > 1 else ''}, but the largest accelerator that this "
        f"pod can get has {_gigabytes(found.largest)} ({found.where}). The server fails at every start."
    )


def _hint(found: Misfit, container: Container) -> str:
    if any(slice_memory(resource) is not None for resource in container.typed.resources.limits):
        return "Request a larger slice or a whole accelerator, or use a quantised model."
    return (
        f"Spread the weights over at least {found.enough} such accelerators (--tensor-parallel-size), use a "
        "quantised model, or run it where accelerators have more memory."
    )


def _gigabytes(size: float) -> str:
    return f"{size / 10**9:.0f} GB"


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
