"""What the rules about other admission webhooks say, shown on a real API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.e2e.api import JSON, TIMEOUT, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.other_webhooks import patching, registered
from tests.manifests import manifest

pytestmark = pytest.mark.e2e


def created(api: Api) -> ApiError | None:
    """The refusal of a pod in a dry run; None if it is admitted."""
    pod = manifest("Pod", "guard") | {
        "spec": {"containers": [{"name": "a", "image": "registry.example/a:1"}]}
    }
    try:
        api.create(pod, dry_run=True)
    except ApiError as error:
        return error
    return None


def answer(api: Api, is_expected: Callable[[ApiError | None], bool]) -> ApiError | None:
    """The first expected answer: the API server reads new registrations within a second or so."""
    end = time.monotonic() + TIMEOUT
    while not is_expected(found := created(api)):
        assert time.monotonic() < end, found
    return found


def only(namespace: str) -> dict[str, object]:
    selected = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}
    return {"matchExpressions": [selected]}


def test_a_webhook_without_pods_refuses_its_own_new_pods(api: Api, namespace: str) -> None:
    gone = {"service": {"namespace": namespace, "name": "guard"}}
    with registered(api, "ValidatingWebhookConfiguration", gone, namespaceSelector=only(namespace)):
        refusal = answer(api, lambda found: found is not None)
        assert refusal is not None
        assert "failed calling webhook" in refusal.message
    with registered(api, "ValidatingWebhookConfiguration", gone, namespaceSelector=only("another")):
        assert answer(api, lambda found: found is None) is None


def test_timeouts_of_ignored_webhooks_add_up_to_a_refusal(
    control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    ended = threading.Event()

    def hangs(_: JSON) -> list[JSON]:
        ended.wait()
        return []

    fields = {"failurePolicy": "Ignore", "timeoutSeconds": 30, "namespaceSelector": only(namespace)}
    with patching(control_plane, hangs, **fields):
        first = api.get("mutatingwebhookconfigurations", "zz-other")
        second = manifest("MutatingWebhookConfiguration", "zz-second") | {"webhooks": first["webhooks"]}
        api.create(second)
        try:
            refusal = answer(api, lambda found: found is not None)
        finally:
            ended.set()
            api.delete("mutatingwebhookconfigurations", "zz-second")
    assert refusal is not None
    assert "request did not complete within requested timeout" in refusal.message
