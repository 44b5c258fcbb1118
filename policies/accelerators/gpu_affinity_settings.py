"""The settings of `gpu-affinity`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache, cached_property

from policies.accelerators.catalogue import Catalogue
from policies.accelerators.vendors import Pool, Vendor, known_vendors
from policies.core.settings import Field, Settings, default_settings


class Strength(StrEnum):
    """The strength of an affinity."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    OFF = "off"


class GpuAffinity(Settings):
    """Key `gpu-affinity.yaml`."""

    pools: tuple[Pool, ...] = Field(
        (), description="pools of accelerator nodes that an autoscaler creates, possibly from zero"
    )
    fixed_size: bool = Field(
        False,
        description="whether no other nodes will be added: a pod that fits on no present node and on no "
        "pool is then refused instead of warned about",
    )
    vendors: Mapping[str, Vendor] = Field(
        default_factory=dict,
        description="further vendors by name, or other definitions of known ones: nvidia, amd, gaudi, tpu, "
        "neuron",
    )
    affinity: Strength = Field(
        Strength.REQUIRED,
        description="affinity of accelerator pods to their vendor's nodes; `required` becomes `preferred` "
        "if a node with the resource lacks the label",
    )
    weights: Strength = Field(
        Strength.PREFERRED,
        description=(
            "affinity of a model server to nodes whose accelerators have memory for its weights, if they "
            "fit only on some nodes and the pod itself selects no product or memory; `required` applies "
            "only if no autoscaler creates the nodes, otherwise it means `preferred`"
        ),
    )
    cpu_pods: Strength = Field(
        Strength.PREFERRED,
        description="affinity of pods without accelerators to nodes without accelerators; `required` "
        "becomes `preferred` if there are no other nodes",
    )
    weight: int = Field(100, ge=1, le=100, description="weight of the preferences that are added")
    system_namespaces: tuple[str, ...] = Field(
        ("kube-*", "*-system", "gpu-operator", "nvidia-*", "node-feature-discovery"),
        description="namespaces whose pods get no affinity against accelerator nodes; `*` is any text",
    )
    topology: Strength = Field(
        Strength.PREFERRED,
        description="meaning of the annotation mlchassis.dev/topology if it contains neither `required` "
        "nor `preferred`",
    )
    autoscaler_labels: tuple[str, ...] = Field(
        (
            "karpenter.sh/nodepool",
            "eks.amazonaws.com/nodegroup",
            "cloud.google.com/gke-nodepool",
            "kubernetes.azure.com/agentpool",
            "alibabacloud.com/nodepool-id",
            "doks.digitalocean.com/node-pool-id",
            "ibm-cloud.kubernetes.io/worker-pool-id",
            "k8s.scaleway.com/pool",
            "lke.linode.com/pool-id",
            "kops.k8s.io/instancegroup",
            "worker.gardener.cloud/pool",
        ),
        description=(
            "labels of nodes that belong to an autoscaler's pool. For these nodes, the webhook requires no "
            "label that an agent writes on the running node: an autoscaler that doesn't know the label "
            "would create no node"
        ),
    )

    @property
    def knows_all_nodes(self) -> bool:
        """Whether the nodes and pools are all that there can be."""
        return bool(self.pools) or self.fixed_size

    @cached_property
    def catalogue(self) -> Catalogue:
        """The catalogue of these vendors and pools."""
        if not (self.vendors or self.pools or "autoscaler_labels" in self.given):
            return standard()  # one object, so that all share the values derived from nodes
        return Catalogue({**known_vendors(), **self.vendors}, self.pools, self.autoscaler_labels)


@cache
def standard() -> Catalogue:
    """The catalogue of the default settings."""
    return Catalogue(known_vendors(), (), default_settings(GpuAffinity).autoscaler_labels)
