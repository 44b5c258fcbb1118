"""liveness-blind: a liveness endpoint that answers while the server hangs."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.liveness_program import BY_HAND, blind_because
from policies.probes.probe import LIVENESS
from policies.probes.serving import serving_containers
from policies.probes.standard_probes import looks_injected

_AND_CAUSE: Final = " and what keeps progress from being checked"


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray or template.container_path:
            continue
        for container in serving_containers(template.view, facts):
            because = blind_because(template.view, container, facts)
            if because and not looks_injected(template.view, container, LIVENESS, facts):
                yield Finding(
                    template.at(container, LIVENESS),
                    f"The liveness endpoint of container {container.name} answers even while its engine "
                    f"hangs, so the kubelet doesn't restart it. Progress isn't checked: {because}.",
                    f"Remove the livenessProbe{'' if because == BY_HAND else _AND_CAUSE}, so that the "
                    "webhook adds one that checks progress.",
                )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
