"""device-claim-shared: pods on different nodes that share one ResourceClaim."""

from __future__ import annotations

from typing import Final

from policies.accelerators.placement import kept_apart
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, REPLICA_SET, ROLLOUT, STATEFUL_SET
from policies.kube.objects.nodes import HOSTNAME
from policies.relations.devices import requests_of_claim
from policies.rollouts.rollouts import minimum_replicas

_NODE_CLASSES: Final = frozenset({"gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com", "gpu.intel.com"})
"""The DeviceClasses of the GPU drivers of NVIDIA, AMD and Intel: each device belongs to one node."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if target.kind == DAEMON_SET:
            why = "A DaemonSet runs a pod on each node"
        elif minimum_replicas(target, facts) > 1 and kept_apart(template.typed, HOSTNAME):
            why = f"The {minimum_replicas(target, facts)} pods must be on different nodes"
        else:
            continue
        for index, claim in enumerate(template.typed.spec.resource_claims):
            name = claim.resource_claim_name
            if name:
                yield Finding(
                    f"{template.spec_path}.resourceClaims[{index}].resourceClaimName",
                    f"{why}, but all of them share ResourceClaim {name}. Its devices are allocated once, "
                    "on one node, so pods on other nodes stay Pending.",
                    "Use a resourceClaimTemplateName, so that each pod gets its own claim and devices.",
                    Certainty.CERTAIN if _is_on_one_node(name, facts) else Certainty.LIKELY,
                )


def _is_on_one_node(name: str, facts: Facts) -> bool:
    """Whether all devices of a claim are on one node. Several nodes can reach the devices of a network."""
    requests = requests_of_claim(name, facts)
    classes = {(each.exactly or each).device_class_name for each in requests}
    return bool(classes) and classes <= _NODE_CLASSES


RULE = rule(__name__, check, (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, ROLLOUT), unowned=True)
