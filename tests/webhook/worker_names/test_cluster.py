"""Requests to the API server on behalf of a pod, without any part that its author chooses."""

from __future__ import annotations

import pytest

from tests.webhook.worker_names.setting import CLUSTERS, PODS, Setting, labelled, worker
from webhook.admission.answer import Response
from webhook.worker_names import cluster


@pytest.mark.parametrize("label", ["ray.io/group", "mlchassis.dev/worker-group"])
@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("apiVersion", "../../api/v1/pods?x="),
        ("apiVersion", "ray.io/v1/../../../api/v1/pods"),
        ("apiVersion", "ray.io/.."),
        ("apiVersion", "apps/v1?watch=1"),
        ("apiVersion", "ray.io/v1#"),
        ("apiVersion", "ray.io/v1\n"),
        ("apiVersion", "a%2f..%2fb/v1"),
        ("apiVersion", ""),
        ("apiVersion", "/v1"),
        ("name", ".."),
        ("name", "../secrets"),
        ("name", "demo%2f"),
        ("name", "x" * 254),
        ("name", ""),
        ("kind", "../Pod"),
        ("kind", "Pod?"),
        ("kind", "\n"),
        ("kind", ""),
        ("uid", ""),
    ],
)
async def test_an_impossible_owner_is_not_looked_up(
    setting: Setting, label: str, field: str, text: str
) -> None:
    await setting.cluster(1)
    pod = worker()
    if label != "ray.io/group":
        pod["metadata"]["labels"] = {label: "w"}
        pod["metadata"]["ownerReferences"][0] |= {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
    pod["metadata"]["ownerReferences"][0][field] = text
    assert await setting.ask(pod) == Response()
    assert setting.fake.requests == []


async def test_what_discovery_answers_is_held_to_the_grammar_too(setting: Setting) -> None:
    """An aggregated API server is somebody's program."""
    setting.serve("acme.io/v1", "../../v1/pods", "Fleet")
    assert (await setting.refused(labelled("acme.io/v1", "Fleet"))).reason == "Conflict"
    asked = [path for _, path in setting.fake.requests if "/leases/" not in path]
    assert asked == ["/apis/acme.io/v1"]


async def test_kinds_are_not_remembered_without_end(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SCALABLE_KEPT", 8)
    for n in range(50):
        setting.serve(f"g{n}.io/v1", "fleets", "Fleet")
        await setting.ask(labelled(f"g{n}.io/v1", "Fleet"))
        assert len(setting.workers._scalable) == min(n + 1, 8)


async def test_a_refusal_shows_nothing_of_objects_that_the_user_may_not_read(setting: Setting) -> None:
    await setting.cluster(1, uid="somebody-elses-uid")
    other = await setting.refused()
    del setting.fake.objects[f"{CLUSTERS}/demo"]
    assert await setting.refused() == other, "nor whether one exists"
    assert "somebody" not in other.message


async def test_a_list_of_pods_without_items_is_not_an_empty_group(setting: Setting) -> None:
    """A proxy that answers 200 with something else must not let one more in."""
    await setting.cluster(1)
    setting.fake.spoilt[PODS] = {"kind": "PodList", "metadata": {"resourceVersion": "7"}}
    assert (await setting.refused()).reason == "Conflict"
    assert setting.leases() == []
