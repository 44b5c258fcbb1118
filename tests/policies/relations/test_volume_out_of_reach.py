"""volume-out-of-reach in large clusters: nodes that look the same to a volume are compared once."""

from __future__ import annotations

from policies.accelerators.inventory import Node
from policies.kube.json import Json
from policies.relations.rules.volume_out_of_reach import _unlike


def wanting(**term: list[Json]) -> Json:
    terms = {"nodeSelectorTerms": [term]}
    return {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}}


NODES = [Node(f"n{n}", {"zone": f"z{n % 3}", "hostname": f"n{n}"}, (), {}) for n in range(300)]


def test_one_node_of_each_zone_is_compared() -> None:
    zone = wanting(matchExpressions=[{"key": "zone", "operator": "In", "values": ["z9"]}])
    assert [node.name for node in _unlike(zone, NODES)] == ["n0", "n1", "n2"]


def test_every_node_is_compared_with_a_name() -> None:
    host = wanting(matchExpressions=[{"key": "hostname", "operator": "In", "values": ["n9"]}])
    name = wanting(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n9"]}])
    assert len(list(_unlike(host, NODES))) == len(list(_unlike(name, NODES))) == len(NODES)
