"""Worker names through the real API server: refusals, dry runs, other controllers, two webhooks at once."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from policies.worker_names.workers import worker_of
from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import NAMESPACE, REPOSITORY, SERVICE_ACCOUNT, Chassis
from tests.e2e.kuberay import Observer, prepare, ray_cluster, scale, worker
from tests.e2e.pki import Authority
from webhook.cli import manifests
from webhook.kube.api import ApiServer
from webhook.worker_names.cluster import LiveWorkers, Sweep
from webhook.worker_names.leases import earlier_lease_name

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, chassis: Chassis) -> Api:
    prepare(control_plane, "kuberay-1.6")
    return control_plane.api


def leases(api: Api, namespace: str) -> list[JSON]:
    """The Leases of the worker groups in a namespace; they are in the webhook's own."""
    held = api.items("leases", NAMESPACE, "mlchassis.dev/worker-names=record")
    return [item for item in held if _owner_of(item)["namespace"] == namespace]


def lease(api: Api, namespace: str) -> JSON | None:
    found = leases(api, namespace)
    return found[0] if found else None


def _owner_of(held: JSON) -> JSON:
    owner: JSON = json.loads(held["metadata"]["annotations"]["mlchassis.dev/worker-names-owner"])
    return owner


def _is_refusal(event: JSON) -> bool:
    return bool(event["reason"] == "DoubleCreationRefused")


def test_one_pod_too_many_is_a_409_that_names_the_existing_ones(api: Api, namespace: str) -> None:
    cluster = api.create(ray_cluster("demo", namespace, 2)).body
    names = [api.create(worker(cluster)).body["metadata"]["name"] for _ in range(2)]
    assert [name.rpartition("-")[2] for name in names] == ["0", "1"]

    with pytest.raises(ApiError) as refused:
        api.create(worker(cluster))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert all(name in refused.value.message for name in names)

    events = api.wait_for("events", lambda items: any(map(_is_refusal, items)), namespace=namespace)
    [event] = filter(_is_refusal, events)
    assert event["involvedObject"]["uid"] == cluster["metadata"]["uid"]

    # Its number is not given again, though the promise of the last one may still be in the Lease.
    api.delete("pods", names[1], namespace, grace=0)
    assert api.create(worker(cluster)).body["metadata"]["name"].endswith("-2")


def test_workers_are_created_while_no_replica_answers_and_count_afterwards(
    api: Api, chassis: Chassis, namespace: str
) -> None:
    cluster = api.create(ray_cluster("demo", namespace, 2)).body
    chassis.stop()
    try:
        name = api.create(worker(cluster)).body["metadata"]["name"]
    finally:
        chassis.start()
    assert name.startswith(worker(cluster)["metadata"]["generateName"]), "a name by the API server"
    assert lease(api, namespace) is None
    assert api.create(worker(cluster)).body["metadata"]["name"].endswith("-0")
    with pytest.raises(ApiError) as refused:
        api.create(worker(cluster))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert name in refused.value.message


def test_a_suspended_cluster_and_an_owner_that_is_gone_get_nothing(api: Api, namespace: str) -> None:
    cluster = api.create(ray_cluster("demo", namespace, 2)).body
    api.patch("rayclusters.ray.io", "demo", {"spec": {"suspend": True}}, namespace)
    with pytest.raises(ApiError, match="it is suspended"):
        api.create(worker(cluster))
    api.delete("rayclusters.ray.io", "demo", namespace)
    api.wait_for("rayclusters.ray.io", lambda items: not items, namespace=namespace)
    with pytest.raises(ApiError, match="is gone, or another one has its name now") as refused:
        api.create(worker(cluster))
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    api.create(ray_cluster("demo", namespace, 2))
    with pytest.raises(ApiError, match="is gone, or another one has its name now"):
        api.create(worker(cluster))
    assert lease(api, namespace) is None


def test_a_dry_run_shows_the_name_and_writes_nothing(api: Api, namespace: str) -> None:
    cluster = api.create(ray_cluster("demo", namespace, 2)).body
    first = api.create(worker(cluster), dry_run=True).body["metadata"]["name"]
    assert lease(api, namespace) is None
    given = api.create(worker(cluster)).body["metadata"]["name"]
    assert (len(given), given[-2:]) == (len(first), "-0"), "only the tag is drawn when the Lease is written"

    before = lease(api, namespace)
    shown = [api.create(worker(cluster), dry_run=True).body["metadata"]["name"] for _ in range(3)]
    assert len(set(shown)) == 1
    assert lease(api, namespace) == before
    assert api.create(worker(cluster)).body["metadata"]["name"] == shown[0]
    with pytest.raises(ApiError) as refused:
        api.create(worker(cluster), dry_run=True)
    assert refused.value.reason == "AlreadyExists"


