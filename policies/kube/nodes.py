"""The nodes that a pod's own spec selects."""

from __future__ import annotations

from typing import Final

from policies.kube.json import Json, mapping, maps, strings, text

HOSTNAME: Final = "kubernetes.io/hostname"


def pinned_to_one_node(spec: Json) -> bool:
    if text(spec, "nodeName") or text(spec, "nodeSelector", HOSTNAME):
        return True
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = maps(required, "nodeSelectorTerms")
    return len(terms) == 1 and any(
        term.get("operator") == "In" and term.get("key") == key and len(strings(term, "values")) == 1
        for field, key in (("matchExpressions", HOSTNAME), ("matchFields", "metadata.name"))
        for term in maps(terms[0], field)
    )
