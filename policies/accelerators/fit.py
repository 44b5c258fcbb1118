"""Whether the weights of a served model fit into the memory of the accelerators that its pod can get.

Law: certain or silent. The number of parameters in a model's name is rounded, so only three quarters of the
weights count. Options that change the loaded weights make the size unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from policies.accelerators.catalogue import Catalogue
from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.inventory import AcceleratorNode
from policies.accelerators.parallelism import knows_weights, per_copy
from policies.accelerators.placement import Placement, placement
from policies.accelerators.products import Bound, most_of, required_compute, required_memory
from policies.accelerators.requests import inventory_of
from policies.accelerators.slices import slice_memory
from policies.accelerators.vendors import memory_of
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube.objects.pods import PodSpec
from policies.kube.pods import Container
from policies.probes.declared_models import size_by_name
from policies.probes.model_sizes import names_several_sizes
from policies.probes.serving import recognised

MIN_SHARE: Final = 0.75
"""The share of the computed weights that counts, since names are rounded: `7B` may be 6.7 billion."""
_REDUCED: Final = re.compile(
    r"quant|awq|gptq|gguf|ggml|exl[23]|hqq|bnb|aqlm|bitnet|mlx|eetq|qat|marlin|compressed|lora|adapter|draft|eagle"
    r"|(?:fp|int|nf|mxfp)[248]|[1-8]-?bit|w[1-8]a|1\.58|sparse|pruned|tiny|random|dummy",
    re.IGNORECASE,
)
"""Words in names of models whose weights do not have 16 bits, or that are a part of a model or a model for
tests."""


class Load(Struct, frozen=True):
    """The weights that a server loads."""

    model: str
    weights: int
    """Bytes by the model's name."""
    accelerators: int
    """The number of accelerators that share the weights."""

    @property
    def least(self) -> float:
        """The least bytes of each accelerator."""
        return self.weights * MIN_SHARE / self.accelerators


class Misfit(Struct, frozen=True):
    """Weights that fit on no node that can take the pod."""

    load: Load
    largest: int
    """Bytes of the largest accelerator that the pod can get."""
    where: str
    """The node that has it, or what the pod asks for: a label or a slice."""

    @property
    def enough(self) -> int:
        """The number of such accelerators that take the weights, doubled until it is enough."""
        count = self.load.accelerators
        while self.load.weights > count * self.largest:
            count *= 2
        return count


def misfit(pod: PodView, container: Container, facts: Facts) -> Misfit | None:
    """The misfit of a container's model; None if it fits or is unknown."""
    load = load_of(pod, container, facts)
    if load is None:
        return None
    found = _memories(pod, facts)
    largest = Bound(found[0][0], found[0][1].name) if found else _asked_for(pod, facts)
    if largest is None or load.least <= largest.most:
        return None
    return Misfit(load, int(largest.most), largest.by)


def fits_some(pod: PodView, facts: Facts) -> tuple[Load, int] | None:
    """The model of a pod that fits on some of the nodes that can take it, and the least memory of these; None
    if it fits on all or none of them, or if a memory is unknown."""
    loads = [load_of(pod, each, facts) for each in pod.main]
    load = max((each for each in loads if each is not None), key=lambda each: each.least, default=None)
    if load is None:
        return None
    found, least = [memory for memory, _ in _memories(pod, facts)], load.least
    enough = [memory for memory in found if memory >= least]
    return (load, min(enough)) if 0 < len(enough) < len(found) else None


def load_of(pod: PodView, container: Container, facts: Facts) -> Load | None:
    """The weights that a container loads; None if its model is not certain."""
    server = recognised(container, facts)
    accelerators = per_copy(server) if server is not None and knows_weights(server) else 0
    if server is None or not accelerators:
        return None
    weights, model = size_by_name(pod.typed, container, server)
    if not weights or _REDUCED.search(" ".join((*server.argv, model))) or names_several_sizes(model):
        return None
    if model not in {word.partition("=")[2] or word for word in server.argv}:
        return None  # named by a volume, a variable or an image, which may contain a part of the model
    return Load(model, weights, accelerators)


def _memories(pod: PodView, facts: Facts) -> list[tuple[int, AcceleratorNode]]:
    """The accelerator memory of each node that can take the pod, largest first; empty if one is unknown."""
    found = placement(pod, facts)
    return [] if found is None else found.cache.once(_sorted_memories, found, facts)


def compute_of(pod: PodView, facts: Facts) -> Bound | None:
    """The highest compute capability of NVIDIA's accelerators that the pod's requests and node labels admit,
    if it is below 8.0."""
    return facts.pod_caches[pod].once(_compute_of, pod, facts)


def _compute_of(pod: PodView, facts: Facts) -> Bound | None:
    catalogue, spec = facts.settings(GpuAffinity).catalogue, pod.typed.spec
    vendors = {catalogue.vendor_of(each) or "" for each in catalogue.requests(spec)}
    vendor = catalogue.vendors.get("nvidia") if vendors == {"nvidia"} else None
    return None if vendor is None else required_compute(spec, vendor)


def _asked_for(pod: PodView, facts: Facts) -> Bound | None:
    """The most memory of an accelerator that the pod's requests and node labels admit, wherever it runs."""
    catalogue, spec = facts.settings(GpuAffinity).catalogue, pod.typed.spec
    return most_of(_bound(resource, spec, catalogue) for resource in catalogue.requests(spec))


def _bound(resource: str, spec: PodSpec, catalogue: Catalogue) -> Bound | None:
    if (memory := slice_memory(resource)) is not None:
        return Bound(memory, resource)
    vendor = catalogue.vendors.get(catalogue.vendor_of(resource) or "")
    return None if vendor is None else required_memory(spec, vendor)


def _sorted_memories(found: Placement, facts: Facts) -> list[tuple[int, AcceleratorNode]]:
    memories = [(_memory(node, found.requests, facts), node) for node in found.nodes]
    known = [(memory, node) for memory, node in memories if memory is not None]
    known.sort(key=lambda each: each[0], reverse=True)
    return known if len(known) == len(memories) else []


def _memory(node: AcceleratorNode, requests: Mapping[str, int], facts: Facts) -> int | None:
    """Bytes of one accelerator of a node, or of the requested slice; None if unknown."""
    slices = [memory for memory in map(slice_memory, requests) if memory is not None]
    if slices:
        return max(slices) if len(slices) == len(requests) else None
    if node.pool is not None and node.pool.memory is not None:
        return int(node.pool.memory)
    fleets = inventory_of(facts.settings(GpuAffinity), facts).fleets.values()
    return next(
        (memory for fleet in fleets if (memory := memory_of(fleet.vendor, node.described)) is not None), None
    )
