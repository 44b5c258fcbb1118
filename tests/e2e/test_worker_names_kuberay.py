"""Worker names under the real KubeRay operators, with their Pod watch held back for seconds."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import HOST, LEFT_ALONE, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.kuberay import (
    NAMESPACE,
    SERVICE_ACCOUNT,
    Group,
    Observed,
    Observer,
    Operator,
    prepare,
    ray_cluster,
    scale,
)
from tests.e2e.other_webhooks import registered
from tests.e2e.watch_proxy import WatchProxy
from tests.e2e.workloads import pod as a_pod

pytestmark = pytest.mark.e2e

DELAY = 3.0
"""Seconds by which the operator's cache is late."""
OLD, MIDDLE, GATED, NEW = "kuberay-1.0", "kuberay-1.2", "kuberay-1.5", "kuberay-1.6"
INDEXING = "RayMultiHostIndexing=true"
"""The gate behind which KubeRay labels replica indices; open by default since 1.6."""


@pytest.fixture(scope="module")
def token(control_plane: ControlPlane) -> str:
    prepare(control_plane, OLD)
    return control_plane.token(NAMESPACE, SERVICE_ACCOUNT)


@pytest.fixture
def proxy(control_plane: ControlPlane, token: str) -> Iterator[WatchProxy]:
    with WatchProxy(control_plane, DELAY) as running:
        yield running


def double_creations(chassis: Chassis) -> float:
    """How many were refused so far: the pods exist, or their names were given a moment ago."""
    refused = "chassis_worker_names_refused_total"
    return chassis.metric(refused, reason="exists") + chassis.metric(refused, reason="promised")


def workers(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, "small") for name in names]


def heads(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, "headgroup") for name in names]


def each_has(wanted: int, names: Iterable[str]) -> Callable[[Mapping[Group, Observed]], bool]:
    return lambda seen: all(len(seen[group].live) == wanted for group in workers(names))


@pytest.mark.scheduled
@pytest.mark.parametrize("release", [OLD, MIDDLE])
def test_too_many_are_created_and_some_deleted_without_the_webhook(
    api: Api, control_plane: ControlPlane, proxy: WatchProxy, token: str, namespace: str, release: str
) -> None:
    clusters, wanted = [f"bare-{n}" for n in range(3)], 4
    api.patch("namespaces", namespace, {"metadata": {"labels": LEFT_ALONE}})
    prepare(control_plane, release)
    with (
        Observer(api) as observer,
        Operator(control_plane, release, proxy.kubeconfig(token), namespace),
    ):
        for name in clusters:
            api.create(ray_cluster(name, wanted))
        small = workers(clusters)
        observer.wait(lambda seen: all(len(seen[group].deleted) >= 5 for group in small))
    for group in small:
        seen = observer.groups[group]
        print(f"{group[0]}: wanted {wanted}, lived at most {seen.peak}, deleted {len(seen.deleted)}")
        assert seen.peak > wanted


def test_kuberay_1_2_creates_exactly_the_wanted_pods_with_the_webhook(
    api: Api, control_plane: ControlPlane, chassis: Chassis, proxy: WatchProxy, token: str, namespace: str
) -> None:
    """It takes the 409 for an error and tries again, with a backoff that grows."""
    prepare(control_plane, MIDDLE)
    clusters = [f"middle-{n}" for n in range(4)]
    with (
        Observer(api) as observer,
        Operator(control_plane, MIDDLE, proxy.kubeconfig(token), namespace),
    ):
        observer.bound(dict.fromkeys(heads(clusters), 1))
        for name in clusters:
            api.create(ray_cluster(name, 0))
        for wanted in (4, 8):
            observer.bound(dict.fromkeys(workers(clusters), wanted))
            for name in clusters:
                scale(api, name, wanted)
            observer.wait(each_has(wanted, clusters))
    assert observer.violations == []
    for group in workers(clusters) + heads(clusters):
        assert observer.groups[group].deleted == []


