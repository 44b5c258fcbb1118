"""How the time of a review grows with the containers, variables, templates, overrides and facts there are.

The exponent between the least and the greatest number: 1 is linear. The budget of a review, which leaves
the largest of these undecided, is lifted, and Python's collector is off: a full pass over the heap comes
once in a while, and its time would be added to one measurement by chance.
"""

from __future__ import annotations

import gc
import math
import time

from benchmarks._grown import DIMENSIONS, LEAST, MOST, RELATED, Grown, related, service
from benchmarks._timing import best
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
        after = _after_a_change(row)
        print(f"  {count:<28,} {_seconds(row) * 1e3:>9.2f} ms {after * 1e3:>9.2f} ms after a change")


def _after_a_change(grown: Grown) -> float:
    """The first decision after a Service came: what is derived from the Services has to follow."""
    assert isinstance(grown.cluster, ClusterCache)
    config = load(grown.policy)
    services = next(store for _, _, store in grown.cluster.sources if store.kind == "Service")
    seconds = []
    for number in range(20):
        services.put(service("new", f"new-{number}"))
        began = time.process_time()
        respond(decide(grown.request, config, grown.cluster))
        seconds.append(time.process_time() - began)
    return min(seconds)


def _seconds(grown: Grown) -> float:
    config = load(grown.policy)
    return best(lambda: respond(decide(grown.request, config, grown.cluster)), rounds=3, seconds=0.05)


if __name__ == "__main__":
    main()
