"""Worker names through the real API server: refusals, dry runs, other controllers, two webhooks at once."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from urllib.parse import urlsplit

import pytest

from policies.worker_names.workers import worker_of
from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import NAMESPACE, REPOSITORY, SERVICE_ACCOUNT, Chassis
from tests.e2e.kuberay import Observer, prepare, ray_cluster, scale, worker
from tests.e2e.other_webhooks import patching
from tests.e2e.tunnels import Tunnels
from tests.e2e.workloads import container, pod, workload
from tests.manifests import manifest
from webhook.cli import manifests
from webhook.kube.api import ApiServer
from webhook.worker_names.cluster import LiveWorkers, Sweep, earlier_lease_name

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def prepared(control_plane: ControlPlane, chassis: Chassis) -> None:
    prepare(control_plane, "kuberay-1.6")


def leases(api: Api) -> list[JSON]:
    """The Leases of the worker groups in the test's namespace; they are in the webhook's own."""
    held = api.items("leases", NAMESPACE, "mlchassis.dev/worker-names=record")
    return [item for item in held if _owner_of(item)["namespace"] == api.namespace]


def lease(api: Api) -> JSON | None:
    found = leases(api)
    return found[0] if found else None


def _owner_of(held: JSON) -> JSON:
    owner: JSON = json.loads(held["metadata"]["annotations"]["mlchassis.dev/worker-names-owner"])
    return owner


def _is_refusal(event: JSON) -> bool:
    return bool(event["reason"] == "DoubleCreationRefused")


def test_one_pod_too_many_is_a_409_that_names_the_existing_ones(api: Api, namespace: str) -> None:
    cluster = api.create(ray_cluster("demo", 2)).body
    names = [api.create(worker(cluster)).body["metadata"]["name"] for _ in range(2)]
    assert [name.rpartition("-")[2] for name in names] == ["0", "1"]

    with pytest.raises(ApiError) as refused:
        api.create(worker(cluster))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert all(name in refused.value.message for name in names)

    events = api.wait_for("events", lambda items: any(map(_is_refusal, items)))
    [event] = filter(_is_refusal, events)
    assert event["involvedObject"]["uid"] == cluster["metadata"]["uid"]

    # Its number is not given again, though the promise of the last one may still be in the Lease.
    api.delete("pods", names[1], grace=0)
    assert api.create(worker(cluster)).body["metadata"]["name"].endswith("-2")


def test_workers_are_created_while_no_replica_answers_and_count_afterwards(
    api: Api, chassis: Chassis, namespace: str
) -> None:
    cluster = api.create(ray_cluster("demo", 2)).body
    chassis.stop()
    try:
        name = api.create(worker(cluster)).body["metadata"]["name"]
    finally:
        chassis.start()
    assert name.startswith(worker(cluster)["metadata"]["generateName"]), "a name by the API server"
    assert lease(api) is None
    assert api.create(worker(cluster)).body["metadata"]["name"].endswith("-0")
    with pytest.raises(ApiError) as refused:
        api.create(worker(cluster))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert name in refused.value.message


def test_a_suspended_cluster_and_an_owner_that_is_gone_get_nothing(api: Api, namespace: str) -> None:
    cluster = api.create(ray_cluster("demo", 2)).body
    api.patch("rayclusters.ray.io", "demo", {"spec": {"suspend": True}})
    with pytest.raises(ApiError, match="it is suspended"):
        api.create(worker(cluster))
    api.delete("rayclusters.ray.io", "demo")
    api.wait_for("rayclusters.ray.io", lambda items: not items)
    with pytest.raises(ApiError, match="is gone, or another one has its name now") as refused:
        api.create(worker(cluster))
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    api.create(ray_cluster("demo", 2))
    with pytest.raises(ApiError, match="is gone, or another one has its name now"):
        api.create(worker(cluster))
    assert lease(api) is None


def test_a_dry_run_shows_the_name_and_writes_nothing(api: Api, namespace: str) -> None:
    cluster = api.create(ray_cluster("demo", 2)).body
    first = api.create(worker(cluster), dry_run=True).body["metadata"]["name"]
    assert lease(api) is None
    given = api.create(worker(cluster)).body["metadata"]["name"]
    assert (len(given), given[-2:]) == (len(first), "-0"), "only the tag is drawn when the Lease is written"

    before = lease(api)
    shown = [api.create(worker(cluster), dry_run=True).body["metadata"]["name"] for _ in range(3)]
    assert len(set(shown)) == 1
    assert lease(api) == before
    assert api.create(worker(cluster)).body["metadata"]["name"] == shown[0]
    with pytest.raises(ApiError) as refused:
        api.create(worker(cluster), dry_run=True)
    assert refused.value.reason == "AlreadyExists"


def test_a_second_pass_over_a_named_pod_changes_nothing(
    api: Api, chassis: Chassis, namespace: str, latecomer: None
) -> None:
    """A webhook that comes after ours changes the pod, so that the API server asks all of them again."""
    cluster = api.create(ray_cluster("demo", 2)).body
    asked = chassis.metric("chassis_admission_requests_total", endpoint="name")
    given = chassis.metric("chassis_worker_names_given_total")
    made = api.create(worker(cluster)).body
    assert _annotations(made)["late"] == "yes"
    assert made["metadata"]["name"].endswith("-0")
    assert chassis.metric("chassis_admission_requests_total", endpoint="name") == asked + 2
    assert chassis.metric("chassis_worker_names_given_total") == given + 1
    found = lease(api)
    assert found is not None
    assert json.loads(found["metadata"]["annotations"]["mlchassis.dev/worker-names"])["highest"] == 0


def annotated(pod: JSON) -> list[JSON]:
    annotations = {**pod["metadata"].get("annotations", {}), "late": "yes"}
    return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]


@pytest.fixture
def latecomer(control_plane: ControlPlane, api: Api, chassis: Chassis, namespace: str) -> Iterator[None]:
    """A webhook that is called after ours and annotates the pods of the namespace."""
    selected = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    with patching(control_plane, annotated, namespaceSelector=selected):
        chassis.process.wait_until(
            lambda: "late" in _annotations(api.create(pod("probe"), dry_run=True).body)
        )
        yield


def _annotations(item: JSON) -> JSON:
    return dict(item["metadata"].get("annotations", {}))


# --- with whose rights -------------------------------------------------------------------------------------


def _asked(control_plane: ControlPlane) -> list[str]:
    """The paths that the webhook's account has asked the API server for so far, as its audit log has them."""
    account = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
    entries = map(json.loads, control_plane.audit_log.read_text().splitlines())
    return [urlsplit(it["requestURI"]).path for it in entries if it["user"]["username"] == account]


