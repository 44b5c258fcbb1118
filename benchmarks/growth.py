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
    LEAST,
    MOST,
    RELATED,
    Grown,
    claiming,
    filled,
    related,
    resource_slice,
    service,
)
from benchmarks._timing import best
from policies.core.resources import Resource
from policies.kube.json import Json
from webhook.admission import bounds
from webhook.admission.engine import decide
from webhook.admission.messages import respond
from webhook.config.load import load
from webhook.kube.caches import ClusterCache


def main() -> None:
    gc.disable()
    bounds.STEPS = 10**9  # type: ignore[misc]
    print(f"a decision, {LEAST} and {MOST:,} of a thing")
    for what, grown in DIMENSIONS.items():
        least, most = (_seconds(grown(count)) for count in (LEAST, MOST))
        steepness = math.log(most / least) / math.log(MOST / LEAST)
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
    print(
        f"memory of {DEVICES:,} devices in {DEVICES // 8:,} ResourceSlices: {_kept_of_devices() / 1e6:.1f} MB"
    )


def _kept_of_devices() -> int:
    """Bytes that a watch cache keeps."""
    bodies = [orjson.dumps(resource_slice(number)) for number in range(DEVICES // 8)]
    tracemalloc.start()
    cluster = filled(("ResourceSlice", orjson.loads(body)) for body in bodies)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cluster.listing(Resource.DEVICE_SLICES)
    return kept


def _after_a_change(grown: Grown, kind: str, changed: Callable[[int], Json]) -> float:
    """The first decision after an object changed: what is derived from its kind has to follow."""
    assert isinstance(grown.cluster, ClusterCache)
    config = load(grown.policy)
    store = next(store for _, _, store in grown.cluster.sources if store.kind == kind)
    seconds = []
    for number in range(20):
        store.put(changed(number))
        began = time.process_time()
        respond(decide(grown.request, config, grown.cluster))
        seconds.append(time.process_time() - began)
    return min(seconds)


def _seconds(grown: Grown) -> float:
    config = load(grown.policy)
    return best(lambda: respond(decide(grown.request, config, grown.cluster)), rounds=3, seconds=0.05)


if __name__ == "__main__":
    main()