def test_kuberay_1_0_creates_exactly_the_wanted_pods_with_the_webhook(
    api: Api, control_plane: ControlPlane, chassis: Chassis, proxy: WatchProxy, token: str, namespace: str
) -> None:
    """20 clusters with a head and 10 workers each: half of them as a person scales, half as Ray does.

    KubeRay 1.0 deletes a surplus at random unless an autoscaler decides for the cluster.
    """
    prepare(control_plane, OLD)
    manual, auto = ([f"{kind}-{n}" for n in range(10)] for kind in ("manual", "auto"))
    clusters = manual + auto
    before = double_creations(chassis)
    with (
        Observer(api) as observer,
        Operator(control_plane, OLD, proxy.kubeconfig(token), namespace),
    ):
        observer.bound(dict.fromkeys(heads(clusters), 1))
        observer.bound(dict.fromkeys(workers(clusters), 4))
        for name in clusters:
            api.create(ray_cluster(name, 4, autoscaling=name in auto))
        observer.wait(lambda seen: all(len(seen[g].live) == 4 for g in workers(clusters)))

        observer.bound(dict.fromkeys(workers(clusters), 10))
        for name in clusters:
            scale(api, name, 10)
        observer.wait(lambda seen: all(len(seen[g].live) == 10 for g in workers(clusters)))

        ordered = {name: tuple(sorted(observer.groups[name, "small"].live)[:5]) for name in auto}
        for name, names in ordered.items():
            scale(api, name, 5, delete=names)
        observer.wait(lambda seen: all(len(seen[g].live) == 5 for g in workers(auto)))
        for name in auto:
            scale(api, name, 10)
        observer.wait(lambda seen: all(len(seen[g].live) == 10 for g in workers(auto)))

    assert observer.violations == []
    for group in workers(manual) + heads(clusters):
        assert observer.groups[group].deleted == []
    for name in auto:
        seen = observer.groups[name, "small"]
        assert sorted(seen.deleted) == sorted(ordered[name])
        assert len(set(seen.created)) == len(seen.created) == 15, "a name was used twice"
    refused = double_creations(chassis) - before
    print(f"refused double creations: {refused:g}")
    assert refused > 0


@pytest.mark.scheduled
def test_the_newest_kuberay_creates_again_what_it_forgot_without_the_webhook(
    api: Api, control_plane: ControlPlane, proxy: WatchProxy, token: str, namespace: str
) -> None:
    api.patch("namespaces", namespace, {"metadata": {"labels": LEFT_ALONE}})
    prepare(control_plane, NEW)
    group = ("bare", "small")
    operator = Operator(control_plane, NEW, proxy.kubeconfig(token), namespace)
    with Observer(api) as observer:
        with operator:
            api.create(ray_cluster("bare", 2))
            observer.wait(lambda seen: len(seen[group].live) == 2)
            proxy.freeze()
            scale(api, "bare", 5)
            observer.wait(lambda seen: len(seen[group].live) == 5)
            operator.kill()
        with operator:
            observer.wait(lambda seen: seen[group].peak > 5)
            proxy.thaw()
            observer.wait(lambda seen: bool(seen[group].deleted))
    seen = observer.groups[group]
    print(f"wanted 5, lived at most {seen.peak}, deleted {len(seen.deleted)}")
    assert seen.peak > 5


