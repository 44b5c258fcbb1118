"""How the time of a review grows with the containers, variables, templates, overrides and facts there are.

The exponent between the least and the greatest number: 1 is linear. The budget of a review, which leaves
the largest of these undecided, is lifted, and Python's collector is off: a full pass over the heap comes
once in a while, and its time would be added to one measurement by chance.
"""

from __future__ import annotations

import gc
import math

from benchmarks._grown import DIMENSIONS, LEAST, MOST, Grown
from benchmarks._timing import best
from webhook.admission import bounds
from webhook.admission.engine import decide
from webhook.admission.messages import respond
from webhook.config.load import load


def main() -> None:
    gc.disable()
    bounds.STEPS = 10**9  # type: ignore[misc]
    print(f"a decision, {LEAST} and {MOST:,} of a thing")
    for what, grown in DIMENSIONS.items():
        least, most = (_seconds(grown(count)) for count in (LEAST, MOST))
        steepness = math.log(most / least) / math.log(MOST / LEAST)
        print(f"  {what:<28} {least * 1e3:>9.2f} ms {most * 1e3:>9.2f} ms   exponent {steepness:>5.2f}")


def _seconds(grown: Grown) -> float:
    config = load(grown.policy)
    return best(lambda: respond(decide(grown.request, config, grown.cluster)), rounds=3, seconds=0.05)


if __name__ == "__main__":
    main()
