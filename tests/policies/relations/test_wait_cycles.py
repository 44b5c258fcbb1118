"""The search for workloads that wait for each other."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from policies.relations import wait_cycles
from policies.relations.links import CachedLinks, cached_links
from tests.policies.core.reviews import STANDARD
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

COUNT = 7


def workload(number: int) -> list[Json]:
    """A workload that waits for the Service of the next one, and its own Service."""
    name, labels = f"w{number}", {"app": f"w{number}"}
    command = ["sh", "-c", f"until nc -z w{(number + 1) % COUNT} 80; do sleep 1; done"]
    spec = {
        "initContainers": [{"name": "wait", "image": "busybox", "command": command}],
        "containers": [{"name": "c", "image": "i"}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    metadata = {"name": name, "namespace": "ml"}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        },
    ]


def test_manifests_are_read_once_for_all_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [obj for number in range(COUNT) for obj in workload(number)]
    read: list[str] = []

    def counted(obj: Json) -> CachedLinks | None:
        read.append(obj["metadata"]["name"])
        return cached_links(obj)

    monkeypatch.setattr(wait_cycles, "cached_links", counted)
    cluster = ManifestCluster(objects)
    reported = []
    for obj in objects[::2]:
        decision = decide(Review(Document("test", 0, obj).request(), STANDARD, cluster))
        reported += [
            obj["metadata"]["name"] for each in decision.results if each.rule == "startup-wait-cycle"
        ]
    assert reported == ["w0"], "at the first member by name"
    assert sorted(read) == sorted({*read})
