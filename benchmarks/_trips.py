"""How a review moves through the code: the counts that `make bench ARGS=against_go` shows next to the ratios.

The figures depend on the code and the review only, so that they show the price of a new rule on any machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import cast

import structlog.testing

from benchmarks._reviews import SERVERS, Workloads, cluster
from policies.core.facts import Cluster
from tests.calls import Trip, trip
from webhook.config.load import load
from webhook.config.source import LivePolicy
from webhook.kube.caches import ClusterCache
from webhook.server.endpoints import endpoints, on_error
from webhook.server.journal import Journal
from webhook.server.metrics import Metrics
from webhook.server.reviews import Reviews
from webhook.server.shared_memory import SharedRecords

ENDPOINTS = ("mutate", "validate")


def trips() -> Iterator[tuple[str, str, Trip]]:
    """Image, endpoint and counts of each server of the benchmark, as a new pod that the engine decides."""
    with structlog.testing.capture_logs():
        known = ClusterCache()
        known.fill(cluster())
        reviews = _reviews(known)
        for image, *_ in SERVERS:
            for endpoint in ENDPOINTS:
                yield image, endpoint, asyncio.run(_counted(reviews, endpoint, image))


def rows(ways: Iterable[tuple[str, str, Trip]]) -> str:
    """The counts as rows of a Markdown table."""
    return "\n".join(
        f"| /{endpoint}, {image} | {len(way.calls)} | {sum(way.calls.values()):,} | {way.changes} |"
        for image, endpoint, way in ways
    )


async def _counted(reviews: Reviews, endpoint: str, image: str) -> Trip:
    new = (
        body for body in Workloads(ENDPOINTS.index(endpoint)).pods(64, 0).measured if image.encode() in body
    )
    return trip(lambda: reviews.answer_synchronously(endpoint, next(new), float("inf")))


def _reviews(known: Cluster) -> Reviews:
    policy, metrics = cast(LivePolicy, SimpleNamespace(config=load({}))), Metrics()
    return Reviews(
        endpoints(policy, known),
        on_error(policy),
        metrics,
        Journal(metrics),
        SharedRecords.unshared(),
    )


if __name__ == "__main__":
    found = list(trips())  # once: the pods of a second time would not be new
    for _, _, way in found:
        print(way.table(12), end="\n\n")
    print(rows(found))
