"""device-claim-shared: pods that must be on different nodes and share one ResourceClaim."""

from __future__ import annotations

from typing import Final

from policies.accelerators.placement import kept_apart
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.facts import WholeObjects
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, GroupKind
from policies.kube.json import indexed_maps, maps, text
from policies.kube.metadata import controller
from policies.kube.nodes import HOSTNAME
from policies.rollouts.rollouts import running_replicas


def check(target: Target, facts: Facts) -> Findings:
    if controller(target.obj) is not None:
        return
    for template in target.templates:
        if target.kind == DAEMON_SET:
            why = "A DaemonSet runs a pod on each node"
        elif running_replicas(target.obj, facts) > 1 and kept_apart(template.pod, HOSTNAME):
            why = f"The {running_replicas(target.obj, facts)} pods must be on different nodes"
        else:
            continue
        for index, claim in indexed_maps(template.spec, "resourceClaims"):
            name = text(claim, "resourceClaimName")
            if name:
                yield Finding(
                    f"{template.spec_path}.resourceClaims[{index}].resourceClaimName",
                    f"{why}, and all of them share ResourceClaim {name}. Its devices are allocated once, on "
                    "one node, so the pods of other nodes stay Pending.",
                    "Use a resourceClaimTemplateName, so that each pod gets a claim and devices.",
                    Certainty.SURE if _is_of_one_node(name, facts) else Certainty.LIKELY,
                )


def _is_of_one_node(name: str, facts: Facts) -> bool:
    """Whether a claim asks only for devices that are known to be of one node. Those of a network can be
    reached from several, and the class of a claim is known only where whole objects are."""
    cluster = facts.cluster
    claim = cluster.named(_CLAIM, facts.namespace, name) if isinstance(cluster, WholeObjects) else None
    requests = maps(claim or {}, "spec", "devices", "requests")
    classes = {text(each, "exactly", "deviceClassName") or text(each, "deviceClassName") for each in requests}
    return bool(classes) and classes <= _OF_A_NODE


_CLAIM: Final = GroupKind("resource.k8s.io", "ResourceClaim")
_OF_A_NODE: Final = frozenset({"gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com", "gpu.intel.com"})
"""Device classes of the GPU drivers of NVIDIA, AMD and Intel."""


RULE = rule(__name__, check, (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET))
