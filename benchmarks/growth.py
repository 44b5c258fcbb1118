"""How the time of a review grows with the containers, variables, templates, overrides and facts there are.

The exponent between the least and the greatest number: 1 is linear. The budget of a review, which leaves
the largest of these undecided, is lifted, and Python's collector is off: a full pass over the heap comes
once in a while, and its time would be added to one measurement by chance.
"""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections.abc import Callable

import orjson

from benchmarks._grown import (
    DEVICES,
    DIMENSIONS,
    KEPT,
    MAX,
    MIN,
    RELATED,
    ROW,
    Grown,
    claiming,
    filled,
    related,
    resource_slice,
    service,
    waiting,
)
from benchmarks._timing import best
from policies.core.resources import Resource
from policies.kube.json import Json
from webhook.admission import bounds
from webhook.admission.engine import decide
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.kube.caches import ClusterCache


def main() -> None:
    gc.disable()
    bounds.STEPS = 10**9  # type: ignore[misc]
    print(f"a decision, {MIN} and {MAX:,} of a thing")
    for what, grown in DIMENSIONS.items():
        least, most = (_seconds(grown(count)) for count in (MIN, MAX))
        steepness = math.log(most / least) / math.log(MAX / MIN)
        print(f"  {what:<28} {least * 1e3:>9.2f} ms {most * 1e3:>9.2f} ms   exponent {steepness:>5.2f}")
    print(f"a decision about a Deployment that waits for others, without and with {RELATED:,} workloads")
    for count in (0, RELATED):
        row = related(count)
        after = _after_a_change(row, "Service", lambda number: service("new", f"new-{number}"))
        print(f"  {count:<28,} {_seconds(row) * 1e3:>9.2f} ms {after * 1e3:>9.2f} ms after a change")
    print(f"a decision about a Deployment with a claim of DRA, without and with {DEVICES:,} devices")
    for count in (0, DEVICES):
        claims = claiming(count)
        after = _after_a_change(claims, "ResourceSlice", lambda number: resource_slice(0, number + 2))
        print(f"  {count:<28,} {_seconds(claims) * 1e3:>9.2f} ms {after * 1e3:>9.2f} ms after a change")
    print(f"bytes that a watch cache keeps of each of {RELATED:,} objects")
    for kind, made in KEPT.items():
        print(f"  {kind:<28} {_kept(kind, made):>9,.0f} each")
    waits = _kept("Deployment", lambda n: waiting(ROW * n + 1))
    idle = _kept("Deployment", lambda n: waiting(ROW * n))
    print(f"  {'a wait for a Service':<28} {waits - idle:>9,.0f} each")


def _kept(kind: str, made: Callable[[int], Json]) -> float:
    """The bytes of one of many objects of a kind."""
    bodies = [orjson.dumps(made(number)) for number in range(RELATED)]
    gc.collect()
    tracemalloc.start()
    cluster = filled((kind, orjson.loads(body)) for body in bodies)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert any(cluster.listing(resource) for resource in Resource if resource is not Resource.NAMESPACES)
    return kept / RELATED


def _after_a_change(grown: Grown, kind: str, changed: Callable[[int], Json]) -> float:
    """CPU seconds of the first decision after a change: it derives values from the changed kind again."""
    assert isinstance(grown.cluster, ClusterCache)
    config = load(grown.policy)
    store = next(store for _, _, store in grown.cluster.sources if store.kind == kind)
    seconds = []
    for number in range(20):
        store.put(changed(number))
        began = time.process_time()
        respond(decide(Review(grown.request, config, grown.cluster)))
        seconds.append(time.process_time() - began)
    return min(seconds)


def _seconds(grown: Grown) -> float:
    config = load(grown.policy)
    return best(lambda: respond(decide(Review(grown.request, config, grown.cluster))), rounds=3, seconds=0.05)


if __name__ == "__main__":
    main()
