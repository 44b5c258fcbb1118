"""Reports the oldest kubelet of the cluster to its operators.

A field that one node's kubelet does not know is left out of all pods, since a pod may run on any node: one
old node disables the preStop sleep and native sidecars for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from policies.core.facts import Cluster, Facts
from policies.core.resources import Resource

SETTLE_SECONDS: Final = 1.0
"""Nodes come and go in bursts; they are looked at once a burst."""

log = structlog.get_logger()


class OldestKubelet:
    """Looks at the nodes when they change, and logs the version of the oldest kubelet when it changes."""

    def __init__(self, cluster: Cluster, show: Callable[[int], None]) -> None:
        """`show` is called with the minor version, 0 while none is known."""
        self._cluster, self._show = cluster, show
        self._known: tuple[int, int] | None = None
        self._due: asyncio.TimerHandle | None = None

    def changed(self, resource: Resource) -> None:
        """Objects of a resource have changed, or whether it is known."""
        if resource is Resource.NODES and self._due is None:
            self._due = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self.look)

    def look(self) -> None:
        """Log a new version."""
        self._due = None
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