@pytest.mark.parametrize("api_version", ["../../api/v1/pods?x=", "ray.io/..", "apps/v1?watch=1"])
def test_an_owner_reference_leads_the_webhook_nowhere(
    api: Api, chassis: Chassis, control_plane: ControlPlane, namespace: str, api_version: str
) -> None:
    cluster = api.create(ray_cluster("demo", 3)).body
    api.create(worker(cluster))
    forged = worker(cluster)
    forged["metadata"]["labels"] = {"mlchassis.dev/worker-group": "w"}
    forged["metadata"]["ownerReferences"][0] |= {"apiVersion": api_version, "kind": "Pod", "name": "x"}
    reviews = chassis.metric("chassis_admission_requests_total", endpoint="name")
    before = _asked(control_plane)
    with suppress(ApiError):  # the API server itself refuses some, once the webhooks have answered
        api.create(forged)
    assert chassis.metric("chassis_admission_requests_total", endpoint="name") == reviews + 1
    api.create(worker(cluster))
    asked = _asked(control_plane)
    assert f"/api/v1/namespaces/{namespace}/pods" in asked[len(before) :], "the sound one after it is seen"
    assert set(asked) == set(before), "the forged one is asked for nothing that a sound one is not"


@pytest.fixture
def only_this_release(chassis: Chassis, control_plane: ControlPlane) -> Iterator[None]:
    """The rights of the previous releases are taken away, and put back afterwards."""

    def apply(*components: str) -> None:
        rendered = manifests.render(components=list(components))
        control_plane.apply(item for item in rendered if item["kind"] == "ClusterRole")

    apply("only-this-release")
    yield
    apply()


def test_the_account_can_change_no_lease_outside_its_own_namespace(
    api: Api, chassis: Chassis, control_plane: ControlPlane, namespace: str, only_this_release: None
) -> None:
    account = control_plane.api_as_service_account(NAMESPACE, SERVICE_ACCOUNT)
    api.create(manifest("Lease", "leader", {}))
    election = api.get("leases", "leader")
    for forbidden in (
        lambda: account.get("leases", "leader", namespace),
        lambda: account.create(manifest("Lease", "mine", namespace=namespace)),
        lambda: account.replace(election),
        lambda: account.delete("leases", "leader", namespace),
    ):
        with pytest.raises(ApiError, match=r"^403"):
            forbidden()
    assert account.items("leases", NAMESPACE) is not None


