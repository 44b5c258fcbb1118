"""Upgrades and rollbacks under a stream of creates: no pod is refused, left unchanged, or named twice.

Each runs as a platform engineer would do it: the shipped objects of both releases, by kubectl and
kustomize, Helm 3 or Helm 4, rolled out by the real controllers over real processes of both releases.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from tests.e2e import kuberay
from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import RELEASE, Helm
from tests.e2e.install import NAMESPACE, REPOSITORY
from tests.e2e.releases import BEFORE_LAST, FIRST_CHART, LAST, Release
from tests.e2e.replicas import ON_OTHERS, Dialled, Replicas
from tests.e2e.workloads import PROBES, pod, probes, workload

pytestmark = pytest.mark.e2e
NOW = "now"
"""The tag of the images of this tree."""
TREES: dict[str, Callable[[], Path]] = {
    NOW: lambda: REPOSITORY,
    str(LAST): lambda: LAST.tree,
    str(BEFORE_LAST): lambda: BEFORE_LAST.tree,
    str(FIRST_CHART): lambda: FIRST_CHART.tree,
}
RAY_OPERATOR = "kuberay-1.6"
SETTLED = 5.0
"""Seconds of the stream before and after each change."""


class Installer(Protocol):
    """A way to install a release, and to go back to the one before."""

    def install(self, tag: str, tree: Path) -> None: ...

    def roll_back(self, tag: str, tree: Path) -> None: ...


class ByKubectl:
    """`kubectl apply` of kustomize's output with the image's tag, client-side or server-side."""

    def __init__(self, cluster: ControlPlane, scratch: Path, *arguments: str) -> None:
        self._cluster, self._scratch, self._arguments = cluster, scratch, arguments

    def install(self, tag: str, tree: Path) -> None:
        directory = self._scratch / tag
        directory.mkdir(exist_ok=True)
        if not (directory / "base").exists():
            shutil.copytree(tree / "manifests" / "base", directory / "base")
        image = {"name": "ghcr.io/ml-chassis/ml-chassis", "newTag": tag}
        kustomization = {"resources": ["base"], "images": [image]}
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        self._cluster.kubectl("apply", "-k", str(directory), *self._arguments)

    roll_back = install


class ByHelm:
    """`helm upgrade` and `helm rollback`."""

    def __init__(self, cluster: ControlPlane, scratch: Path, name: str) -> None:
        self._helm = Helm(name, scratch, cluster.kubeconfig)

    def install(self, tag: str, tree: Path) -> None:
        command = ("upgrade", "--install", RELEASE, str(tree / "charts" / "ml-chassis"))
        self._helm.run(*command, "--namespace", NAMESPACE, "--create-namespace", f"--set=image.tag={tag}")

    def roll_back(self, tag: str, tree: Path) -> None:
        self._helm.run("rollback", RELEASE, "--namespace", NAMESPACE)


INSTALLERS: dict[str, Callable[[ControlPlane, Path], Installer]] = {
    "kubectl": ByKubectl,
    "server-side": lambda cluster, scratch: ByKubectl(cluster, scratch, "--server-side", "--force-conflicts"),
    "helm-3": lambda cluster, scratch: ByHelm(cluster, scratch, "helm-3"),
    "helm-4": lambda cluster, scratch: ByHelm(cluster, scratch, "helm-4"),
}
FEW = [("kubectl", BEFORE_LAST), ("helm-4", LAST)]
ALL = [
    (name, release)
    for name in INSTALLERS
    for release in (LAST, FIRST_CHART if name.startswith("helm") else BEFORE_LAST)
]
MATRIX = ALL if os.environ.get("CHASSIS_UPGRADES") == "all" else FEW
"""`make upgrades` tries all of them."""


def rights(tree: Path) -> set[tuple[str, ...]]:
    """What the roles of a tree allow: the role's kind and name, then group, resource, name and verb."""
    return {
        (item["kind"], item["metadata"]["name"], group, resource, name, verb)
        for file in sorted((tree / "manifests" / "base").glob("rbac*.yaml"))
        for item in yaml.safe_load_all(file.read_text())
        for rule in item.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("before", [LAST, FIRST_CHART, BEFORE_LAST], ids=str)
def test_no_right_of_the_two_previous_releases_is_missing(before: Release) -> None:
    """In the same role: between two roles there is a moment without it."""
    assert rights(before.tree) - rights(REPOSITORY) == set()


class Stream:
    """Creates that go on in threads until the end, and what became of them."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.names: Counter[str] = Counter()

    def __enter__(self) -> Stream:
        cluster = self._ray_cluster()
        for what, pace, step in (
            ("pod", 0.2, self._pod),
            ("deployment", 1.0, self._deployment),
            ("worker", 0.4, lambda api, n: self._worker(api, cluster)),
            ("policy", 1.0, self._policy),
        ):
            api = self._cluster.api_as(f"stream-{what}", ["system:masters"])
            arguments = (api, what, pace, step)
            thread = threading.Thread(target=self._repeat, args=arguments, name=what, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def settle(self) -> None:
        """Let it go on for a while, as far as every kind is concerned."""
        before = self.done.copy()
        time.sleep(SETTLED)
        deadline = time.monotonic() + 60
        while any(self.done[what] <= before[what] for what in ("pod", "deployment", "worker", "policy")):
            assert time.monotonic() < deadline, f"the stream is stuck: {self.done}, {self.wrong[:5]}"
            time.sleep(0.1)

    def _repeat(self, api: Api, what: str, pace: float, step: Callable[[Api, int], None]) -> None:
        for number in itertools.count():
            if self._stopped.wait(pace):
                return
            at = f"{time.strftime('%H:%M:%S')} {what} {number}"
            try:
                step(api, number)
            except ApiError as error:
                self.wrong.append(f"{at}: refused: {error}")
            except AssertionError as error:
                self.wrong.append(f"{at}: {error}")
            self.done[what] += 1

    def _pod(self, api: Api, number: int) -> None:
        made = api.create(pod(f"pod-{number}", **ON_OTHERS), self._namespace).body
        assert probes(made) == set(PROBES), "a pod was not mutated"

    def _deployment(self, api: Api, number: int) -> None:
        item = workload("Deployment", f"deployment-{number}")
        item["spec"]["template"]["spec"] |= ON_OTHERS
        api.create(item, self._namespace)

    def _ray_cluster(self) -> JSON:
        item = kuberay.ray_cluster("stream", 5000)
        item["spec"]["workerGroupSpecs"][0]["maxReplicas"] = 5000
        return self._cluster.api.create(item, self._namespace).body

    def _worker(self, api: Api, cluster: JSON) -> None:
        item = kuberay.worker(cluster)
        item["spec"] |= ON_OTHERS
        name = api.create(item).body["metadata"]["name"]
        self.names[name] += 1
        assert name.startswith("stream-small-worker-"), f"a worker was not named: {name}"

    def _policy(self, api: Api, number: int) -> None:
        key = f"mode: {'warn' if number % 2 else 'audit'}\n"
        api.patch("configmaps", "mlchassis-policy", {"data": {"gpu-affinity.yaml": key}}, NAMESPACE)

    def check(self) -> None:
        """No pod was refused, left unchanged, or named twice."""
        assert self.wrong == [], f"{len(self.wrong)} of {self.done.total()} went wrong"
        assert not [name for name, times in self.names.items() if times > 1]
        for item in self._cluster.api.items("pods", self._namespace):
            if item["metadata"]["name"].startswith("deployment-"):
                assert probes(item) == set(PROBES), f"{item['metadata']['name']} was not mutated"
        print(f"created while both releases served: {dict(self.done)}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Dialled]:
    with Dialled(tmp_path / "control-plane") as running:
        kuberay.install(running, RAY_OPERATOR)
        running.create_namespace("stream")
        yield running


@pytest.mark.parametrize(("installer", "before"), MATRIX, ids=str)
def test_an_upgrade_and_its_rollback_are_not_noticed(
    cluster: Dialled, tmp_path: Path, installer: str, before: Release
) -> None:
    tag = str(before)
    by = INSTALLERS[installer](cluster, tmp_path)
    with Replicas(cluster, {name: tree() for name, tree in TREES.items()}) as replicas:
        by.install(tag, before.tree)
        replicas.wait(tag)
        cluster.api.wait_for("mutatingwebhookconfigurations", trusted)
        with Stream(cluster, "stream") as stream:
            stream.settle()
            by.install(NOW, REPOSITORY)
            replicas.wait(NOW)
            stream.settle()
            by.roll_back(tag, before.tree)
            replicas.wait(tag)
            stream.settle()
        stream.check()


def trusted(configurations: list[JSON]) -> bool:
    """Whether every entry has a caBundle."""
    entries = [entry for item in configurations for entry in item["webhooks"]]
    return bool(entries) and all(entry["clientConfig"].get("caBundle") for entry in entries)
