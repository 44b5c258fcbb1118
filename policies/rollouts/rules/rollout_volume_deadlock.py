"""rollout-volume-deadlock: a rollout whose new pod waits for the volume that the old pod holds."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import BY_NAME, Facts
from policies.core.finding import Certainty, Finding
from policies.core.pod_features import PodFeature
from policies.core.resources import Resource
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DEPLOYMENT
from policies.kube.json import indexed_maps, strings, text
from policies.kube.nodes import pinned_to_one_node
from policies.rollouts.rollouts import rolling_update


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    rollout = rolling_update(target.obj)
    claims = facts.listing(Resource.CLAIMS)
    # If every old pod may go first, any surge frees the volume.
    if rollout is None or not claims or not rollout.surge or rollout.unavailable >= rollout.replicas:
        return
    by_name = claims.by(BY_NAME)
    for template in target.templates:
        pinned = pinned_to_one_node(template.spec)
        for index, volume in indexed_maps(template.spec, "volumes"):
            name = text(volume, "persistentVolumeClaim", "claimName")
            certainty = _exclusive(strings(by_name.one(name), "spec", "accessModes"), pinned=pinned)
            if name and certainty:
                yield _volume_finding(template, index, name, certainty)


def _exclusive(modes: list[str], *, pinned: bool) -> Certainty | None:
    """How sure it is that a second pod can't mount a claim together with the first."""
    if "ReadWriteOncePod" in modes:
        return Certainty.SURE
    if modes and set(modes) == {"ReadWriteOnce"} and not pinned:
        return Certainty.LIKELY
    return None


def _volume_finding(template: PodTemplate, index: int, claim: str, certainty: Certainty) -> Finding:
    if certainty is Certainty.SURE:
        message = (
            f"Claim {claim} is ReadWriteOncePod and the new pod starts before the old one stops: it waits "
            "for the volume, which the old pod keeps until the new one is ready."
        )
    else:
        message = (
            f"Claim {claim} is ReadWriteOnce and the new pod starts before the old one stops: on another "
            "node it waits for the volume, which the old pod keeps until the new one is ready."
        )
    return Finding(
        f"{template.spec_path}.volumes[{index}].persistentVolumeClaim",
        message,
        "Set strategy.type to Recreate, or maxSurge 0 with maxUnavailable 1, or use a ReadWriteMany claim.",
        certainty,
    )


RULE = rule(__name__, check, (DEPLOYMENT,), requires=(PodFeature.CLAIM,))
