"""The puller on a node: a real MLServer in a pod, the sidecar that the webhook injects, models in S3."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.puller.fakes import FaultStore
from tests.realnode import evidence
from tests.realnode.arms import Arm
from tests.realnode.experiments.disruption import evict
from tests.realnode.experiments.models import Shop, deployment, entry, open_shop, s3

pytestmark = pytest.mark.realnode


@pytest.fixture
def store() -> Iterator[FaultStore]:
    """S3 on the node, with models in it."""
    with s3() as running:
        yield running


@pytest.fixture
def shop(node: RealNode, webhook: Webhook, namespace: str, store: FaultStore) -> Shop:
    """Everything there, nothing waited for."""
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    node.api.patch("namespaces", namespace, restricted)
    return open_shop(Arm(node, namespace, webhook=True), store, deployment())


def test_models_follow_their_config_map_through_every_failure(shop: Shop) -> None:
    shop.until("the first model, from nothing", "double", 14)
    first = shop.pod

    shop.configure(entry("double", 20))
    shop.until("another version of a model", "double", 140)
    shop.configure(entry("double", 20), entry("triple", 3))
    shop.until("one more model", "triple", 21)
    shop.configure(entry("triple", 3))
    shop.until("a model removed", "double", None)
    assert shop.predict("triple") == 21, "the others are let alone"

    before = shop.restarts()
    sidecar = next(name for name in before if "puller" in name)
    assert shop.arm.node.signal(signal.SIGKILL, first, "chassis-puller")
    direct = f"{first['status']['podIP']}:8080"  # a pod of which one container is not running is not ready
    lost = 0
    began = time.monotonic()
    while shop.restarts()[sidecar] == before[sidecar]:
        lost += shop.predict("triple", direct) != 21
        assert time.monotonic() - began < 120
    assert lost == 0, "the server serves on while its sidecar is started anew"
    shop.configure(entry("triple", 3), entry("double", 2))
    shop.until("an edit, the sidecar having been killed", "double", 14)

    assert shop.arm.node.signal(signal.SIGKILL, first, "mlserver")
    shop.arm.wait("the server down", lambda: shop.predict("double") is None)
    shop.until("all models, the server having been killed", "double", 14)
    shop.arm.wait("both", lambda: shop.predict("triple") == 21)
    assert shop.pod["metadata"]["uid"] == first["metadata"]["uid"]

    began = time.monotonic()
    assert evict(shop.arm, first["metadata"]["name"]) < 300
    gone = first["metadata"]["uid"]
    shop.arm.wait(
        "another pod", lambda: [it["metadata"]["uid"] != gone for it in shop.arm.pods("shop")] == [True]
    )
    shop.arm.wait("both", lambda: shop.predict("double") == 14 and shop.predict("triple") == 21)
    shop.times["all models from another pod, the first having been evicted"] = time.monotonic() - began
    evidence.keep("puller", dict(shop.times))
