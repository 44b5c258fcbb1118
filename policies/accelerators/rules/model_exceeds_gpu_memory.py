"""model-exceeds-gpu-memory: served models whose weights fit on no accelerator that the pod can get."""

from __future__ import annotations

from policies.accelerators.fit import Misfit, misfit
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.json import strings
from policies.kube.pods import Role


def check(target: Target, facts: Facts) -> Findings:
    settings = facts.settings(GpuAffinity)
    certainty = Certainty.CERTAIN if settings.knows_all_nodes else Certainty.LIKELY
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            found = misfit(template.pod, container, facts)
            if found is not None:
                field = "args" if strings(container.spec, "args") else "command"
                yield Finding(template.at(container, field), _message(found), _hint(found), certainty)


def _message(found: Misfit) -> str:
    name = found.model.rpartition("/")[2][:60]
    each = ""
    if found.accelerators > 1:
        each = (
            f" over {found.accelerators} accelerators, {_gigabytes(found.weights / found.accelerators)} each"
        )
    return (
        f"The weights of {name} take about {_gigabytes(found.weights)}{each}, but the largest accelerator "
        f"that this pod can get has {_gigabytes(found.largest)} ({found.node.name}): the server fails at "
        "every start."
    )


def _hint(found: Misfit) -> str:
    return (
        f"Spread the weights over at least {found.enough} such accelerators (--tensor-parallel-size), use a "
        "quantised model, or add nodes with more accelerator memory."
    )


def _gigabytes(size: float) -> str:
    return f"{size / 10**9:.0f} GB"


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
