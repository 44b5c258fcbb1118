"""How a running pod differs from a new one under the present policy.

Law: no field is reported that the policy would not add. Each answer is the engine's, about the running pod
and about the pod without the fields that its annotation lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from policies.core.annotations import CHANGED, EXEMPT
from policies.core.facts import Cluster, Facts
from policies.core.finding import Mode
from policies.kube.field_paths import value_at, without
from policies.kube.group_kinds import POD
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of, labels_of
from webhook.admission import engine
from webhook.admission.changed_annotation import Changed
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.admission.review import Review
from webhook.admission.scope import MIRROR, is_disabled

Fields = Mapping[str, tuple[str, ...]]
"""Field paths by the id of the policy that adds them."""


class Difference(StrEnum):
    """The kind of difference between a running and a new pod."""

    LACKS = "lacks"
    """The policy would add fields."""
    EARLIER = "earlier-policy"
    """An earlier policy added fields that the present one would not add, or would set to other values."""
    EXEMPTED = "exempted"
    """An annotation exempts the pod from a policy."""


class Missed(Struct, frozen=True):
    """The difference of one pod."""

    difference: Difference
    fields: Fields
    digest: str = ""
    """The digest of the policy that added the pod's fields, if any."""


def runs(pod: Json) -> bool:
    """Whether the pod runs or will run, and is not a mirror pod."""
    if MIRROR in annotations_of(pod):
        return False
    ended = text(pod, "status", "phase") in ("Succeeded", "Failed")
    return not ended and not text(pod, "metadata", "deletionTimestamp")


def excluded(pod: Json, config: Config, cluster: Cluster) -> bool:
    """Whether admission skips the pod because of its namespace or its own label."""
    namespace = text(pod, "metadata", "namespace")
    above = Facts(namespace, cluster).namespace_labels() or {}
    return is_disabled(above, labels_of(pod)) or not config.webhook.namespaces.covers(namespace)


def is_current(pod: Json, config: Config) -> bool:
    """Whether the pod's annotation shows that it was created under this policy."""
    changed = Changed.of(pod)
    return changed is not None and changed.digest == config.digest


def missed(pod: Json, config: Config, cluster: Cluster) -> Missed | None:
    """How a running pod differs from a new one; None if it does not."""
    if is_current(pod, config):
        return None
    changed = Changed.of(pod)
    digest = changed.digest if changed else ""
    lacks = _mutated(pod, config, cluster)[1]
    if lacks:
        return Missed(Difference.LACKS, lacks, digest)
    if changed is not None:
        earlier = _of_earlier(pod, changed, config, cluster)
        return Missed(Difference.EARLIER, earlier, digest) if earlier else None
    if EXEMPT in annotations_of(pod):
        fields = _mutated(without(pod, [f"metadata.annotations[{EXEMPT}]"]), config, cluster)[1]
        return Missed(Difference.EXEMPTED, fields) if fields else None
    return None


def _of_earlier(pod: Json, changed: Changed, config: Config, cluster: Cluster) -> Fields:
    """The fields that the pod's policy and the present one set differently."""
    left_out = [*(each.path for each in changed.entries), f"metadata.annotations[{CHANGED}]"]
    if any(path.startswith(_OF_SCHEDULING) for path in left_out):
        left_out.append("spec.nodeName")  # the scheduler has set it: pods with a node get no such fields
    original = without(pod, left_out)
    final, added = _mutated(original, config, cluster)
    differs: dict[str, list[str]] = {}
    for policy, paths in added.items():
        for path in paths:
            if not _contains(value_at(pod, path), value_at(final, path)):
                differs.setdefault(policy, []).append(path)
    for entry in changed.entries:
        present = value_at(pod, entry.path)
        if present is not None and value_at(final, entry.path) is None and entry.policy != _NAMES:
            differs.setdefault(entry.policy, []).append(entry.path)
    return {policy: tuple(paths) for policy, paths in differs.items()}


_OF_SCHEDULING: Final = ("spec.affinity", "spec.tolerations")
_NAMES: Final = "worker-names"
"""Another endpoint sets names, and they do not change."""


def _mutated(pod: Json, config: Config, cluster: Cluster) -> tuple[Json, Fields]:
    """The pod as the policy would mutate it at creation, and the added fields."""
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
    decision = engine.mutate(Review(request, config, cluster))
    fields: dict[str, tuple[str, ...]] = {}
    for change in decision.changes:
        if change.mode is Mode.ENFORCE and change.patch:
            paths = tuple(path for path, _ in change.reasons.fields())
            fields[change.mutator] = fields.get(change.mutator, ()) + paths
    return decision.object, fields


def _contains(large: Any, small: Any) -> bool:
    """Whether `large` is `small`, perhaps completed with defaults by the API server."""
    if isinstance(small, dict):
        return isinstance(large, dict) and all(_contains(large.get(key), each) for key, each in small.items())
    if isinstance(small, list):  # admission plugins append items, such as the service account's token
        return isinstance(large, list) and all(any(_contains(one, each) for one in large) for each in small)
    return bool(small == large)