def test_numbers_and_promises_of_an_earlier_release_are_taken_over_and_its_leases_deleted(
    api: Api, chassis: Chassis, control_plane: ControlPlane, namespace: str
) -> None:
    cluster = api.create(ray_cluster("demo", 2)).body
    member = worker_of(worker(cluster), namespace)
    assert member is not None
    promise = {"names": ["demo-small-worker-abcde-6"], "at": time.time(), "from": ""}
    record = {"highest": 6, "reservations": [promise]}
    earlier = manifest(
        "Lease",
        earlier_lease_name(member),
        labels={"mlchassis.dev/worker-names": "ledger"},
        annotations={"mlchassis.dev/worker-names": json.dumps(record)},
    )
    stored = api.create(earlier).body["metadata"]
    assert api.create(worker(cluster)).body["metadata"]["name"].endswith("-7")
    with pytest.raises(ApiError, match="demo-small-worker-abcde-6") as refused:
        api.create(worker(cluster))
    assert refused.value.reason == "AlreadyExists"
    kept = api.get("leases", stored["name"])
    assert kept["metadata"]["resourceVersion"] == stored["resourceVersion"]
    ours = [lease["metadata"]["name"] for lease in leases(api)]
    page = (REPOSITORY / "docs" / "worker-names.md").read_text()
    (typed,) = re.findall(r"\$ kubectl (delete leases .*)", page)
    control_plane.kubectl(*shlex.split(typed))
    assert not api.exists("leases", stored["name"])
    assert [lease["metadata"]["name"] for lease in leases(api)] == ours


def test_a_deleted_lease_and_a_new_cluster_of_the_same_name_bring_no_name_back(
    api: Api, namespace: str
) -> None:
    names: list[str] = []
    for _ in range(3):
        cluster = api.create(ray_cluster("demo", 1)).body
        for _ in range(2):
            names.append(api.create(worker(cluster)).body["metadata"]["name"])
            api.delete("pods", names[-1], grace=0)
            [held] = [item for item in leases(api) if _owner_of(item)["uid"] == cluster["metadata"]["uid"]]
            api.delete("leases", held["metadata"]["name"], NAMESPACE)
        api.delete("rayclusters.ray.io", "demo")
        api.wait_for("rayclusters.ray.io", lambda items: not items)
    assert len(set(names)) == len(names) == 6


async def _sweep(control_plane: ControlPlane) -> None:
    kubeconfig = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    async with ApiServer.connect(kubeconfig) as server:
        workers = LiveWorkers(server, NAMESPACE)
        await server.get("/version")  # its clock
        await Sweep(workers, pace=0).once()


