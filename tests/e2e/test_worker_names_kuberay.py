"""Worker names under the real KubeRay operators, with their Pod watch held back for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
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
    worker,
)
from tests.e2e.watch_proxy import WatchProxy

pytestmark = pytest.mark.e2e

DELAY = 3.0
"""Seconds by which the operator's cache is late."""
OLD, MIDDLE, NEW = "kuberay-1.0", "kuberay-1.2", "kuberay-1.6"


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


@pytest.mark.parametrize("release", [OLD, MIDDLE])
def test_too_many_are_created_and_some_deleted_without_the_webhook(
    control_plane: ControlPlane, proxy: WatchProxy, token: str, namespace: str, release: str
) -> None:
    api, clusters, wanted = control_plane.api, [f"bare-{n}" for n in range(3)], 4
    api.patch("namespaces", namespace, {"metadata": {"labels": {"mlchassis.dev/admission": "disabled"}}})
    prepare(control_plane, release)
    with (
        Observer(api, namespace) as observer,
        Operator(control_plane, release, proxy.kubeconfig(token), namespace),
    ):
        for name in clusters:
            api.create(ray_cluster(name, namespace, wanted))
        small = workers(clusters)
        observer.wait(lambda seen: all(len(seen[group].deleted) >= 5 for group in small), timeout=120)
    for group in small:
        seen = observer.groups[group]
        print(f"{group[0]}: wanted {wanted}, lived at most {seen.peak}, deleted {len(seen.deleted)}")
        assert seen.peak > wanted


def test_kuberay_1_2_creates_exactly_what_is_wanted_with_the_webhook(
    control_plane: ControlPlane, chassis: Chassis, proxy: WatchProxy, token: str, namespace: str
) -> None:
    """It takes the 409 for an error and tries again, with a backoff that grows."""
    prepare(control_plane, MIDDLE)
    api, clusters = control_plane.api, [f"middle-{n}" for n in range(4)]
    with (
        Observer(api, namespace) as observer,
        Operator(control_plane, MIDDLE, proxy.kubeconfig(token), namespace),
    ):
        observer.bound(dict.fromkeys(heads(clusters), 1))
        for name in clusters:
            api.create(ray_cluster(name, namespace, 0))
        for wanted in (4, 8):
            observer.bound(dict.fromkeys(workers(clusters), wanted))
            for name in clusters:
                scale(api, name, namespace, wanted)
            observer.wait(each_has(wanted, clusters), timeout=120)
    assert observer.violations == []
    for group in workers(clusters) + heads(clusters):
        assert observer.groups[group].deleted == []


def test_kuberay_1_0_creates_exactly_what_is_wanted_with_the_webhook(
    control_plane: ControlPlane, chassis: Chassis, proxy: WatchProxy, token: str, namespace: str
) -> None:
    """20 clusters with a head and 10 workers each: half of them as a person scales, half as Ray does.

    KubeRay 1.0 deletes a surplus at random unless the cluster says that an autoscaler decides.
    """
    prepare(control_plane, OLD)
    api = control_plane.api
    manual, auto = ([f"{kind}-{n}" for n in range(10)] for kind in ("manual", "auto"))
    clusters = manual + auto
    before = double_creations(chassis)
    with (
        Observer(api, namespace) as observer,
        Operator(control_plane, OLD, proxy.kubeconfig(token), namespace),
    ):
        observer.bound(dict.fromkeys(heads(clusters), 1))
        observer.bound(dict.fromkeys(workers(clusters), 4))
        for name in clusters:
            api.create(ray_cluster(name, namespace, 4, autoscaling=name in auto))
        observer.wait(lambda seen: all(len(seen[g].live) == 4 for g in workers(clusters)), timeout=120)

        observer.bound(dict.fromkeys(workers(clusters), 10))
        for name in clusters:
            scale(api, name, namespace, 10)
        observer.wait(lambda seen: all(len(seen[g].live) == 10 for g in workers(clusters)), timeout=120)

        ordered = {name: tuple(sorted(observer.groups[name, "small"].live)[:5]) for name in auto}
        for name, names in ordered.items():
            scale(api, name, namespace, 5, delete=names)
        observer.wait(lambda seen: all(len(seen[g].live) == 5 for g in workers(auto)), timeout=120)
        for name in auto:
            scale(api, name, namespace, 10)
        observer.wait(lambda seen: all(len(seen[g].live) == 10 for g in workers(auto)), timeout=120)

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


def test_the_newest_kuberay_creates_again_what_it_forgot_without_the_webhook(
    control_plane: ControlPlane, proxy: WatchProxy, token: str, namespace: str
) -> None:
    api = control_plane.api
    api.patch("namespaces", namespace, {"metadata": {"labels": {"mlchassis.dev/admission": "disabled"}}})
    prepare(control_plane, NEW)
    group = ("bare", "small")
    operator = Operator(control_plane, NEW, proxy.kubeconfig(token), namespace)
    with Observer(api, namespace) as observer:
        with operator:
            api.create(ray_cluster("bare", namespace, 2))
            observer.wait(lambda seen: len(seen[group].live) == 2, timeout=60)
            proxy.freeze()
            scale(api, "bare", namespace, 5)
            observer.wait(lambda seen: len(seen[group].live) == 5, timeout=60)
            operator.kill()
        with operator:
            observer.wait(lambda seen: seen[group].peak > 5, timeout=60)
            proxy.thaw()
            observer.wait(lambda seen: bool(seen[group].deleted), timeout=60)
    seen = observer.groups[group]
    print(f"wanted 5, lived at most {seen.peak}, deleted {len(seen.deleted)}")
    assert seen.peak > 5