def test_a_second_pass_over_a_named_pod_changes_nothing(
    api: Api, chassis: Chassis, control_plane: ControlPlane, namespace: str
) -> None:
    """A webhook that comes after ours changes the pod, so that the API server asks all of them again."""
    cluster = api.create(ray_cluster("demo", namespace, 2)).body
    asked = chassis.metric("chassis_admission_requests_total", endpoint="name")
    given = chassis.metric("chassis_worker_names_given_total")
    with latecomer(control_plane, namespace):
        pod = api.create(worker(cluster)).body
    assert pod["metadata"]["annotations"]["late"] == "yes"
    assert pod["metadata"]["name"].endswith("-0")
    assert chassis.metric("chassis_admission_requests_total", endpoint="name") == asked + 2
    assert chassis.metric("chassis_worker_names_given_total") == given + 1
    found = lease(api, namespace)
    assert found is not None
    assert json.loads(found["metadata"]["annotations"]["mlchassis.dev/worker-names"])["highest"] == 0


class _Annotate(BaseHTTPRequestHandler):
    """Answers every review with an annotation."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pod = review["request"]["object"]
        annotations = {**pod["metadata"].get("annotations", {}), "late": "yes"}
        patch = [{"op": "add", "path": "/metadata/annotations", "value": annotations}]
        review["response"] = {
            "uid": review.pop("request")["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": b64encode(json.dumps(patch).encode()).decode(),
        }
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The test prints nothing."""


@contextmanager
def latecomer(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    """A webhook that is called after ours and annotates the pods of one namespace."""
    authority = Authority("latecomer")
    pair = authority.server("latecomer", [HOST])
    file = control_plane.state / "latecomer.pem"
    file.write_bytes(pair.certificate + pair.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    server = ThreadingHTTPServer((HOST, 0), _Annotate)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="latecomer")
    thread.start()
    url = f"https://{HOST}:{server.server_address[1]}"
    bundle = b64encode(authority.certificate).decode()
    entry = {
        "name": "late.example.com",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": bundle},
        "sideEffects": "None",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        ],
    }
    configuration = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    control_plane.api.create({**configuration, "metadata": {"name": "zz-late"}, "webhooks": [entry]})
    try:
        _until_called(control_plane.api, namespace)
        yield
    finally:
        control_plane.api.delete("mutatingwebhookconfigurations", "zz-late")
        server.shutdown()
        thread.join()
        server.server_close()


def _until_called(api: Api, namespace: str) -> None:
    """The API server takes a moment to act on a new configuration."""
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": namespace}}
    probe["spec"] = {"containers": [{"name": "main", "image": "probe:1"}]}
    ends = time.monotonic() + 60
    while "late" not in api.create(probe, dry_run=True).body["metadata"].get("annotations", {}):
        assert time.monotonic() < ends, "the API server does not call the new webhook"


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
    cluster = api.create(ray_cluster("demo", namespace, 3)).body
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
    leader = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    api.create({**leader, "metadata": {"name": "leader", "namespace": namespace}, "spec": {}})
    election = api.get("leases", "leader", namespace)
    for forbidden in (
        lambda: account.get("leases", "leader", namespace),
        lambda: account.create({**leader, "metadata": {"name": "mine", "namespace": namespace}}),
        lambda: account.replace(election),
        lambda: account.delete("leases", "leader", namespace),
    ):
        with pytest.raises(ApiError) as refused:
            forbidden()
        assert refused.value.status == 403
    assert account.items("leases", NAMESPACE) is not None


