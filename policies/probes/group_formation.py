"""Whether a group of pods can form while one of them has a probe that delays its readiness."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.groups import Waits, leads, peers_need
from policies.kube.json import Json
from policies.kube.pods import Container
from policies.probes.serving import recognised


def waits_for(pod: Json, container: Container, facts: Facts) -> Waits:
    """Whether other members of the pod's group wait until the pod is Ready, while its server may wait for
    them."""
    leader = leads(pod, facts)
    if leader is not None:
        return leader
    server = recognised(container, facts)
    return peers_need(pod, facts) if server is not None and server.spans_pods else Waits.NO


def deadlocks(pod: Json, container: Container, facts: Facts) -> Iterator[Finding]:
    """Findings about the user's probes on a leader whose workers wait for it."""
    if leads(pod, facts) is not Waits.YES:
        return
    for name in ("readinessProbe", "startupProbe"):
        if container.spec.get(name):
            yield Finding(
                f"spec.{container.list}[{container.index}].{name}",
                f"startupPolicy is LeaderReady, so the workers are created only once the leader is Ready. If "
                f"{container.name} answers its {name} only with its workers, the group never starts.",
                "Set startupPolicy: LeaderCreated, or probe something that does not need the workers.",
            )
            return


def left_unready(pod: Json, container: Container, waits: Waits) -> Finding:
    """That no readiness probe is added to a member of a group, and why."""
    why = (
        "its group may form only once it is Ready"
        if waits is Waits.YES
        else "it is not known whether its group can form before it is Ready"
    )
    return Finding(
        f"spec.{container.list}[{container.index}]",
        f"Container {container.name} gets no readinessProbe and no startupProbe: {why}.",
        "Write a readinessProbe if the group forms before this pod is Ready: startupPolicy LeaderCreated, or "
        "podManagementPolicy Parallel and a headless Service with publishNotReadyAddresses.",
    )
