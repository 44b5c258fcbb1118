"""InferencePools of the Gateway API's inference extension, in files and scans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.core.facts import Facts
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, integer, mapping, maps

_KINDS: Final = (
    GroupKind("inference.networking.k8s.io", "InferencePool"),
    GroupKind("inference.networking.x-k8s.io", "InferencePool"),
)


def pools_of(labels: Mapping[str, str], facts: Facts) -> Iterator[Json]:
    """The known InferencePools that select pods with labels."""
    if facts.whole is not None:
        for kind in _KINDS:
            yield from (pool for pool in facts.whole.every(kind, facts.namespace) if _selects(pool, labels))


def _selects(pool: Json, labels: Mapping[str, str]) -> bool:
    """Whether an InferencePool selects pods with labels: by `matchLabels` in v1, else by a map of labels."""
    selector = mapping(pool, "spec", "selector")
    wanted = mapping(selector, "matchLabels") or selector
    return bool(wanted) and wanted.items() <= labels.items()


def target_ports(pool: Json) -> tuple[int, ...]:
    """The ports to which it sends: `targetPorts` in v1, before that `targetPortNumber`."""
    old = integer(pool, "spec", "targetPortNumber", default=0)
    numbers = (integer(each, "number", default=0) for each in maps(pool, "spec", "targetPorts"))
    return tuple(filter(None, (old, *numbers)))
