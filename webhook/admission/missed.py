"""What a running pod lacks of the present policy, or has of an earlier one.

Pure. Law: a pod is never missed for what it never would have got: each answer is the engine's own, about the
pod as it runs and about the pod without the fields that its annotation lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from policies.core.annotations import ADMISSION, CHANGED, EXEMPT
from policies.core.facts import Cluster, Facts
from policies.core.mode import Mode
from policies.kube.field_paths import value_at, without
from policies.kube.group_kinds import POD
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of, labels_of
from webhook.admission import engine
from webhook.admission.accounts import MIRROR
from webhook.admission.changed import Changed
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request

Fields = Mapping[str, tuple[str, ...]]
"""Field paths by the id of the policy that gives them."""


class How(StrEnum):
    """How a pod differs from one that would be made now."""

    LACKS = "lacks"
    """The policy gives it fields that it does not have."""
    EARLIER = "earlier-policy"
    """It has fields of an earlier policy, which the present one would not give or would give otherwise."""
    EXEMPTED = "exempted"
    """An annotation on it keeps a policy away."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The difference of one pod."""

    how: How
    fields: Fields
    digest: str = ""
    """That of the policy that the pod was made under, if it has fields of one."""


def runs(pod: Json) -> bool:
    """Whether the pod runs or is going to, and admission decides about such pods."""
    if MIRROR in annotations_of(pod):
        return False
    ended = text(pod, "status", "phase") in ("Succeeded", "Failed")
    return not ended and not text(pod, "metadata", "deletionTimestamp")


def excluded(pod: Json, config: Config, cluster: Cluster) -> bool:
    """Whether admission does not look at the pod: by its namespace, or by its own label."""
    namespace = text(pod, "metadata", "namespace")
    above = Facts(namespace, cluster).namespace_labels() or {}
    disabled = "disabled" in (above.get(ADMISSION), labels_of(pod).get(ADMISSION))
    return disabled or not config.webhook.namespaces.covers(namespace)


def made_now(pod: Json, config: Config) -> bool:
    """Whether the pod shows that it was made under this policy."""
    changed = Changed.of(pod)
    return changed is not None and changed.digest == config.digest


def missed(pod: Json, config: Config, cluster: Cluster) -> Missed | None:
    """How a running pod differs from one that would be made now; None if it does not."""
    changed = Changed.of(pod)
    if changed is not None and changed.digest == config.digest:
        return None
    digest = changed.digest if changed else ""
    lacks = _given(pod, config, cluster)[1]
    if lacks:
        return Missed(How.LACKS, lacks, digest)
    if changed is not None:
        earlier = _of_earlier(pod, changed, config, cluster)
        return Missed(How.EARLIER, earlier, digest) if earlier else None
    if EXEMPT in annotations_of(pod):
        would = _given(without(pod, [f"metadata.annotations[{EXEMPT}]"]), config, cluster)[1]
        return Missed(How.EXEMPTED, would) if would else None
    return None


def _of_earlier(pod: Json, changed: Changed, config: Config, cluster: Cluster) -> Fields:
    """The fields on which the policy that made the pod and the present one do not agree."""
    bare = without(pod, [*(each.path for each in changed.entries), f"metadata.annotations[{CHANGED}]"])
    final, given = _given(bare, config, cluster)
    differs: dict[str, list[str]] = {}
    for policy, paths in given.items():
        for path in paths:
            if not _within(value_at(final, path), value_at(pod, path)):
                differs.setdefault(policy, []).append(path)
    for entry in changed.entries:
        there = value_at(pod, entry.path)
        if there is not None and value_at(final, entry.path) is None and entry.policy != _NAMES:
            differs.setdefault(entry.policy, []).append(entry.path)
    return {policy: tuple(paths) for policy, paths in differs.items()}


_NAMES: Final = "worker-names"
"""Names are given by another endpoint, and stay."""


def _given(pod: Json, config: Config, cluster: Cluster) -> tuple[Json, Fields]:
    """The pod as the policy would leave it if it were created now, and the fields that it would get."""
    namespace = text(pod, "metadata", "namespace") or "default"
    request = Request(
        uid="running",
        kind=POD,
        operation="CREATE",
        namespace=namespace,
        name=text(pod, "metadata", "name"),
        object=pod,
        old_object=None,
        dry_run=True,
    )
    decision = engine.mutate(request, config, cluster)
    fields: dict[str, tuple[str, ...]] = {}
    for change in decision.changes:
        if change.mode is Mode.ENFORCE and change.patch:
            paths = tuple(path for path, _ in change.why.fields())
            fields[change.policy] = fields.get(change.policy, ()) + paths
    return decision.object, fields


def _within(small: Any, large: Any) -> bool:
    """Whether one value is in another, which the API server may have completed with defaults."""
    if isinstance(small, dict):
        return isinstance(large, dict) and all(_within(value, large.get(key)) for key, value in small.items())
    if isinstance(small, list):  # the API server's own plugins append, such as the account's token
        return isinstance(large, list) and all(any(_within(one, other) for other in large) for one in small)
    return bool(small == large)
