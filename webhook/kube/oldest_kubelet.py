"""Reports the version of the cluster's oldest kubelet in the log and in a metric.

The mutators use a field only if the kubelets of all nodes support it, since a pod may run on any node: one
old node disables the preStop sleep and native sidecars for all pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from policies.core.facts import Cluster, Facts
from policies.core.resources import Resource

SETTLE_SECONDS: Final = 1.0
"""The delay after a change of nodes, so that a burst of changes is one report."""

log = structlog.get_logger()


class OldestKubelet:
    """Reports the version of the oldest kubelet when it changes."""

    def __init__(self, cluster: Cluster, show: Callable[[int], None]) -> None:
        """`show` is called with the minor version, or 0 if it is unknown."""
        self._cluster, self._show = cluster, show
        self._known: tuple[int, int] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, resource: Resource) -> None:
        """Objects of a resource changed, or whether the resource is known."""
        if resource is Resource.NODES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._report)

    def _report(self) -> None:
        self._timer = None
        facts = Facts(cluster=self._cluster)
        oldest = facts.oldest_kubelet()
        if oldest == self._known:
            return
        self._known = oldest
        self._show(oldest[1] if oldest else 0)
        if oldest is None:
            log.info("oldest kubelet unknown")
        else:
            log.info("oldest kubelet", version=f"{oldest[0]}.{oldest[1]}", node=facts.oldest_node())