def test_the_newest_kuberay_scales_survives_kills_and_keeps_replicas_whole(
    api: Api, control_plane: ControlPlane, chassis: Chassis, proxy: WatchProxy, token: str, namespace: str
) -> None:
    """KubeRay 1.6 labels replica indices; killed between create and observe it forgets what it created."""
    prepare(control_plane, NEW)
    singles, slices = [f"single-{n}" for n in range(4)], [f"slice-{n}" for n in range(4)]
    clusters, hosts = singles + slices, 4
    size = dict.fromkeys(singles, 1) | dict.fromkeys(slices, hosts)

    def want(observer: Observer, replicas: int) -> None:
        observer.bound({(name, "small"): replicas * size[name] for name in clusters})

    def settled(observer: Observer, replicas: int) -> None:
        observer.wait(
            lambda seen: all(len(seen[name, "small"].live) == replicas * size[name] for name in clusters),
            timeout=240,
        )

    operator = Operator(control_plane, NEW, proxy.kubeconfig(token), namespace)
    with Observer(api) as observer:
        observer.bound(dict.fromkeys(heads(clusters), 1))
        want(observer, 2)
        before = chassis.metric("chassis_worker_names_given_total")

        def every_name_given_is_a_pod() -> bool:
            created = sum(len(seen.created) for seen in list(observer.groups.values()))
            return chassis.metric("chassis_worker_names_given_total") - before == created

        with operator:
            for name in clusters:
                api.create(ray_cluster(name, 2, hosts=size[name], autoscaling=True))
            settled(observer, 2)
            proxy.freeze()
            want(observer, 5)
            for name in clusters:
                scale(api, name, 5)
            few = sum(2 * size[name] for name in clusters)
            observer.wait(lambda seen: sum(len(seen[g].live) for g in workers(clusters)) > few)
            operator.pause()  # a create that dies with it would hold its name for another 75 s
            chassis.process.wait_until(every_name_given_is_a_pod)
            operator.kill()
        refused = double_creations(chassis)
        with operator:  # what it created since the freeze it neither sees nor remembers
            chassis.process.wait_until(lambda: double_creations(chassis) > refused)
            proxy.thaw()
            settled(observer, 5)
            # Only a replica that the kill left with some of its hosts is created again.
            removed = {name: len(observer.groups[name, "small"].deleted) for name in clusters}
            assert all(removed[name] == 0 for name in singles)

            # The autoscaler names one pod of a replica; KubeRay removes the replica whole.
            names = {name: sorted(observer.groups[name, "small"].live)[0] for name in clusters}
            for name in clusters:
                scale(api, name, 4, delete=(names[name],))
            settled(observer, 4)
            want(observer, 4)
            for name in clusters:
                scale(api, name, 4)
            want(observer, 6)
            for name in clusters:
                scale(api, name, 6)
            settled(observer, 6)
        assert observer.violations == []
        for name in clusters:
            seen = observer.groups[name, "small"]
            assert names[name] in seen.deleted
            assert len(seen.deleted) == removed[name] + size[name], "a worker was deleted that nobody named"
            assert len(set(seen.created)) == len(seen.created), "a name was used twice"
    print(f"refused double creations: {double_creations(chassis) - refused:g}")


@dataclass(frozen=True)
class Aftermath:
    """What an operator on a frozen list did to the replicas that another one had replaced."""

    statuses: set[int]
    """The API server's answers to the deletions, all by name, that the operator asked for."""
    lost: set[str]
    """Clusters of which a replacement was deleted."""


def delete_from_a_frozen_list(
    api: Api, control_plane: ControlPlane, proxy: WatchProxy, namespace: str, release: str, observer: Observer
) -> Aftermath:
    """A replica fails and is replaced while one operator's list is frozen; then that operator acts.

    The operator is killed with its list frozen at the failure, another one with a true view replaces the
    replica and goes, and the first is started again on the frozen list: it deletes the failed pods by name.
    """
    token = control_plane.token(NAMESPACE, SERVICE_ACCOUNT)
    hosts = {"single": 1, "slice": 4}
    stale = Operator(control_plane, release, proxy.kubeconfig(token), namespace, INDEXING)
    account = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    true = Operator(control_plane, release, account, namespace, INDEXING)

    def want(replicas: int) -> None:
        observer.bound({(name, "small"): replicas * hosts[name] for name in hosts})

    def alive(name: str) -> dict[str, str]:
        selector = f"ray.io/cluster={name},ray.io/node-type=worker"
        pods = [pod["metadata"] for pod in api.items("pods", labels=selector)]
        return {pod["name"]: pod["uid"] for pod in pods if "deletionTimestamp" not in pod}

    def have(replicas: int) -> Callable[[Mapping[Group, Observed]], bool]:
        return lambda seen: all(len(seen[name, "small"].live) >= replicas * hosts[name] for name in hosts)

    def have_lost_one(seen: Mapping[Group, Observed]) -> bool:
        # 1.5 may also delete a new slice of which its list holds only a part so far, and create it again.
        return all(len(seen[name, "small"].deleted) >= hosts[name] for name in hosts)

    want(2)
    with stale:
        for name in hosts:
            api.create(ray_cluster(name, 2, hosts=hosts[name], autoscaling=True))
        observer.wait(have(2))
        stale.pause()
        before = {name: alive(name) for name in hosts}
        for name in hosts:
            failed = {"status": {"phase": "Failed"}}
            api.patch("pods", min(before[name]), failed, subresource="status")
        proxy.freeze()
        stale.kill()
    with true:
        observer.wait(lambda seen: have_lost_one(seen) and have(2)(seen))
        true.kill()
    replaced: dict[str, dict[str, str]] = {}
    ordered: set[str] = set()
    for name in hosts:
        now = alive(name)
        replaced[name] = {pod: uid for pod, uid in now.items() if uid not in before[name].values()}
        ordered |= {pod for pod, uid in before[name].items() if uid not in now.values()}
        assert len(replaced[name]) == hosts[name]
    with stale:
        # A failed single is asked for again and again, a slice all at once with its last host.
        stale.process.wait_until(lambda: {pod for pod, _ in proxy.deletions} >= ordered)
        statuses = {status for _, status in proxy.deletions}
        # Once it sees changes again, 1.5 may delete a new slice once more.
        survivors = {uid for name in hosts for uid in alive(name).values()}
        proxy.thaw()
        observer.wait(have(2))
        want(3)
        for name in hosts:  # what it does with a true list again
            scale(api, name, 3)
        observer.wait(have(3))
    lost = {name for name, pods in replaced.items() if not survivors.issuperset(pods.values())}
    return Aftermath(statuses, lost)