@pytest.fixture
def strategy(
    request: pytest.FixtureRequest, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> Iterator[str]:
    """The strategy that the test is given as its parameter, in force while it runs."""
    prepare(control_plane, NEW)
    before = chassis.policy()["data"]
    control_plane.apply(chassis.policy_with(worker_names=f"strategy: {request.param}\n"))
    _until_names_end(control_plane.api, namespace, "-7" if request.param == "index" else "-0")
    yield request.param
    control_plane.api.replace(chassis.policy() | {"data": before})
    _until_names_end(control_plane.api, namespace, "-0")


def _until_names_end(api: Api, namespace: str, end: str) -> None:
    """An edit of the policy is live within a second: wait until replica 7 of a cluster gets such a name."""
    cluster = api.create(ray_cluster("probe", namespace, 1)).body
    pod = worker(cluster, **{"ray.io/worker-group-replica-index": "7"})
    ends = time.monotonic() + 15
    while not api.create(pod, dry_run=True).body["metadata"]["name"].endswith(end):
        assert time.monotonic() < ends, "the policy is not in force"
    api.delete("rayclusters.ray.io", "probe", namespace)
    api.wait_for("rayclusters.ray.io", lambda items: not any(map(_is_probe, items)), namespace=namespace)


def _is_probe(cluster: JSON) -> bool:
    return bool(cluster["metadata"]["name"] == "probe")


@pytest.mark.parametrize("strategy", ["auto", "index"], indirect=True)
def test_the_newest_kuberay_scales_survives_kills_and_keeps_replicas_whole(
    control_plane: ControlPlane,
    chassis: Chassis,
    proxy: WatchProxy,
    token: str,
    namespace: str,
    strategy: str,
) -> None:
    """KubeRay 1.6 labels replica indices; killed between create and observe it forgets what it created."""
    api = control_plane.api
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
    with Observer(api, namespace) as observer:
        observer.bound(dict.fromkeys(heads(clusters), 1))
        want(observer, 2)
        before = chassis.metric("chassis_worker_names_given_total")

        def every_name_given_is_a_pod() -> bool:
            created = sum(len(seen.created) for seen in list(observer.groups.values()))
            return chassis.metric("chassis_worker_names_given_total") - before == created

        with operator:
            for name in clusters:
                api.create(ray_cluster(name, namespace, 2, hosts=size[name], autoscaling=True))
            settled(observer, 2)
            proxy.freeze()
            want(observer, 5)
            for name in clusters:
                scale(api, name, namespace, 5)
            few = sum(2 * size[name] for name in clusters)
            observer.wait(lambda seen: sum(len(seen[g].live) for g in workers(clusters)) > few, timeout=60)
            operator.pause()  # a create that dies with it would hold its name for another 75 s
            chassis.process.wait_until(every_name_given_is_a_pod, timeout=60)
            operator.kill()
        refused = double_creations(chassis)
        with operator:  # what it created since the freeze it neither sees nor remembers
            chassis.process.wait_until(lambda: double_creations(chassis) > refused, timeout=60)
            proxy.thaw()
            settled(observer, 5)
            # A replica that the kill left with some of its hosts is made anew, and no other.
            removed = {name: len(observer.groups[name, "small"].deleted) for name in clusters}
            assert all(removed[name] == 0 for name in singles)

            # The autoscaler names one pod of a replica; KubeRay removes the replica whole.
            names = {name: sorted(observer.groups[name, "small"].live)[0] for name in clusters}
            for name in clusters:
                scale(api, name, namespace, 4, delete=(names[name],))
            settled(observer, 4)
            want(observer, 4)
            for name in clusters:
                scale(api, name, namespace, 4)
            want(observer, 6)
            for name in clusters:
                scale(api, name, namespace, 6)
            settled(observer, 6)
        assert observer.violations == []
        for name in clusters:
            seen = observer.groups[name, "small"]
            assert names[name] in seen.deleted
            assert len(seen.deleted) == removed[name] + size[name], "a worker was deleted that nobody named"
            if strategy == "auto":
                assert len(set(seen.created)) == len(seen.created), "a name was used twice"
        if strategy == "index":
            _assert_indexed(api.items("pods", namespace, "ray.io/node-type=worker"))
    print(f"refused double creations: {double_creations(chassis) - refused:g}")


def _assert_indexed(pods: list[JSON]) -> None:
    """Each name ends with the replica's index and, in a multi-host replica, the host's."""
    for pod in pods:
        labels = pod["metadata"]["labels"]
        end = labels["ray.io/worker-group-replica-index"]
        if "ray.io/worker-group-replica-name" in labels:
            end += f"-{labels['ray.io/replica-host-index']}"
        assert pod["metadata"]["name"].endswith(f"-{end}")