def test_numbers_and_promises_of_an_earlier_release_are_taken_over_and_its_leases_deleted(
    api: Api, chassis: Chassis, control_plane: ControlPlane, namespace: str
) -> None:
    cluster = api.create(ray_cluster("demo", namespace, 2)).body
    member = worker_of(worker(cluster), namespace)
    assert member is not None
    promise = {"names": ["demo-small-worker-abcde-6"], "at": time.time(), "from": ""}
    record = {"highest": 6, "reservations": [promise]}
    metadata: JSON = {
        "name": earlier_lease_name(member),
        "namespace": namespace,
        "labels": {"mlchassis.dev/worker-names": "ledger"},
        "annotations": {"mlchassis.dev/worker-names": json.dumps(record)},
    }
    earlier = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    stored = api.create(earlier).body
    assert api.create(worker(cluster)).body["metadata"]["name"].endswith("-7")
    with pytest.raises(ApiError, match="demo-small-worker-abcde-6") as refused:
        api.create(worker(cluster))
    assert refused.value.reason == "AlreadyExists"
    kept = api.get("leases", metadata["name"], namespace)
    assert kept["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    ours = [lease["metadata"]["name"] for lease in leases(api, namespace)]
    page = (REPOSITORY / "docs" / "worker-names.md").read_text()
    (typed,) = re.findall(r"\$ kubectl (delete leases .*)", page)
    control_plane.kubectl(*shlex.split(typed))
    assert not api.exists("leases", metadata["name"], namespace)
    assert [lease["metadata"]["name"] for lease in leases(api, namespace)] == ours


def test_a_deleted_lease_and_a_new_cluster_of_the_same_name_bring_no_name_back(
    api: Api, namespace: str
) -> None:
    names: list[str] = []
    for _ in range(3):
        cluster = api.create(ray_cluster("demo", namespace, 1)).body
        for _ in range(2):
            names.append(api.create(worker(cluster)).body["metadata"]["name"])
            api.delete("pods", names[-1], namespace, grace=0)
            [held] = [
                item
                for item in leases(api, namespace)
                if _owner_of(item)["uid"] == cluster["metadata"]["uid"]
            ]
            api.delete("leases", held["metadata"]["name"], NAMESPACE)
        api.delete("rayclusters.ray.io", "demo", namespace)
        api.wait_for("rayclusters.ray.io", lambda items: not items, namespace=namespace)
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
        api.create(worker(api.create(ray_cluster(name, namespace, 1)).body))
    for held in leases(api, namespace):
        renewed = {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
        api.patch("leases", held["metadata"]["name"], renewed, NAMESPACE)
    api.delete("rayclusters.ray.io", "gone", namespace)
    api.wait_for("rayclusters.ray.io", lambda items: len(items) == 1, namespace=namespace)
    asyncio.run(_sweep(control_plane))
    assert [_owner_of(held)["name"] for held in leases(api, namespace)] == ["lives"]


def test_a_deployment_with_the_label_gets_its_names_from_its_scale(api: Api, namespace: str) -> None:
    labels = {"app": "crunch", "mlchassis.dev/worker-group": "crunchers"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "crunch:1"}]},
    }
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "crunch"}}, "template": template}
    metadata = {"name": "crunch", "namespace": namespace}
    api.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    def running(count: int) -> list[str]:
        pods = api.wait_for("pods", lambda items: len(items) == count, namespace=namespace, timeout=60)
        return sorted(pod["metadata"]["name"].rpartition("-")[2] for pod in pods)

    assert running(3) == ["0", "1", "2"]
    api.patch("deployments", "crunch", {"spec": {"replicas": 5}}, namespace)
    assert running(5) == ["0", "1", "2", "3", "4"]
    [replica_set] = api.items("replicasets", namespace)
    found = lease(api, namespace)
    assert found is not None
    assert _owner_of(found)["uid"] == replica_set["metadata"]["uid"]


# --- two webhooks ------------------------------------------------------------------------------------------


@contextmanager
def in_turn(ports: Sequence[int]) -> Iterator[int]:
    """The port of a TCP proxy that leads each connection to the next of the ports, as a Service does."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
    accepted = 0
    forwarding: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        task = asyncio.current_task()
        assert task is not None
        ends = forwarding[task] = [writer]
        try:
            back, on = await asyncio.open_connection(HOST, ports[accepted % len(ports)])
            ends.append(on)
            await asyncio.gather(_pipe(reader, on), _pipe(back, writer))
            for end in ends:
                await end.wait_closed()
        except OSError:
            pass  # one side is gone: so is the other
        finally:
            _abort(ends)
            del forwarding[task]

    async def serve() -> None:
        stopped = asyncio.Event()
        server = await asyncio.start_server(forward, HOST, 0)
        started.set_result((asyncio.get_running_loop(), stopped, server.sockets[0].getsockname()[1]))
        await stopped.wait()
        server.close()
        while forwarding:
            for ends in forwarding.values():
                _abort(ends)
            await asyncio.wait(list(forwarding))

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="in-turn")
    thread.start()
    loop, stopped, port = started.result(60)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


def _abort(ends: Iterable[asyncio.StreamWriter]) -> None:
    for end in ends:
        end.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture
def second(control_plane: ControlPlane, chassis: Chassis) -> Iterator[Chassis]:
    """Another replica of the webhook; /name is shared out between the two.

    The webhook has 30 s to answer: if it is late, the API server admits the pod without a name.
    """
    other = Chassis(control_plane)
    other.start()
    with in_turn([chassis.port, other.port]) as port:
        _lead_names_to(control_plane.api, f"https://{HOST}:{port}/name", 30)
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
    clusters = [api.create(ray_cluster(f"load-{n}", namespace, 0)).body for n in range(3)]
    given = [it.metric("chassis_worker_names_given_total") for it in (chassis, second)]
    outcomes = {"created": 0, "refused": 0}
    with Observer(api, namespace) as observer, ThreadPoolExecutor(8) as pool:
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
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    group = (name, "small")
    for surplus in sorted(observer.groups[group].live)[wanted:]:
        api.delete("pods", surplus, namespace, grace=0)
    observer.wait(lambda seen: len(seen[group].live) <= wanted, timeout=30)
    observer.bound({group: wanted})
    scale(api, name, namespace, wanted)


def _storm(api: Api, observer: Observer, clusters: list[JSON], ends: float, seed: float) -> dict[str, int]:
    rng, outcomes = random.Random(seed), {"created": 0, "refused": 0}
    while time.monotonic() < ends:
        cluster = rng.choice(clusters)
        if rng.random() < 0.3:
            live = list(observer.groups[cluster["metadata"]["name"], "small"].live)
            with suppress(ApiError, IndexError):  # somebody else was faster, or there is none
                api.delete("pods", rng.choice(live), cluster["metadata"]["namespace"], grace=0)
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
    observer.wait(lambda seen: len(seen[group].live) == wanted, timeout=30)
