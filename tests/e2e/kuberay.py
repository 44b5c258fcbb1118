"""KubeRay's real operator in a test cluster, RayClusters for it, and an observer of what it does."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import yaml

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.binaries import binary, module_directory
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.processes import Process, free_port
from tests.e2e.status import established
from tests.manifests import manifest

NAMESPACE = "ray-system"
SERVICE_ACCOUNT = "kuberay-operator"
START_TIMEOUT = 60
ROOM = {"pods": "2000", "cpu": "4000", "memory": "8Ti"}
Group = tuple[str, str]
"""A RayCluster's name and the name of one of its groups (`headgroup` for the head)."""


def prepare(control_plane: ControlPlane, release: str) -> None:
    """Install the release's CRDs, an account for the operator, and a node with room for every pod."""
    install(control_plane, release)
    if not control_plane.api.exists("nodes", "ray-node"):
        control_plane.add_node("ray-node", capacity=ROOM)


def install(control_plane: ControlPlane, release: str) -> None:
    """Install the release's CRDs and an account for the operator."""
    api = control_plane.api
    for file in sorted((module_directory(release) / "config" / "crd" / "bases").glob("*.yaml")):
        definition = yaml.load(file.read_text(), yaml.CSafeLoader)
        name = definition["metadata"]["name"]
        if api.exists("customresourcedefinitions", name):
            current = api.get("customresourcedefinitions", name)
            definition["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
            api.replace(definition)
        else:
            api.create(definition)
        api.wait("customresourcedefinitions", name, established)
    if not api.exists("namespaces", NAMESPACE):
        control_plane.create_namespace(NAMESPACE)
        control_plane.kubectl("create", "serviceaccount", SERVICE_ACCOUNT, "-n", NAMESPACE)
        account = f"--serviceaccount={NAMESPACE}:{SERVICE_ACCOUNT}"
        binding = ("clusterrolebinding", SERVICE_ACCOUNT, "--clusterrole=cluster-admin", account)
        control_plane.kubectl("create", *binding)


class Operator:
    """One process of a KubeRay release that watches one namespace, or all of them (the empty name)."""

    def __init__(
        self,
        control_plane: ControlPlane,
        release: str,
        kubeconfig: Path,
        namespace: str,
        feature_gates: str = "",
    ) -> None:
        self._log = control_plane.logs / f"{release}-{namespace or 'all'}.log"
        self._metrics, self._health = free_port(), free_port()
        self._command: list[str | Path] = [
            binary(release),
            f"--metrics-addr={HOST}:{self._metrics}",
            f"--health-probe-bind-address={HOST}:{self._health}",
            "--enable-leader-election=false",
            "--reconcile-concurrency=4",
            f"--watch-namespace={namespace}",
        ]
        if feature_gates:
            self._command.append(f"--feature-gates={feature_gates}")
        # Its cache must begin with a list, which the watch proxy can serve from the past.
        settings = {"KUBECONFIG": str(kubeconfig), "KUBE_FEATURE_WatchListClient": "false"}
        self._environment = {**os.environ, **settings}
        self.process: Process

    def start(self) -> Self:
        self.process = Process("kuberay", self._command, self._log, self._environment)
        self.process.wait_until(lambda: "Starting workers" in self._log.read_text(), START_TIMEOUT)
        return self

    def pause(self) -> None:
        """SIGSTOP: it learns of nothing more, while the API server still does what it was asked for."""
        self.process.pause()

    def kill(self) -> None:
        """SIGKILL, as a node that goes down would do it."""
        self.process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.process.terminate(timeout=5)


def ray_cluster(name: str, replicas: int, *, hosts: int = 1, autoscaling: bool = False) -> JSON:
    """A RayCluster with one worker group `small`."""

    def template(container: str) -> JSON:
        return {"spec": {"containers": [{"name": container, "image": "rayproject/ray:2.52.0"}]}}

    group: JSON = {
        "groupName": "small",
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 100,
        "rayStartParams": {},
        "template": template("ray-worker"),
    }
    if hosts > 1:
        group["numOfHosts"] = hosts
    return manifest(
        "RayCluster",
        name,
        {
            "rayVersion": "2.52.0",
            "enableInTreeAutoscaling": autoscaling,
            "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head")},
            "workerGroupSpecs": [group],
        },
    )


