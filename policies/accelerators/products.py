"""The accelerator memory of the products and machines that a pod asks for by its node labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from policies.accelerators.vendors import Vendor, memory_of
from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.objects.metadata import Requirement
from policies.kube.objects.pods import PodSpec
from policies.kube.scheduling import is_within_limits, required_terms

_MACHINE: Final = frozenset({"node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"})
_FAMILY: Final = frozenset({"karpenter.k8s.aws/instance-family", "eks.amazonaws.com/instance-family"})
"""Labels with a machine type, and with its part before the dot."""
_SLICE: Final = re.compile(r"mig-\d+g\.(\d+)gb")
_SIZE: Final = re.compile(r"(?<![a-z0-9])(\d{1,3})gb(?![a-z0-9])")
GB: Final = 10**9
_WORD: Final = re.compile(r"[a-z0-9]+")


class Product(Model):
    """An entry of `products.yaml`."""

    gb: int = Field(ge=1, description="nominal gigabytes of one accelerator, at most")
    words: tuple[str, ...] = Field((), description="words of the values of product labels")
    machines: tuple[str, ...] = Field((), description="globs of machine types that have only this product")
    source: str = Field(pattern=r"^https://", description="the vendor's or the cloud's page")


class Bound(Struct, frozen=True):
    """The most memory that one accelerator of a pod can have."""

    bytes: int
    by: str
    """The label that shows it: `nvidia.com/gpu.product=NVIDIA-L4`."""


@data.table
def _products() -> tuple[Product, ...]:
    return data.load_list(Product, __package__, "products.yaml")


def required_memory(pod: PodSpec, vendor: Vendor) -> Bound | None:
    """The most memory of an accelerator on the nodes that a pod's own selectors admit; None if they do not
    show it."""
    if not is_within_limits(pod):
        return None
    if found := _least(_bounds(pod.node_selector.items(), vendor)):
        return found
    terms = [_of_term(term.match_expressions, vendor) for term in required_terms(pod)]
    known = [each for each in terms if each is not None]
    return max(known, key=lambda each: each.bytes) if known and len(known) == len(terms) else None


def _of_term(expressions: Iterable[Requirement], vendor: Vendor) -> Bound | None:
    """The most memory that the expressions of one term admit, all of which hold."""
    return _least(
        found for each in expressions if each.operator == "In" and (found := _of_values(each, vendor))
    )


def _of_values(expression: Requirement, vendor: Vendor) -> Bound | None:
    found = list(_bounds(((expression.key, value) for value in expression.values), vendor))
    return max(found, key=lambda each: each.bytes) if found and len(found) == len(expression.values) else None


def _least(bounds: Iterable[Bound]) -> Bound | None:
    return min(bounds, key=lambda each: each.bytes, default=None)


def _bounds(labels: Iterable[tuple[str, str]], vendor: Vendor) -> Iterator[Bound]:
    """The bound of each label that shows one."""
    for key, value in labels:
        size = memory_of(vendor, {key: value}) or _memory_by_name(key, value, vendor)
        if size is not None:
            yield Bound(size, f"{key}={value[:60]}")


def _memory_by_name(key: str, value: str, vendor: Vendor) -> int | None:
    """Bytes of one accelerator of the product or machine that a node label names, at most."""
    value = value.lower()
    if key in _MACHINE or key in _FAMILY:
        machine = f"{value}." if key in _FAMILY else value
        return _most(each for each in _products() if any(fnmatchcase(machine, g) for g in each.machines))
    if key not in vendor.product_labels:
        return None
    if size := _SLICE.search(value) or _SIZE.search(value):
        return int(size[1]) * GB
    words = frozenset(_WORD.findall(value))
    return _most(each for each in _products() if not words.isdisjoint(each.words))


def _most(products: Iterable[Product]) -> int | None:
    return max((each.gb * GB for each in products), default=None)
