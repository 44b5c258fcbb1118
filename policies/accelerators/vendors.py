"""Accelerator vendors: their resources, node labels and taints. vendors.yaml lists the vendors."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Final

from policies.core import data
from policies.core.settings import Field, LabelKey, LabelValue, Model, Quantity
from policies.kube.json import Json
from policies.kube.quantities import parse_bytes

MIB: Final = 1 << 20
GIB: Final = 1 << 30


class Effect(StrEnum):
    """The effect of a taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class VendorTaint(Model):
    """A taint of nodes."""

    key: LabelKey
    value: LabelValue = ""
    effect: Effect = Effect.NO_SCHEDULE


class NodeLabel(Model):
    """A label by which a vendor's nodes are recognised."""

    key: LabelKey
    values: tuple[LabelValue, ...] = Field((), description="the values that count; empty: any value")
    agent: bool = Field(
        False,
        description="whether an agent on the running node writes it (for example GPU Feature Discovery), "
        "so that no autoscaler knows it before the node runs",
    )

    def on(self, labels: Mapping[str, str]) -> bool:
        """Whether a node has the label."""
        value = labels.get(self.key)
        return value is not None and (not self.values or value in self.values)

    @property
    def required(self) -> Json:
        """The expression for nodes with the label."""
        if self.values:
            return {"key": self.key, "operator": "In", "values": list(self.values)}
        return {"key": self.key, "operator": "Exists"}

    @property
    def absent(self) -> Json:
        """The expression for nodes without the label."""
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
    """A vendor of accelerators."""

    resources: tuple[str, ...] = Field(description="extended resources that pods request; `*` is any text")
    labels: tuple[NodeLabel, ...] = Field(
        (), description="labels of its nodes; labels that an autoscaler knows come first"
    )
    product_labels: tuple[LabelKey, ...] = Field((), description="keys of labels that name the product")
    memory_labels: tuple[MemoryLabel, ...] = Field(
        (), description="labels with the memory of one accelerator"
    )
    count_labels: tuple[LabelKey, ...] = Field(
        (), description="keys of labels with the number of accelerators of a node"
    )
    slices: tuple[str, ...] = Field(
        (), description="substrings of a product's name that mean a slice of an accelerator"
    )
    taints: tuple[VendorTaint, ...] = Field(
        (), description="its usual taints; a taint of a node counts as the vendor's if its key is among these"
    )

    @cached_property
    def own_keys(self) -> frozenset[str]:
        """The label keys of this vendor's accelerators."""
        return frozenset((*(label.key for label in self.labels), *self.variant_keys, *self.count_labels))

    @cached_property
    def memory_keys(self) -> tuple[LabelKey, ...]:
        """The keys of `memory_labels`."""
        return tuple(label.key for label in self.memory_labels)

    @cached_property
    def variant_keys(self) -> tuple[LabelKey, ...]:
        """The label keys that tell its products and their memory apart."""
        return (*self.product_labels, *self.memory_keys)


class Pool(Model):
    """Nodes that an autoscaler creates on demand, so there may be none now."""

    name: str = Field(description="its name in messages")
    labels: Mapping[LabelKey, LabelValue] = Field(
        default_factory=dict, description="labels of its nodes that its autoscaler also knows"
    )
    accelerators: Mapping[str, int] = Field(
        description="accelerators of one node by resource, such as nvidia.com/gpu: 8"
    )
    product: LabelValue | None = Field(
        None, description="the value of the vendor's product label; not needed if `labels` has it"
    )
    memory: Quantity | None = Field(None, description="bytes of memory of one accelerator")
    taints: tuple[VendorTaint, ...] = Field((), description="taints of its nodes")
    max_nodes: int | None = Field(
        None, ge=0, description="the maximum number of nodes; absent: no known limit"
    )


@data.table
def known_vendors() -> Mapping[str, Vendor]:
    return data.load_map(Vendor, __package__, "vendors.yaml")


def memory_of(vendor: Vendor, labels: Mapping[str, str]) -> int | None:
    """Bytes of one accelerator of a node with these labels; None if unknown."""
    amounts = (bytes_of_label(each, labels[each.key]) for each in vendor.memory_labels if each.key in labels)
    return next((amount for amount in amounts if amount is not None), None)


def bytes_of_label(label: MemoryLabel, value: str) -> int | None:
    """Bytes from a label's value; None if it is malformed."""
    try:
        if label.unit is MemoryUnit.MIB:
            return int(value) * MIB
        # AMD's labeller writes 64G for 64 GiB.
        return int(Decimal(parse_bytes(value if value.endswith("i") else f"{value}i")))
    except ValueError:
        return None