def worker(cluster: JSON, **labels: str) -> JSON:
    """A worker as KubeRay 1.0 sends it: no name, no index, owned by the RayCluster."""
    metadata = cluster["metadata"]
    owner = {"apiVersion": cluster["apiVersion"], "kind": "RayCluster", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{metadata['name']}-worker-small-",
            "namespace": metadata["namespace"],
            "labels": {
                "ray.io/is-ray-node": "yes",
                "ray.io/cluster": metadata["name"],
                "ray.io/group": "small",
                "ray.io/node-type": "worker",
                **labels,
            },
            "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "spec": {"containers": [{"name": "ray-worker", "image": "rayproject/ray:2.52.0"}]},
    }


def scale(api: Api, name: str, replicas: int, delete: tuple[str, ...] = ()) -> None:
    """Set the group's replicas and `workersToDelete` together, as Ray's autoscaler does."""
    while True:
        cluster = api.get("rayclusters.ray.io", name)
        [group] = cluster["spec"]["workerGroupSpecs"]
        group["replicas"] = replicas
        group["scaleStrategy"] = {"workersToDelete": list(delete)}
        try:
            api.replace(cluster)
        except ApiError as error:
            if error.reason != "Conflict":
                raise
        else:
            return


@dataclass
class Observed:
    """The observations of one group."""

    live: set[str] = field(default_factory=set)
    """Pods that exist and are not terminating."""
    terminating: set[str] = field(default_factory=set)
    peak: int = 0
    bound: int | None = None
    """How many may live at any instant; None: any number."""
    deleted: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)


class Observer:
    """Watches the Ray pods of the client's namespace directly, not through the operator's cache.

    Every event is checked against the bounds of its group; what breaks one lands in `violations`.
    """

    def __init__(self, api: Api) -> None:
        self.groups: defaultdict[Group, Observed] = defaultdict(Observed)
        self.violations: list[str] = []
        self._api = api
        self._changed = threading.Condition()
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._version = self._list_version()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join(5)

    def _list_version(self) -> str:
        listing = self._api.request("GET", self._api.resource("pods").path(self._api.namespace)).body
        assert not listing["items"], "the observer must see every pod from its beginning"
        return str(listing["metadata"]["resourceVersion"])

    def bound(self, bounds: Mapping[Group, int]) -> None:
        """From now on no more than so many may live."""
        with self._changed:
            for group, most in bounds.items():
                self.groups[group].bound = most

    def wait(self, until: Callable[[Mapping[Group, Observed]], bool], timeout: float = 300) -> None:
        """Wait until it is true of the observations; AssertionError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._failure or until(self.groups), timeout):
                state = {group: sorted(seen.live) for group, seen in self.groups.items()}
                raise AssertionError(f"not seen within {timeout:g} s: {state}")
        if self._failure:
            raise AssertionError("the observer failed") from self._failure

    def _watch(self) -> None:
        try:
            while not self._stopped:
                selectors = {"labelSelector": "ray.io/is-ray-node=yes"}
                for event in self._api.watch("pods", None, self._version, selectors, timeout=2):
                    assert event["type"] != "ERROR", event
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    with self._changed:
                        self._see(event["type"], event["object"])
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _see(self, what: str, pod: JSON) -> None:
        metadata = pod["metadata"]
        group = (metadata["labels"]["ray.io/cluster"], metadata["labels"]["ray.io/group"])
        seen, name = self.groups[group], metadata["name"]
        if what == "ADDED":
            seen.created.append(name)
        if what == "DELETED" or "deletionTimestamp" in metadata:
            if name in seen.live:
                seen.deleted.append(name)
            seen.live.discard(name)
            seen.terminating.add(name)
            if what == "DELETED":
                seen.terminating.discard(name)
        else:
            seen.live.add(name)
        seen.peak = max(seen.peak, len(seen.live))
        if seen.bound is not None and len(seen.live) > seen.bound:
            self.violations.append(
                f"{group}: {len(seen.live)} live, {seen.bound} wanted: {sorted(seen.live)}"
            )
