"""volume-out-of-reach in large clusters: nodes with equal labels are compared once."""

from __future__ import annotations

import pytest

from policies.accelerators.inventory import AcceleratorNode
from policies.kube.objects.placement import Affinity, NodeAffinity, NodeSelector
from policies.kube.objects.pods import PodSpec
from policies.kube.objects.reading import read
from policies.relations.rules.volume_out_of_reach import _different_nodes

NODES = [AcceleratorNode(f"n{n}", {"zone": f"z{n % 3}", "hostname": f"n{n}"}, (), {}) for n in range(300)]


@pytest.mark.parametrize(
    ("terms", "key", "compared"),
    [
        ("matchExpressions", "zone", 3),
        ("matchExpressions", "hostname", 300),
        ("matchFields", "metadata.name", 300),
    ],
)
def test_one_node_of_each_zone_or_name_is_compared(terms: str, key: str, compared: int) -> None:
    term = {terms: [{"key": key, "operator": "In", "values": ["z9"]}]}
    required = read({"nodeSelectorTerms": [term]}, NodeSelector)
    pod = PodSpec(affinity=Affinity(node_affinity=NodeAffinity(required=required)))
    assert list(_different_nodes(pod, NODES)) == NODES[:compared]
