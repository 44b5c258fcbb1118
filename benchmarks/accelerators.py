"""The cost of gpu-affinity and gpu-unschedulable with 5,000 nodes: a pod must not pay for each of them.

The baseline is `orjson.loads` of the pod, in the same run. The nodes are summed up once for each
change of one; every pod until then shares the sum.
"""

from __future__ import annotations

import copy
import itertools

import orjson

from benchmarks._timing import best, table
from benchmarks.engine import POD
from policies.accelerators.gpu_affinity import mutate
from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import Placement, placement
from policies.accelerators.requests import inventory_of
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT
from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json, replaced

NODES = 5_000
PRODUCTS = (("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-H100-80GB-HBM3", 81559), ("Tesla-T4", 15360))
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def nodes(count: int) -> Listing:
    """A fifth of them with eight GPUs, half of these tainted; 40 other labels on each."""
    products = itertools.cycle(PRODUCTS)
    return Listing(_node(n, next(products) if n % 5 == 0 else None) for n in range(count))


def _node(number: int, product: tuple[str, int] | None) -> Json:
    name = f"node-{number}"
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FLAG{n}": "true" for n in range(40)}
    labels |= {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    taints: list[Json] = []
    if product is not None:
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": product[0],
            "nvidia.com/gpu.memory": str(product[1]),
        }
        allocatable["nvidia.com/gpu"] = "8"
        taints = [TAINT] if number % 10 == 0 else []
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": allocatable},
    }


class Nodes:
    """A cluster of which only the nodes are known."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self._listing if resource is Resource.NODES else None


def asking(count: int, annotations: Json | None = None) -> Json:
    """The pod of the engine's benchmark, with that many GPUs."""
    pod = replaced(POD, ("metadata", "annotations"), annotations or {})
    limits = {"nvidia.com/gpu": str(count)} if count else {}
    return replaced(pod, ("spec", "containers", 0, "resources"), {"limits": limits})


def _changed(facts: Facts) -> Facts:
    """The same nodes in a new Listing, one of them another object, as after a change of that node."""
    listing = facts.nodes() or Listing()
    return Facts(facts.namespace, Nodes(Listing([*listing[1:], dict(listing[0])])))


def _computed(pod: Json, facts: Facts) -> Placement | None:
    """The placement without the cache."""
    inventory_of(GpuAffinity(), facts).cache.clear()
    return _cached(pod, facts)


def _cached(pod: Json, facts: Facts) -> Placement | None:
    """The placement in another review."""
    fresh = Facts(facts.namespace, facts.cluster)
    return placement(fresh.view(pod), fresh)


def _fresh() -> GpuAffinity:
    """Settings that have seen no node."""
    return GpuAffinity(autoscaler_labels=("karpenter.sh/nodepool",))


def main() -> None:
    settings = GpuAffinity()
    listing = nodes(NODES)
    facts, few = Facts("ml", Nodes(listing)), Facts("ml", Nodes(nodes(50)))
    gpu, cpu, sixteen = asking(1), asking(0), asking(16)
    wishes = asking(1, {GPU_PRODUCT: "*A100*", GPU_MEMORY: ">=40G"})
    two_terms = copy.deepcopy(gpu)
    two_terms["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [z]}
                        ]
                    }
                    for z in ("zone-0", "zone-1")
                ]
            }
        }
    }
    sent = orjson.dumps(gpu)
    table(
        f"gpu-affinity beside {NODES:,} nodes",
        "orjson.loads of the pod",
        {
            "orjson.loads of the pod": best(lambda: orjson.loads(sent)),
            "a pod with a GPU": best(lambda: mutate(gpu, settings, facts)),
            "a pod with a GPU, 50 nodes": best(lambda: mutate(gpu, settings, few)),
            "with two own terms": best(lambda: mutate(two_terms, settings, facts)),
            "with product and memory annotations": best(lambda: mutate(wishes, settings, facts)),
            "a CPU pod": best(lambda: mutate(cpu, settings, facts)),
            "gpu-unschedulable, such a pod was asked for before": best(lambda: _cached(gpu, facts)),
            "gpu-unschedulable, a new kind of pod": best(lambda: _computed(gpu, facts)),
            "gpu-unschedulable, a new kind that fits nowhere": best(lambda: _computed(sixteen, facts)),
            "the first CPU pod after a node has changed": best(
                lambda: mutate(cpu, settings, _changed(facts))
            ),
            "the first of all": best(lambda: mutate(cpu, _fresh(), _changed(facts))),
        },
    )


if __name__ == "__main__":
    main()
