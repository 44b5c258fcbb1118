"""rollout-node-deadlock: more pods that must be apart than there are nodes, or zones, for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from policies.accelerators.inventory import Node
from policies.accelerators.node_affinity import REQUIRED, admits, is_surveyable, tolerates
from policies.accelerators.placement import apart_in, placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import rule
from policies.core.facts import Facts, is_virtual
from policies.core.finding import Certainty, Finding
from policies.core.listing import Listing
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.json import Json, dig, maps, replaced, text
from policies.kube.metadata import controller, labels_of
from policies.kube.nodes import HOSTNAME
from policies.rollouts.rollouts import rolling_update, running_replicas

MOST_NODES: Final = 2_000
"""A larger cluster is not judged: all its nodes would be compared with the pod."""
_REMEMBERED: Final = 1024
"""Answers that are kept for as long as no node changes."""
_MOST_REPLICAS: Final = 10_000
_MOST_KEYS: Final = 4
_PLACES: Final = {HOSTNAME: "on different nodes", "topology.kubernetes.io/zone": "in different zones"}


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    nodes = facts.nodes()
    if (
        not nodes
        or len(nodes) > MOST_NODES
        or len(target.templates) != 1
        or controller(target.obj) is not None
    ):
        return
    template, replicas = target.templates[0], running_replicas(target.obj, facts)
    keys = list(dict.fromkeys(apart_in(template.pod)))
    if not keys or len(keys) > _MOST_KEYS or not 0 < replicas < _MOST_REPLICAS:
        return
    settings = facts.settings(GpuAffinity)
    if text(template.spec, "nodeName") or not is_surveyable(template.pod):
        return
    if placement(template.pod, settings, facts) is not None:
        return  # pods with accelerators are rollout-gpu-deadlock's
    certainty = Certainty.SURE if settings.fixed_size else Certainty.LIKELY
    for key in keys:
        domains = _domains(template.pod, key, nodes, replicas)
        if domains is None or domains > replicas or domains == 0:
            continue
        if replicas > domains:
            yield _too_many(template, key, replicas, domains, certainty)
            return
        if target.kind == DEPLOYMENT and _blocks(target.obj, template, key, replicas):
            yield _stuck(key, replicas, certainty)
            return


def _blocks(deployment: Json, template: PodTemplate, key: str, replicas: int) -> bool:
    """Whether a rollout starts a new pod before it stops an old one, and keeps the two apart."""
    rollout = rolling_update(replaced(deployment, ("spec", "replicas"), replicas))
    return rollout is not None and not rollout.unavailable and key in apart_in(template.pod, revisions=True)


def _too_many(template: PodTemplate, key: str, replicas: int, domains: int, certainty: Certainty) -> Finding:
    left, places = replicas - domains, _places(key)
    return Finding(
        f"{template.spec_path}.affinity.podAntiAffinity",
        f"The pods must be {places}, and {domains} of these can take them: {left} of "
        f"{replicas} replicas {'stays' if left == 1 else 'stay'} Pending.",
        f"Run at most {domains} replicas, or prefer pods {places} instead of requiring it.",
        certainty,
    )


def _stuck(key: str, replicas: int, certainty: Certainty) -> Finding:
    places = _places(key)
    return Finding(
        "spec.strategy.rollingUpdate.maxUnavailable",
        f"The pods must be {places}, and {replicas} of these can take them, one for each "
        "replica. A rollout starts a new pod before it stops an old one: the new pod stays Pending, and the "
        "rollout never completes.",
        f"Set maxUnavailable to 1 and maxSurge to 0, or prefer pods {places} instead of requiring it.",
        certainty,
    )


def _places(key: str) -> str:
    return _PLACES.get(key, f"on nodes with different values of {key}")


def _domains(pod: Json, key: str, nodes: Listing, replicas: int) -> int | None:
    """In how many domains of a topology there are nodes for the pod, counted up to one more than `replicas`;
    None if it is not limited by them."""
    answers = nodes.derive(_answers)
    demands = [dig(pod, "spec", "nodeSelector"), dig(pod, *REQUIRED), dig(pod, "spec", "tolerations")]
    question = json.dumps([*demands, key, replicas])
    if question not in answers:
        if len(answers) >= _REMEMBERED:
            answers.clear()
        answers[question] = _count(pod, key, nodes, replicas)
    return answers[question]


def _answers(nodes: Listing) -> dict[str, int | None]:
    return {}


def _count(pod: Json, key: str, nodes: Listing, replicas: int) -> int | None:
    found: set[str] = set()
    for obj in nodes:
        name, labels = text(obj, "metadata", "name"), labels_of(obj)
        if not admits(pod, name, labels):
            continue
        taints = Node(name, labels, tuple(maps(obj, "spec", "taints")), {}).lasting_taints
        if not all(tolerates(pod, taint) for taint in taints):
            continue
        domain = text(labels, key) or (name if key == HOSTNAME else "")
        if not domain or is_virtual(obj):
            # Pods on a node without the label are apart from nobody; a virtual node takes many pods.
            return None
        found.add(domain)
        if len(found) > replicas:
            break
    return len(found)


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET))