def test_a_sweep_deletes_the_leases_of_clusters_that_are_gone(
    api: Api, control_plane: ControlPlane, namespace: str
) -> None:
    """As the ServiceAccount of the manifests."""
    for name in ("lives", "gone"):
        api.create(worker(api.create(ray_cluster(name, 1)).body))
    for held in leases(api):
        renewed = {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
        api.patch("leases", held["metadata"]["name"], renewed, NAMESPACE)
    api.delete("rayclusters.ray.io", "gone")
    api.wait_for("rayclusters.ray.io", lambda items: len(items) == 1)
    asyncio.run(_sweep(control_plane))
    assert [_owner_of(held)["name"] for held in leases(api)] == ["lives"]


def test_a_deployment_with_the_label_gets_its_names_from_its_scale(api: Api, namespace: str) -> None:
    crunch = workload("Deployment", "crunch", container("crunch:1"), replicas=3)
    crunch["spec"]["template"]["metadata"]["labels"]["mlchassis.dev/worker-group"] = "crunchers"
    api.create(crunch)

    def running(count: int) -> list[str]:
        pods = api.wait_for("pods", lambda items: len(items) == count)
        return sorted(pod["metadata"]["name"].rpartition("-")[2] for pod in pods)

    assert running(3) == ["0", "1", "2"]
    api.patch("deployments", "crunch", {"spec": {"replicas": 5}})
    assert running(5) == ["0", "1", "2", "3", "4"]
    [replica_set] = api.items("replicasets")
    found = lease(api)
    assert found is not None
    assert _owner_of(found)["uid"] == replica_set["metadata"]["uid"]


# --- two webhooks ------------------------------------------------------------------------------------------


@pytest.fixture
def second(control_plane: ControlPlane, chassis: Chassis) -> Iterator[Chassis]:
    """Another replica of the webhook; /name is shared out between the two.

    The webhook has 30 s to answer: if it is late, the API server admits the pod without a name.
    """
    other = Chassis(control_plane)
    other.start()
    in_turn = cycle([chassis.port, other.port])  # as a Service leads connections
    with Tunnels(lambda: next(in_turn)) as names:
        _lead_names_to(control_plane.api, f"https://{HOST}:{names.port}/name", 30)
        yield other
        _lead_names_to(control_plane.api, f"{chassis.url}/name", 5)
    other.stop()


def _lead_names_to(api: Api, url: str, seconds: int) -> None:
    configuration = api.get("mutatingwebhookconfigurations", "chassis.mlchassis.dev")
    for entry in configuration["webhooks"]:
        if entry["clientConfig"]["url"].endswith("/name"):
            entry["clientConfig"]["url"] = url
            entry["timeoutSeconds"] = seconds
    api.replace(configuration)


def test_two_webhooks_under_random_load_give_no_name_twice_and_none_too_many(
    api: Api, chassis: Chassis, second: Chassis, namespace: str
) -> None:
    """Eight clients create as fast as they can, in bursts and beyond the wanted number, and delete at
    random."""
    rng = random.Random(4)
    clusters = [api.create(ray_cluster(f"load-{n}", 0)).body for n in range(3)]
    given = [it.metric("chassis_worker_names_given_total") for it in (chassis, second)]
    outcomes = {"created": 0, "refused": 0}
    with Observer(api) as observer, ThreadPoolExecutor(8) as pool:
        for wanted in (3, 12, 6):
            for cluster in clusters:
                _want(api, cluster, observer, wanted)
            ends = time.monotonic() + 4
            for burst in [pool.submit(_storm, api, observer, clusters, ends, rng.random()) for _ in range(8)]:
                for outcome, count in burst.result().items():
                    outcomes[outcome] += count
            for cluster in clusters:  # lost pods are there again at once, and only wanted ones
                _fill(api, cluster, observer, wanted)
    assert observer.violations == []
    for cluster in clusters:
        created = observer.groups[cluster["metadata"]["name"], "small"].created
        assert len(set(created)) == len(created), "a name was given twice"
    shares = [
        it.metric("chassis_worker_names_given_total") - before
        for it, before in zip((chassis, second), given, strict=True)
    ]
    lost = sum(it.metric("chassis_worker_names_swaps_lost_total") for it in (chassis, second))
    print(f"{outcomes}, given by each webhook {shares}, swaps lost {lost:g}")
    assert all(share > 0 for share in shares)
    assert lost > 0, "the two never met, so the test shows nothing"
    assert outcomes["refused"] > 0


def _want(api: Api, cluster: JSON, observer: Observer, wanted: int) -> None:
    """Scale a cluster, down with all that is too many, and hold it to that from now on."""
    name = cluster["metadata"]["name"]
    group = (name, "small")
    for surplus in sorted(observer.groups[group].live)[wanted:]:
        api.delete("pods", surplus, grace=0)
    observer.wait(lambda seen: len(seen[group].live) <= wanted)
    observer.bound({group: wanted})
    scale(api, name, wanted)


def _storm(api: Api, observer: Observer, clusters: list[JSON], ends: float, seed: float) -> dict[str, int]:
    rng, outcomes = random.Random(seed), {"created": 0, "refused": 0}
    while time.monotonic() < ends:
        cluster = rng.choice(clusters)
        if rng.random() < 0.3:
            live = list(observer.groups[cluster["metadata"]["name"], "small"].live)
            with suppress(ApiError, IndexError):  # somebody else was faster, or there is none
                api.delete("pods", rng.choice(live), grace=0)
            continue
        try:
            api.create(worker(cluster))
            outcomes["created"] += 1
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            outcomes["refused"] += 1
    return outcomes


def _fill(api: Api, cluster: JSON, observer: Observer, wanted: int) -> None:
    for _ in range(wanted + 1):
        with suppress(ApiError):
            api.create(worker(cluster))
    group = (cluster["metadata"]["name"], "small")
    observer.wait(lambda seen: len(seen[group].live) == wanted)
