"""How many pods of a workload serve."""

from __future__ import annotations

from policies.core.facts import Facts
from policies.core.target import Target
from policies.probes.serving import serving_containers
from policies.rollouts.rollouts import least_replicas, replicas_of


def running_replicas(target: Target, facts: Facts) -> int:
    """The pods that run at the least; 0 where it is switched off."""
    return least_replicas(target.obj, facts) if replicas_of(target.obj) else 0


def serves(target: Target, facts: Facts) -> bool:
    return any(serving_containers(template.pod, facts) for template in target.templates)
