"""The API server over real HTTP: verbs, pages, watches, reflectors, caBundles, Events."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from policies.core.resources import Resource
from policies.kube.json import Json
from tests.webhook.kube.apiserver import FakeApiServer, running, until
from webhook.kube import api as cluster
from webhook.kube import events, paths, reflector
from webhook.kube.api import ApiServer, NoApiServer
from webhook.kube.caches import ClusterCache
from webhook.kube.calls import ApiError
from webhook.server import ca_bundle as registration
from webhook.server import pki, tls_reload

SERVICES = "/api/v1/namespaces/ml/services"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(reflector, "MAX_PAUSE", 0.05)
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.01)


@asynccontextmanager
async def background(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def named(name: str, **more: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "ml"}, **more}


# --- connecting ----------------------------------------------------------------------------------------


async def test_outside_a_pod_and_without_kubeconfig_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(NoApiServer):
        async with ApiServer.connect():
            pass
    with pytest.raises(NoApiServer):
        async with ApiServer.connect(tmp_path / "nothing"):
            pass


async def test_connecting_makes_no_request(tmp_path: Path) -> None:
    gone = FakeApiServer()
    gone.url = "http://127.0.0.1:1"
    async with ApiServer.connect(gone.kubeconfig(tmp_path)) as api:
        with pytest.raises(ApiError, match="GET /api/v1/nodes/a: "):
            await api.get("/api/v1/nodes/a")


async def test_in_a_pod_the_service_account_is_used_and_its_token_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incluster = importlib.import_module("kubernetes.aio.config.incluster_config")
    bundle = pki.issue(["127.0.0.1"], datetime.now(UTC))
    serving = tls_reload.ServingCertificate()
    serving.install(bundle)
    (tmp_path / "token").write_text("secret-token")
    (tmp_path / "ca.crt").write_bytes(bundle.ca)
    monkeypatch.setattr(incluster, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    async with running(serving.context) as fake:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", fake.url.rpartition(":")[2])
        await fake.put(SERVICES, named("a"))
        async with ApiServer.connect() as api:
            assert await api.get(f"{SERVICES}/a")
            fake.token = "rotated"
            (tmp_path / "token").write_text("rotated")
            with pytest.raises(ApiError, match="401"):
                await api.get(f"{SERVICES}/a")  # a token is read once a minute
            later = datetime.now() + timedelta(minutes=2)
            monkeypatch.setattr(incluster, "datetime", _Clock(later))
            assert await api.get(f"{SERVICES}/a")


async def test_an_exec_plugin_gives_the_token(fake: FakeApiServer, tmp_path: Path) -> None:
    """As `aws eks get-token` and gke-gcloud-auth-plugin do."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": fake.token},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    kubeconfig = fake.kubeconfig(tmp_path)
    config = json.loads(kubeconfig.read_text())
    config["users"][0]["user"] = {
        "exec": {"apiVersion": credential["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
    }
    kubeconfig.write_text(json.dumps(config))
    await fake.put(SERVICES, named("a"))
    async with ApiServer.connect(kubeconfig) as api:
        assert await api.get(f"{SERVICES}/a")


class _Clock:
    """The module `datetime` of somebody for whom it is already later."""

    timedelta = timedelta

    def __init__(self, now: datetime) -> None:
        self.datetime = self
        self._now = now

    def now(self) -> datetime:
        return self._now


# --- verbs ---------------------------------------------------------------------------------------------


async def test_a_missing_object_is_none_a_forbidden_one_an_error(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.put(SERVICES, named("a"))
    found = await api.get(f"{SERVICES}/a")
    assert found is not None
    assert found["metadata"]["name"] == "a"
    assert await api.get(f"{SERVICES}/b") is None
    await fake.forbid(SERVICES)
    with pytest.raises(ApiError, match=r"403 Forbidden: .* cannot get path") as raised:
        await api.get(f"{SERVICES}/a")
    assert raised.value.status == 403


async def test_secrets_are_written_by_compare_and_swap(fake: FakeApiServer, api: ApiServer) -> None:
    secret, collection = named("tls", data={"a": "MQ=="}), paths.collection("v1", "secrets", "ml")
    path = paths.one("v1", "secrets", "tls", "ml")
    assert await api.unless_conflict("POST", collection, secret)
    assert not await api.unless_conflict("POST", collection, secret)
    mine, theirs = await api.get(path), await api.get(path)
    assert mine is not None
    assert theirs is not None
    assert await api.unless_conflict("PUT", path, {**theirs, "data": {"a": "Mg=="}})
    assert not await api.unless_conflict("PUT", path, {**mine, "data": {"a": "Mw=="}})
    assert fake.objects["/api/v1/namespaces/ml/secrets/tls"]["data"] == {"a": "Mg=="}
    await fake.delete("/api/v1/namespaces/ml/secrets/tls")
    assert not await api.unless_conflict("PUT", path, mine)


@pytest.mark.parametrize(("size", "limits"), [(900, [4, 5, 5]), (6_000, [4, 1, 1]), (0, [4, 10])])
async def test_a_page_has_as_many_objects_as_were_in_so_many_bytes_of_the_one_before(
    size: int, limits: list[int], fake: FakeApiServer, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small pages cost the API server far more than few large ones."""
    for name, value in {"LIST_PAGE": 4, "PAGE_BYTES": 5_500, "LARGEST_PAGE": 10}.items():
        monkeypatch.setattr(cluster, name, value)
    for n in range(sum(limits)):
        await fake.put(SERVICES, named(f"s-{n:02}", spec={"a": "x" * size}))
    fake.limits.clear()
    pages = [page async for page in api.pages(SERVICES, {})]
    assert {version for _, version in pages} == {str(fake.version)}
    found = [item for page, _ in pages for item in page]
    assert [item["metadata"]["name"] for item in found] == [f"s-{n:02}" for n in range(sum(limits))]
    assert fake.limits == limits


# --- reflecting ----------------------------------------------------------------------------------------


async def test_a_cache_follows_the_cluster(fake: FakeApiServer, api: ApiServer) -> None:
    configs, label = "/api/v1/namespaces/ml/configmaps", {"mlchassis.dev/model-config": "true"}
    models = {"metadata": {"name": "models", "namespace": "ml", "labels": label}, "data": {"a": "1"}}
    for path, item in ((SERVICES, named("a")), (configs, models), (configs, named("unlabelled"))):
        await fake.put(path, item)
    cache = ClusterCache()

    def names(resource: Resource) -> list[str]:
        return sorted(item["metadata"]["name"] for item in cache.listing(resource, "ml") or ())

    async with background(*(r.run() for r in cache.reflectors(api))):
        await until(lambda: all(cache.synced(resource) for resource in Resource))
        assert (names(Resource.SERVICES), names(Resource.MODEL_CONFIGS)) == (["a"], ["models"])
        await fake.put(SERVICES, named("b"))
        await until(lambda: names(Resource.SERVICES) == ["a", "b"])
        await fake.delete(f"{SERVICES}/a")
        await until(lambda: names(Resource.SERVICES) == ["b"])
        await fake.forbid("/api/v1/services")
        await until(lambda: not cache.synced(Resource.SERVICES))
        assert cache.synced(Resource.NODES)
        await fake.forbid()
        await until(lambda: cache.synced(Resource.SERVICES))


async def test_an_object_that_orjson_refuses_does_not_hide_the_others(
    fake: FakeApiServer, api: ApiServer
) -> None:
    """Anybody who may create ResourceClaimTemplates writes any JSON into their `opaque.parameters`."""
    templates = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaimtemplates"
    hostile: Json = {"spec": {"devices": {"config": "\ud800"}}}
    await fake.put(templates, named("listed", spec=hostile))
    cache = ClusterCache()
    reflector = next(each for each in cache.reflectors(api) if each._path.endswith("claimtemplates"))

    def names() -> list[str]:
        return sorted(
            item["metadata"]["name"] for item in cache.listing(Resource.CLAIM_TEMPLATES, "ml") or ()
        )

    async with background(reflector.run()):
        await until(lambda: names() == ["listed"])
        await fake.put(templates, named("watched", spec=hostile))
        await fake.put(templates, named("other"))
        await until(lambda: names() == ["listed", "other", "watched"])
        assert len(fake.requests) == 2, "one list and one watch"


async def test_a_watch_that_ends_goes_on_where_it_was_without_a_new_list(
    fake: FakeApiServer, api: ApiServer
) -> None:
    cache = ClusterCache()
    services = cache.reflectors(api)[0]
    async with background(services.run()):
        await until(lambda: cache.synced(Resource.SERVICES))
        await until(lambda: len(fake.requests) == 2)
        await fake.end_watches()
        await fake.put(SERVICES, named("a"))
        await until(lambda: cache.listing(Resource.SERVICES, "ml"))
        assert len(fake.requests) == 3, "one list and two watches"


async def test_an_expired_version_is_listed_again(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.put(SERVICES, named("a"))
    cache = ClusterCache()
    async with background(cache.reflectors(api)[0].run()):
        await until(lambda: cache.listing(Resource.SERVICES, "ml"))
        fake.history.clear()
        fake.objects.clear()  # what happened meanwhile is not in the history any more
        with structlog.testing.capture_logs() as lines:
            await fake.expire()
            await until(lambda: not cache.listing(Resource.SERVICES, "ml"))
        assert cache.synced(Resource.SERVICES)
        assert lines == [], "everyday life, not worth a line"


# --- Events --------------------------------------------------------------------------------------------


async def test_a_repeated_warning_is_one_event_and_another_is_another(
    fake: FakeApiServer, api: ApiServer
) -> None:
    regarding = {"kind": "ConfigMap", "metadata": {"name": "p", "namespace": "ml", "uid": "1"}}
    for message in ("bad", "bad", "worse", "x" * 5000):
        await events.warn(api, regarding, "PolicyInvalid", message)
    written = [item for path, item in fake.objects.items() if "/events/" in path]
    assert [event["message"][:5] for event in written] == ["bad", "worse", "xxxxx"]
    assert all(event["type"] == "Warning" for event in written)
    assert all(event["involvedObject"]["name"] == "p" for event in written)
    assert len(written[2]["message"]) == events.MAX_MESSAGE_LENGTH


async def test_an_event_that_cannot_be_written_is_only_logged(fake: FakeApiServer, api: ApiServer) -> None:
    await fake.forbid("/api/v1/namespaces/ml/events")
    await events.warn(api, named("p"), "PolicyInvalid", "bad")
    assert not fake.objects