@pytest.mark.parametrize("release", [GATED, NEW])
@pytest.mark.parametrize(
    "webhook", [True, pytest.param(False, marks=pytest.mark.scheduled)], ids=["webhook", "without"]
)
@pytest.mark.usefixtures("chassis")
def test_an_operator_on_a_frozen_list_deletes_no_replacement(
    api: Api, control_plane: ControlPlane, proxy: WatchProxy, namespace: str, webhook: bool, release: str
) -> None:
    """KubeRay deletes by name, without a UID. Names by the webhook are given once, and their pods are gone.

    Random names are never given twice either, but the operator creates too many pods from its list.
    """
    if not webhook:
        api.patch("namespaces", namespace, {"metadata": {"labels": LEFT_ALONE}})
    prepare(control_plane, release)
    with Observer(api) as observer:
        after = delete_from_a_frozen_list(api, control_plane, proxy, namespace, release, observer)
    assert after.lost == set()
    assert after.statuses == {404}
    print({group: seen.peak for group, seen in observer.groups.items()})
    if webhook:
        assert observer.violations == []
        for seen in observer.groups.values():
            assert len(set(seen.created)) == len(seen.created), "a name was used twice"


@contextmanager
def stalled(api: Api, namespace: str) -> Iterator[None]:
    """The namespace's pods got their names and wait for a webhook that never answers."""
    with socket.create_server((HOST, 0)) as silent:
        client = {"url": f"https://{HOST}:{silent.getsockname()[1]}/"}
        selected = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        with registered(
            api, "ValidatingWebhookConfiguration", client, timeoutSeconds=15, namespaceSelector=selected
        ):
            while not _is_refused(api, a_pod("probe")):
                time.sleep(0.05)  # the API server reads the configuration a moment later
            yield


def _is_refused(api: Api, item: JSON) -> bool:
    try:
        api.create(item, dry_run=True)
    except ApiError:
        return True
    return False


def test_a_group_is_one_short_while_the_promise_of_a_create_that_died_is_kept(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    """An operator that is killed in the middle of a create: the worker comes late, and comes once."""
    group = ("short", "small")
    prepare(control_plane, NEW)
    account = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
    operator = Operator(control_plane, NEW, account, namespace)
    with Observer(api) as observer:
        observer.bound({group: 3})
        with operator:
            api.create(ray_cluster("short", 2))
            observer.wait(lambda seen: len(seen[group].live) == 2)
            with stalled(api, namespace):
                given = chassis.metric("chassis_worker_names_given_total")
                scale(api, "short", 3)
                chassis.wait_metric("chassis_worker_names_given_total", given + 1)
                operator.kill()
                began = time.monotonic()
        refused = double_creations(chassis)
        with operator:
            observer.wait(lambda seen: len(seen[group].live) == 3, timeout=300)
            print(f"one short for {time.monotonic() - began:.0f} s")
    assert double_creations(chassis) > refused, "the create went through, or its name was not counted"
    assert observer.violations == []
    assert len(observer.groups[group].created) == 3
