"""liveness-missing, readiness-without-liveness: serving containers that are not restarted when they hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.pod_bases import CLUSTER_SERVING_RUNTIME, SERVING_RUNTIME
from policies.core.pod_view import PodView
from policies.kube.metadata import controller
from policies.kube.names import listed
from policies.kube.pods import Container
from policies.probes.first_party import is_first_party, is_notebook, takes_tasks
from policies.probes.health import doubt_in
from policies.probes.probe import LIVENESS, READINESS, probe_of
from policies.probes.recognition import GroupRole
from policies.probes.serving import recognised, serving_containers
from policies.probes.standard_probes import looks_injected

RUNTIMES: Final = (SERVING_RUNTIME, CLUSTER_SERVING_RUNTIME)


def _missing_liveness(
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
                _server_hint(template.view, found[0], facts) or hint,
            )


def _others_add_probes(template: PodTemplate) -> bool:
    """Whether an operator or a serving runtime adds the probes, or a person watches a Pod without controller.
    The flags and probes of a serving runtime may be in the service that uses it, so it is judged there."""
    if template.workload is None:
        added = controller(template.pod) is None
    else:
        added = template.workload.adds_liveness or template.workload.group_kind in RUNTIMES
    return template.is_ray or bool(template.container_path) or template.rewritten or added


def _lacks_liveness(template: PodTemplate, container: Container, facts: Facts) -> bool:
    server = recognised(container, facts)
    return (
        not container.spec.get(LIVENESS)
        and (server is None or (server.role is GroupRole.SERVES and not is_notebook(server)))
        and not (server is None and _only_has_a_port(template, container))
        and is_first_party(template, container, facts)
    )


def _only_has_a_port(template: PodTemplate, container: Container) -> bool:
    """Whether only a port tells that a container serves, which the pods of a training in an unknown kind and
    workers of a queue may have, too."""
    return not container.spec.get(READINESS) and (template.by_shape or takes_tasks(container))


def _server_hint(pod: PodView, container: Container, facts: Facts) -> str | None:
    """Why a recognised server gets no livenessProbe, and what to write."""
    server = recognised(container, facts)
    doubt = doubt_in(pod, container, facts)
    if server is None or doubt is None:
        return None
    why, advice = doubt
    return f"It runs {server.name}, and {why}: {advice[:1].lower()}{advice[1:]}."


def without_probes(target: Target, facts: Facts) -> Findings:
    return _missing_liveness(
        target,
        facts,
        lambda _, container: not container.spec.get(READINESS),
        ("serves requests but has", "serve requests but have"),
        "no livenessProbe. If a server hangs, the kubelet doesn't restart it.",
        "Add a livenessProbe on a local health endpoint, or name the endpoint in the annotation "
        "mlchassis.dev/health-path of the pod template.",
    )


def with_readiness(target: Target, facts: Facts) -> Findings:
    return _missing_liveness(
        target,
        facts,
        lambda template, container: _has_readiness(template, container, facts),
        ("has", "have"),
        "a readinessProbe but no livenessProbe. If a server hangs, it gets no traffic, but the kubelet "
        "doesn't restart it.",
        "Add a livenessProbe on a cheap local endpoint that fails later than the readinessProbe.",
    )


def _has_readiness(template: PodTemplate, container: Container, facts: Facts) -> bool:
    readiness = probe_of(template, container, READINESS)
    if readiness is None or not readiness.is_user_written:
        return False
    return not looks_injected(template.view, container, READINESS, facts)


RULES = (
    rule(__name__, without_probes, name="liveness-missing"),
    rule(__name__, with_readiness, requires=(PodFeature.READINESS,), name="readiness-without-liveness"),
)
