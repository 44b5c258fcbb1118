"""Accelerator vendors as data: the resources that pods ask for, the node labels, the taints.

Every label is named with who writes it, since that decides whether it may be demanded: what an
agent finds out on a running node, an autoscaler can't know of a node that it has yet to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pydantic import Field

from policies.core.settings import LabelKey, LabelValue, Model, Quantity
from policies.kube.json import Json


class Effect(StrEnum):
    """What a taint does to pods that don't tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Model):
    """A taint of nodes."""

    key: LabelKey
    value: LabelValue = ""
    effect: Effect = Effect.NO_SCHEDULE

    @property
    def as_json(self) -> Json:
        """As it stands in a node's `spec.taints`."""
        return {"key": self.key, "value": self.value, "effect": self.effect.value}


class NodeLabel(Model):
    """A label by which a vendor's nodes are told from others."""

    key: LabelKey
    values: tuple[LabelValue, ...] = Field((), description="the values that count; empty: any value")
    agent: bool = Field(
        False,
        description="whether an agent on the running node writes it (GPU Feature Discovery, say), so that "
        "no autoscaler knows it of a node that it has yet to make",
    )

    def on(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels carries it."""
        value = labels.get(self.key)
        return value is not None and (not self.values or value in self.values)

    @property
    def required(self) -> Json:
        """The expression that a node carries it."""
        if self.values:
            return {"key": self.key, "operator": "In", "values": list(self.values)}
        return {"key": self.key, "operator": "Exists"}

    @property
    def absent(self) -> Json:
        """The expression that a node does not carry it."""
        if self.values:
            return {"key": self.key, "operator": "NotIn", "values": list(self.values)}
        return {"key": self.key, "operator": "DoesNotExist"}


class MemoryUnit(StrEnum):
    """How a memory label is written."""

    MIB = "MiB"
    QUANTITY = "quantity"


class MemoryLabel(Model):
    """A label with the memory of one accelerator."""

    key: LabelKey
    unit: MemoryUnit = Field(
        MemoryUnit.MIB, description="MiB: a whole number of MiB; quantity: such as 64G, always powers of two"
    )


class Vendor(Model):
    """One maker of accelerators."""

    resources: tuple[str, ...] = Field(description="extended resources that pods ask for; `*` is any text")
    labels: tuple[NodeLabel, ...] = Field(
        (), description="labels of its nodes, those that an autoscaler knows first"
    )
    product_labels: tuple[LabelKey, ...] = Field((), description="keys of labels that name the product")
    memory_labels: tuple[MemoryLabel, ...] = Field(
        (), description="labels with the memory of one accelerator"
    )
    count_labels: tuple[LabelKey, ...] = Field(
        (), description="keys of labels with the number of accelerators of a node"
    )
    slices: tuple[str, ...] = Field(
        (), description="parts of a product's name that say it is a slice of an accelerator, not a whole one"
    )
    taints: tuple[Taint, ...] = Field(
        (), description="its usual taints; a taint of a node counts as the vendor's if its key is among these"
    )

    @property
    def own_keys(self) -> frozenset[str]:
        """The label keys that speak of this vendor's accelerators."""
        memory = (label.key for label in self.memory_labels)
        labels = (label.key for label in self.labels)
        return frozenset((*labels, *self.product_labels, *memory, *self.count_labels))


class Pool(Model):
    """Nodes that an autoscaler makes when they are asked for, so that there may be none now."""

    name: str = Field(description="what it is called in messages")
    labels: Mapping[LabelKey, LabelValue] = Field(
        default_factory=dict, description="labels of its nodes, as far as its autoscaler knows them too"
    )
    accelerators: Mapping[str, int] = Field(
        description="accelerators of one node by resource, such as nvidia.com/gpu: 8"
    )
    product: LabelValue | None = Field(
        None,
        description="the product as the vendor's label will name it; needless where `labels` does",
    )
    memory: Quantity | None = Field(None, description="bytes of memory of one accelerator")
    taints: tuple[Taint, ...] = Field((), description="taints of its nodes")
    max_nodes: int | None = Field(None, ge=0, description="nodes it can grow to; absent: no limit is known")


NVIDIA: Final = Vendor(
    # The device plugin; `mig-*` under its mixed MIG strategy, `.shared` where time-slicing renames.
    # https://github.com/NVIDIA/k8s-device-plugin
    resources=("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"),
    labels=(
        # https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
        NodeLabel(key="cloud.google.com/gke-accelerator"),
        # https://karpenter.sh/docs/concepts/scheduling/#well-known-labels, and EKS Auto Mode's own prefix
        NodeLabel(key="karpenter.k8s.aws/instance-gpu-manufacturer", values=("nvidia",)),
        NodeLabel(key="eks.amazonaws.com/instance-gpu-manufacturer", values=("nvidia",)),
        # https://learn.microsoft.com/azure/aks/use-labels and node auto-provisioning
        NodeLabel(key="kubernetes.azure.com/accelerator", values=("nvidia",)),
        NodeLabel(key="karpenter.azure.com/sku-gpu-manufacturer", values=("nvidia",)),
        # Cluster Autoscaler on AWS and elsewhere, a convention that people set on node groups
        NodeLabel(key="k8s.amazonaws.com/accelerator"),
        # GPU Feature Discovery: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
        NodeLabel(key="nvidia.com/gpu.present", values=("true",), agent=True),
        NodeLabel(key="nvidia.com/gpu.product", agent=True),
    ),
    product_labels=(
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-name",
        "karpenter.azure.com/sku-gpu-name",
        "k8s.amazonaws.com/accelerator",
        "nvidia.com/gpu.product",
    ),
    memory_labels=(
        MemoryLabel(key="karpenter.k8s.aws/instance-gpu-memory"),
        MemoryLabel(key="eks.amazonaws.com/instance-gpu-memory"),
        MemoryLabel(key="nvidia.com/gpu.memory"),
    ),
    count_labels=("nvidia.com/gpu.count", "karpenter.k8s.aws/instance-gpu-count"),
    slices=("-SHARED", "-MIG-"),
    taints=(Taint(key="nvidia.com/gpu"),),
)

AMD: Final = Vendor(
    resources=("amd.com/gpu",),
    labels=(
        NodeLabel(key="karpenter.k8s.aws/instance-gpu-manufacturer", values=("amd",)),
        NodeLabel(key="karpenter.azure.com/sku-gpu-manufacturer", values=("amd",)),
        # AMD's node labeller and GPU operator: https://instinct.docs.amd.com/projects/gpu-operator
        NodeLabel(key="feature.node.kubernetes.io/amd-gpu", values=("true",), agent=True),
        NodeLabel(key="amd.com/gpu.device-id", agent=True),
        NodeLabel(key="amd.com/gpu.family", agent=True),
    ),
    product_labels=("karpenter.k8s.aws/instance-gpu-name", "amd.com/gpu.product-name"),
    memory_labels=(
        MemoryLabel(key="karpenter.k8s.aws/instance-gpu-memory"),
        # Such as 192G, of a GPU or of its partition: https://github.com/ROCm/k8s-device-plugin
        MemoryLabel(key="amd.com/gpu.vram", unit=MemoryUnit.QUANTITY),
    ),
    taints=(Taint(key="amd.com/gpu"),),
)

GAUDI: Final = Vendor(
    # https://docs.habana.ai/en/latest/Installation_Guide/Additional_Installation/Kubernetes_Installation
    resources=("habana.ai/gaudi",),
    labels=(
        NodeLabel(key="karpenter.k8s.aws/instance-accelerator-manufacturer", values=("habana",)),
        NodeLabel(key="feature.node.kubernetes.io/pci-1da3.present", values=("true",), agent=True),
    ),
    product_labels=("karpenter.k8s.aws/instance-accelerator-name",),
    count_labels=("karpenter.k8s.aws/instance-accelerator-count",),
    taints=(Taint(key="habana.ai/gaudi"),),
)

TPU: Final = Vendor(
    # https://cloud.google.com/kubernetes-engine/docs/concepts/tpus
    resources=("google.com/tpu",),
    labels=(NodeLabel(key="cloud.google.com/gke-tpu-accelerator"),),
    product_labels=("cloud.google.com/gke-tpu-accelerator",),
    count_labels=("cloud.google.com/gke-accelerator-count",),
    taints=(Taint(key="google.com/tpu"),),
)

NEURON: Final = Vendor(
    # https://awsdocs-neuron.readthedocs-hosted.com (Kubernetes device plugin)
    resources=("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"),
    labels=(
        NodeLabel(key="karpenter.k8s.aws/instance-accelerator-manufacturer", values=("aws",)),
        NodeLabel(key="eks.amazonaws.com/instance-accelerator-manufacturer", values=("aws",)),
    ),
    product_labels=(
        "karpenter.k8s.aws/instance-accelerator-name",
        "eks.amazonaws.com/instance-accelerator-name",
    ),
    count_labels=("karpenter.k8s.aws/instance-accelerator-count",),
    taints=(Taint(key="aws.amazon.com/neuron"),),
)

VENDORS: Final[Mapping[str, Vendor]] = MappingProxyType(
    {"nvidia": NVIDIA, "amd": AMD, "gaudi": GAUDI, "tpu": TPU, "neuron": NEURON}
)
"""The vendors that are known without configuration."""
