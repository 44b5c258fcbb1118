"""Findings about serving containers without a livenessProbe, for two rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from policies.core.completing import CLUSTER_SERVING_RUNTIME, SERVING_RUNTIME
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import PodTemplate, Target
from policies.kube.metadata import controller
from policies.kube.names import listed
from policies.kube.pods import Container
from policies.probes.endpoints import doubt_about, server_port
from policies.probes.first_party import is_first_party
from policies.probes.probe import LIVENESS
from policies.probes.recognition import GroupRole
from policies.probes.serving import recognised, serving_containers

RUNTIMES: Final = (SERVING_RUNTIME, CLUSTER_SERVING_RUNTIME)


def missing_liveness(
    target: Target,
    facts: Facts,
    applies: Callable[[PodTemplate, Container], bool],
    verbs: tuple[str, str],
    consequence: str,
    hint: str,
) -> Iterator[Finding]:
    """One finding for the containers of each pod template to which a rule applies.

    `verbs`: for one container and for several. `hint`: for containers without a recognised server.
    """
    for template in target.templates:
        if _others_add_probes(template):
            continue
        found = [
            each
            for each in serving_containers(template.view, facts)
            if _lacks_liveness(template, each, facts) and applies(template, each)
        ]
        if found:
            noun, verb = ("Container", verbs[0]) if len(found) == 1 else ("Containers", verbs[1])
            yield Finding(
                template.at(found[0], LIVENESS),
                f"{noun} {listed(each.name for each in found)} {verb} {consequence}",
                _server_hint(found[0], facts) or hint,
            )


def _others_add_probes(template: PodTemplate) -> bool:
    """Whether KubeRay or a serving runtime adds the probes, or a person watches a Pod without controller. The
    flags and probes of a serving runtime may be in the service that uses it, so it is judged there."""
    is_bare_pod = template.workload is None and controller(template.pod) is None
    is_runtime = template.workload is not None and template.workload.gk in RUNTIMES
    return template.is_ray or bool(template.container_path) or template.rewritten or is_bare_pod or is_runtime


def _lacks_liveness(template: PodTemplate, container: Container, facts: Facts) -> bool:
    server = recognised(container, facts)
    return (
        not container.spec.get(LIVENESS)
        and (server is None or server.role is GroupRole.SERVES)
        and is_first_party(template, container, facts)
    )


def _server_hint(container: Container, facts: Facts) -> str | None:
    """Why a recognised server gets no livenessProbe, and what to write."""
    server = recognised(container, facts)
    doubt = doubt_about(container, server, server_port(container, server)) if server else None
    if server is None or doubt is None:
        return None
    why, advice = doubt
    return f"It runs {server.name}, and {why}: {advice[:1].lower()}{advice[1:]}."
