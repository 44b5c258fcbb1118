"""The objects through which requests reach the pods of a template."""

from __future__ import annotations

from policies.core.facts import Facts
from policies.core.services import pools_of, selecting
from policies.core.target import PodTemplate
from policies.kube.json import text
from policies.network.gateways import Backends


def backends_of(template: PodTemplate, facts: Facts) -> Backends:
    """The Services and InferencePools that select the pods of a template."""
    labels = template.typed.metadata.labels
    return Backends(
        frozenset(each.name for each in selecting(labels, facts)),
        frozenset(text(pool, "metadata", "name") for pool in pools_of(labels, facts)),
    )
