"""The memory and compute capability of the products and machines that a pod asks for by its node labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Final

from msgspec import Struct

from policies.accelerators.slices import slice_memory
from policies.accelerators.vendors import Vendor, memory_of
from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.objects.metadata import Requirement
from policies.kube.objects.pods import PodSpec
from policies.kube.scheduling import is_within_limits, required_terms

_MACHINE: Final = frozenset({"node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"})
_FAMILY: Final = frozenset({"karpenter.k8s.aws/instance-family", "eks.amazonaws.com/instance-family"})
"""Labels with a machine type, and with its part before the dot."""
_SIZE: Final = re.compile(r"(?<![a-z0-9])(\d{1,3})gb(?![a-z0-9])")
"""The memory in a product's name: `nvidia-a100-sxm4-40gb`."""
_GB: Final = 10**9
_WORD: Final = re.compile(r"[a-z0-9]+")


class Product(Model):
    """An entry of `products.yaml`."""

    gb: int = Field(ge=1, description="nominal gigabytes of one accelerator, at most")
    compute: float | None = Field(None, description="compute capability, at most; absent: 8.0 or more")
    words: tuple[str, ...] = Field((), description="words of the values of product labels")
    machines: tuple[str, ...] = Field((), description="globs of machine types that have only this product")
    source: str = Field(pattern=r"^https://", description="the vendor's or the cloud's page")


class Bound(Struct, frozen=True):
    """The most memory, or the highest compute capability, that one accelerator of a pod can have."""

    most: float
    by: str
    """The label or the resource that shows it: `nvidia.com/gpu.product=NVIDIA-L4`."""


_products = data.entries(Product, __package__, "products.yaml")


def required_memory(pod: PodSpec, vendor: Vendor) -> Bound | None:
    """The most memory of an accelerator on the nodes that a pod's own selectors admit; None if they do not
    show it."""
    return _required(pod, partial(_of_label, vendor=vendor))


def required_compute(pod: PodSpec, vendor: Vendor) -> Bound | None:
    """The highest compute capability of an accelerator on the nodes that a pod's own selectors admit; None if
    they do not show it, or if it is 8.0 or higher."""
    return _required(pod, partial(_compute_of_label, vendor=vendor))


def _required(pod: PodSpec, of_label: Callable[[str, str], Bound | None]) -> Bound | None:
    if not is_within_limits(pod):
        return None
    if found := _least(starmap(of_label, pod.node_selector.items())):
        return found
    return most_of(_of_term(term.match_expressions, of_label) for term in required_terms(pod))


def most_of(alternatives: Iterable[Bound | None]) -> Bound | None:
    """The most of alternatives; None if it is unknown for one of them, or if there are none."""
    bounds = list(alternatives)
    known = [each for each in bounds if each is not None]
    return max(known, key=attrgetter("most")) if known and len(known) == len(bounds) else None


def _least(bounds: Iterable[Bound | None]) -> Bound | None:
    """The least of several conditions that all hold, some of which may show none."""
    known = (each for each in bounds if each is not None)
    return min(known, key=attrgetter("most"), default=None)


def _of_term(
    expressions: Iterable[Requirement], of_label: Callable[[str, str], Bound | None]
) -> Bound | None:
    return _least(
        most_of(of_label(each.key, value) for value in each.values)
        for each in expressions
        if each.operator == "In"
    )


def _of_label(key: str, value: str, vendor: Vendor) -> Bound | None:
    size = memory_of(vendor, {key: value}) or _memory_by_name(key, value, vendor)
    return None if size is None else Bound(size, f"{key}={value[:60]}")


def _compute_of_label(key: str, value: str, vendor: Vendor) -> Bound | None:
    known = [each.compute for each in _named(key, value, vendor)]
    found = [each for each in known if each is not None]
    return Bound(max(found), f"{key}={value[:60]}") if found and len(found) == len(known) else None


def _memory_by_name(key: str, value: str, vendor: Vendor) -> int | None:
    """Bytes of one accelerator of the product or machine that a node label names, at most."""
    value = value.lower()
    if key in vendor.product_labels:
        if (memory := slice_memory(value)) is not None:
            return memory
        if size := _SIZE.search(value):
            return int(size[1]) * _GB
    return max((each.gb * _GB for each in _named(key, value, vendor)), default=None)


def _named(key: str, value: str, vendor: Vendor) -> Iterator[Product]:
    """The products that a node label may mean, by its product or machine type."""
    value = value.lower()
    if key in _MACHINE or key in _FAMILY:
        machine = f"{value}." if key in _FAMILY else value
        return (each for each in _products() if any(fnmatchcase(machine, g) for g in each.machines))
    words = frozenset(_WORD.findall(value) if key in vendor.product_labels else ())
    return (each for each in _products() if not words.isdisjoint(each.words))
