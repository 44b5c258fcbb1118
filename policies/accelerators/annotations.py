"""The annotations for products and memory of accelerators, resolved to node selector expressions.

`mlchassis.dev/gpu-product` contains globs of products, `mlchassis.dev/gpu-memory` the memory of one
accelerator. Node selectors have no globs, and vendors write memory in several units, so both are resolved
with the labels of the nodes and declared pools.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final

from msgspec import Struct

from policies.accelerators.inventory import Fleet
from policies.accelerators.node_affinity import Alternative, Expression
from policies.accelerators.slices import matching_products
from policies.accelerators.vendors import MIB, MemoryUnit, bytes_of_label
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT
from policies.kube.names import is_label_value
from policies.kube.quantities import parse_bytes, shown

_OPERATORS: Final = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


class Resolution(Struct, frozen=True):
    """An annotation as node selector expressions."""

    alternatives: tuple[Alternative, ...]
    """Empty if no node has such a label."""
    keys: frozenset[str]
    """The label keys with this meaning: if the user's own terms contain one, no term is added."""
    good: frozenset[tuple[str, str]]
    """Keys and values of the labels that fulfil the annotation."""
    present: tuple[str, ...]
    """The products or sizes of the nodes."""

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels fulfils the annotation."""
        return any((key, labels[key]) in self.good for key in self.keys if key in labels)


# --- products ------------------------------------------------------------------------------------


def requested_products(annotations: Mapping[str, str]) -> list[str]:
    """The globs of a pod's annotation, which commas separate."""
    return [glob.strip() for glob in annotations.get(GPU_PRODUCT, "").split(",") if glob.strip()]


def resolve_product(fleet: Fleet, globs: Sequence[str]) -> Resolution:
    """The products of the fleet that match one of the globs; case is ignored.

    A slice (MIG, time-slicing) matches only if a glob contains its mark or no whole accelerator matches.
    If no product matches, a plain name is still required, and a glob excludes the existing products: the pod
    waits for its product and does not run on another.
    """
    order = fleet.vendor.product_labels
    named = [(key, variant[key]) for variant in fleet.described for key in order if key in variant]
    matching = matching_products((product for _, product in named), globs, fleet.vendor.slices)
    good = frozenset(item for item in named if item[1] in matching)
    alternatives = _chosen(fleet, order, good)
    if not alternatives and named:
        alternatives = _awaited(list(dict.fromkeys(key for key, _ in named)), fleet.described, globs)
    present = tuple(dict.fromkeys(product for _, product in named))
    return Resolution(alternatives, frozenset(order), good, present)


def _chosen(
    fleet: Fleet,
    keys: Sequence[str],
    good: Set[tuple[str, str]],
    expression: Callable[[str, list[str]], Expression] | None = None,
) -> tuple[Alternative, ...]:
    """An alternative for each key until every variant with a good label is selected, then one for each pool
    that promises a good label: by the pool's own labels, which its autoscaler knows."""
    left = [variant for variant in fleet.variants if not good.isdisjoint(variant.items())]
    alternatives = []
    for key in keys:
        here = sorted({variant[key] for variant in left if (key, variant.get(key)) in good})
        if here:
            alternatives.append(Alternative(((expression or _in)(key, here),)))
            left = [variant for variant in left if (key, variant.get(key)) not in good]
    for node in fleet.labelled_pools:
        if good.isdisjoint(node.labels.items()) and not good.isdisjoint(node.described.items()):
            by_label = tuple(_in(key, [value]) for key, value in sorted(node.labels.items()))
            alternatives.append(Alternative(by_label, node.described))
    return tuple(alternatives)


def _awaited(
    keys: Sequence[str], variants: Iterable[Mapping[str, str]], globs: Sequence[str]
) -> tuple[Alternative, ...]:
    if all(is_label_value(glob) for glob in globs):
        return tuple(Alternative((_in(key, sorted(globs)),)) for key in keys)
    return (Alternative(_others(keys[0], variants)),)


def _others(key: str, variants: Iterable[Mapping[str, str]]) -> tuple[Expression, ...]:
    """Nodes with another value of the label than the present ones."""
    present = sorted({variant[key] for variant in variants if key in variant})
    return ({"key": key, "operator": "Exists"}, {"key": key, "operator": "NotIn", "values": present})


def _in(key: str, values: list[str]) -> Expression:
    return {"key": key, "operator": "In", "values": values}


# --- memory --------------------------------------------------------------------------------------


class MemoryBound(Struct, frozen=True):
    """A bound such as `>=40Gi`: an operator and bytes."""

    operator: str
    amount: int

    def met_by(self, amount: int) -> bool:
        met: bool = _OPERATORS[self.operator](amount, self.amount)
        return met

    def on(self, key: str) -> Expression:
        """The bound as an expression in MiB, with the operators `Gt` and `Lt`."""
        below, above = self.amount // MIB, -(-self.amount // MIB)
        match self.operator:
            case ">=":
                sign, number = "Gt", above - 1
            case ">":
                sign, number = "Gt", below
            case "<=":
                sign, number = "Lt", below + 1
            case _:
                sign, number = "Lt", above
        if number < 0:  # `>=0` is always true, and a label's value has no sign
            return {"key": key, "operator": "Exists"}
        return {"key": key, "operator": sign, "values": [str(number)]}


def requested_memory(annotations: Mapping[str, str]) -> MemoryBound | None:
    """The bound in a pod's annotation, or None. Raises ValueError with a sentence for the user."""
    written = annotations.get(GPU_MEMORY)
    if written is None:
        return None
    bound = written.strip()
    sign = next((each for each in _OPERATORS if bound.startswith(each)), "")
    amount = bound.removeprefix(sign).split()
    if len(amount) != 1:
        raise ValueError(f"{shown(written)} is not a bound: use for example >=40Gi")
    return MemoryBound(sign or ">=", parse_bytes(amount[0]))


def resolve_memory(fleet: Fleet, bound: MemoryBound) -> Resolution:
    """The bound as expressions for the fleet's memory labels."""
    labels = {label.key: label for label in fleet.vendor.memory_labels}
    amounts = {
        (key, variant[key]): bytes_of_label(label, variant[key])
        for key, label in labels.items()
        for variant in fleet.described
        if key in variant
    }
    good = frozenset(item for item, amount in amounts.items() if amount is not None and bound.met_by(amount))

    def expression(key: str, values: list[str]) -> Expression:
        return bound.on(key) if labels[key].unit is MemoryUnit.MIB else _in(key, values)

    alternatives = _chosen(fleet, tuple(labels), good, expression)
    if not alternatives and amounts:
        key = next(key for key in labels if any(key == known for known, _ in amounts))
        plain = labels[key].unit is MemoryUnit.MIB
        alternatives = (Alternative((bound.on(key),) if plain else _others(key, fleet.described)),)
    present = sorted({amount for amount in amounts.values() if amount is not None})
    return Resolution(
        alternatives, frozenset(labels), good, tuple(f"{amount // MIB}Mi" for amount in present)
    )
