"""What each hazard does on a real node, with the webhook and without it.

Every experiment is a function of the node that returns its figures. They run at the same time, since most of
them wait; the tests in `test_outage.py` judge the figures, and `evidence.py` writes them down.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from tests.e2e.node.cluster import RealNode
from tests.realnode.experiments.disruption import blocked_drain
from tests.realnode.experiments.jobs import jobs
from tests.realnode.experiments.model_api import Figures
from tests.realnode.experiments.probes import feature_store, outage, slow_start, strict_liveness
from tests.realnode.experiments.rollouts import own_volume, rolling_update
from tests.realnode.experiments.startup import own_service

EXPERIMENTS: dict[str, Callable[[RealNode], Figures]] = {
    "outage": outage,
    "slow_start": slow_start,
    "feature_store": feature_store,
    "strict_liveness": strict_liveness,
    "rolling_update": rolling_update,
    "jobs": jobs,
    "blocked_drain": blocked_drain,
    "own_volume": own_volume,
    "own_service": own_service,
}


class Running:
    """One experiment in a thread of its own."""

    def __init__(self, node: RealNode, run: Callable[[RealNode], Figures]) -> None:
        self._node, self._run = node, run
        self._figures: Figures = {}
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work, name=run.__name__, daemon=True)
        self._thread.start()

    def figures(self) -> Figures:
        """Wait for its end; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._figures

    def _work(self) -> None:
        try:
            self._figures = self._run(self._node)
        except BaseException as error:
            self._error = error
