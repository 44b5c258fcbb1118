"""What RayClusters lose while no replica of the webhook answers, in both settings of failurePolicy.

KubeRay's real operators, a real API server, fake nodes. Each operator works in its own namespaces: some where
the entry for Ray pods fails closed, and some where it fails open; some with a late Pod watch, which is when
KubeRay creates pods twice. During the outage workers and a head fail, a group grows and a cluster is created.
No group is scaled down: an outage of ten minutes takes ten minutes, and then as long as the operators'
backoff.

Writes its section of docs/worker-names.md, and keeps the rows of it that were measured before and not now.
`OUTAGES=60,600` names the outages in seconds, `RELEASES=kuberay-1.0,kuberay-1.2` the operators.
"""

from __future__ import annotations

import copy
import os
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._page import DOCS, filled, put
from tests.e2e.binaries import TABLE
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.kuberay import (
    NAMESPACE,
    SERVICE_ACCOUNT,
    Observer,
    Operator,
    prepare,
    ray_cluster,
    scale,
)
from tests.e2e.watch_proxy import WatchProxy

OUTAGES = [float(each) for each in os.environ.get("OUTAGES", "60").split(",")]
RELEASES = tuple(os.environ.get("RELEASES", "kuberay-1.0,kuberay-1.6").split(","))
DELAYS = (0.0, 3.0)
"""Seconds by which the operator's Pod watch is late."""
POLICIES = ("Fail", "Ignore")
WORKERS, FAILING, GROWTH = 20, 5, 5
FAILED, HEADLESS, GROWN, NEW = CLUSTERS = ("failed", "headless", "grown", "new")
WHAT = {
    FAILED: f"{FAILING} of {WORKERS} workers fail",
    HEADLESS: "the head fails",
    GROWN: f"scaled from {WORKERS} to {WORKERS + GROWTH} workers",
    NEW: f"created, with {WORKERS} workers",
}
HEAD, WORKER = "headgroup", "small"
TICK = 0.25
PATIENCE = float(os.environ.get("PATIENCE", "1500"))
"""Seconds after the outage: KubeRay's backoff goes up to 1000."""
SETTLED = 15.0
"""Seconds without a missing or extra pod until a place counts as settled."""


@dataclass
class Loss:
    """The losses of one cluster."""

    missing: float = 0
    """Pods that were wanted and not there, in pod-seconds."""
    late: float = 0
    """Seconds after the outage until nothing was missing any more."""
    surplus: int = 0
    """Workers above those wanted, at the worst moment."""
    deleted: int = 0
    """Healthy workers that the operator deleted."""


@dataclass
class Place:
    """An operator with the clusters of its namespace."""

    release: str
    delay: float
    policy: str
    losses: dict[str, Loss] = field(default_factory=lambda: {name: Loss() for name in CLUSTERS})
    ended: set[str] = field(default_factory=set)
    """Workers that this program deleted."""
    observer: Observer = field(init=False)
    good: float = 0.0
    """How long nothing has been missing or too many."""

    @property
    def namespace(self) -> str:
        return f"{self.release.replace('.', '-')}-{self.delay:g}s-{self.policy.lower()}"

    def live(self, cluster: str, group: str) -> set[str]:
        return set(self.observer.groups[cluster, group].live)

    def tick(self, seconds: float, after: float | None) -> None:
        """Count missing pods for `seconds`; `after`: since the end of the outage, None during it."""
        even = True
        for cluster, loss in self.losses.items():
            workers = len(self.live(cluster, WORKER))
            head = len(self.live(cluster, HEAD))
            short = max(wanted(cluster) - workers, 0) + (head == 0)
            loss.missing += short * seconds
            loss.surplus = max(loss.surplus, workers - wanted(cluster))
            if short and after is not None:
                loss.late = after
            even = even and not short and workers == wanted(cluster)
        self.good = self.good + seconds if even else 0.0


def wanted(cluster: str) -> int:
    return WORKERS + GROWTH * (cluster == GROWN)


def _registered(control_plane: ControlPlane, places: Sequence[Place]) -> None:
    """One entry for Ray pods that fails closed and one that fails open, each for its namespaces."""
    api = control_plane.api
    configuration = api.get("mutatingwebhookconfigurations", "chassis.mlchassis.dev")
    entries = configuration["webhooks"]
    (ray,) = (entry for entry in entries if entry["name"].startswith("ray-name."))
    others = [entry for entry in entries if "/name" not in entry["clientConfig"]["url"]]
    for policy in POLICIES:
        entry = copy.deepcopy(ray)
        entry["name"] = f"{policy.lower()}.{ray['name']}"
        entry["failurePolicy"] = policy
        names = [place.namespace for place in places if place.policy == policy]
        key = "kubernetes.io/metadata.name"
        entry["namespaceSelector"] = {"matchExpressions": [{"key": key, "operator": "In", "values": names}]}
        others.append(entry)
    configuration["webhooks"] = others
    api.replace(configuration)


def _all_there(place: Place, clusters: Sequence[str], workers: int) -> bool:
    return all(len(place.live(each, WORKER)) == workers and place.live(each, HEAD) for each in clusters)


def _until(condition: object, places: Sequence[Place], clusters: Sequence[str]) -> None:
    deadline = time.monotonic() + 600
    while not all(_all_there(place, clusters, WORKERS) for place in places):
        if time.monotonic() > deadline:
            raise SystemExit(f"not there after 600 s: {condition}")
        time.sleep(1)


def _trouble(control_plane: ControlPlane, place: Place) -> None:
    """What happens in a namespace during the outage."""
    api, namespace = control_plane.api, place.namespace
    ended = sorted(place.live(FAILED, WORKER))[:FAILING]
    place.ended.update(ended)
    for name in (*ended, *place.live(HEADLESS, HEAD)):
        api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
    scale(api.within(namespace), GROWN, WORKERS + GROWTH)
    api.create(ray_cluster(NEW, WORKERS), namespace)


def measured(outage: float, scratch: Path) -> list[Place]:
    """One outage of so many seconds, everywhere at the same time."""
    places = [
        Place(release, delay, policy) for release in RELEASES for delay in DELAYS for policy in POLICIES
    ]
    with ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(scratch))
        chassis = Chassis(control_plane)
        chassis.install()
        _registered(control_plane, places)
        chassis.start()
        stack.callback(chassis.stop)
        for release in RELEASES:  # the newest one's CRDs stay
            prepare(control_plane, release)
        token = control_plane.token(NAMESPACE, SERVICE_ACCOUNT)
        direct = control_plane.service_account(NAMESPACE, SERVICE_ACCOUNT)
        proxy = stack.enter_context(WatchProxy(control_plane, max(DELAYS)))
        late = proxy.kubeconfig(token)
        for place in places:
            control_plane.create_namespace(place.namespace)
            place.observer = stack.enter_context(Observer(control_plane.api.within(place.namespace)))
            kubeconfig = late if place.delay else direct
            stack.enter_context(Operator(control_plane, place.release, kubeconfig, place.namespace))
        before = [FAILED, HEADLESS, GROWN]
        for place in places:
            for name in before:
                control_plane.api.create(ray_cluster(name, WORKERS), place.namespace)
        _until("the clusters before the outage", places, before)
        print(f"  {len(places)} namespaces are up, the webhook ends", flush=True)
        chassis.process.kill()
        began = time.monotonic()
        for place in places:
            for name in before:
                place.observer.groups[name, WORKER].deleted.clear()
            _trouble(control_plane, place)
        _watch_outage(places, began, outage)
        chassis.start()
        print("  the webhook is back", flush=True)
        _watch_recovery(places)
        for place in places:
            for name, loss in place.losses.items():
                loss.deleted = len(set(place.observer.groups[name, WORKER].deleted) - place.ended)
    return places


def _watch_outage(places: Sequence[Place], began: float, outage: float) -> None:
    last = began
    while (now := time.monotonic()) - began < outage:
        for place in places:
            place.tick(now - last, None)
        last = now
        time.sleep(TICK)


def _watch_recovery(places: Sequence[Place]) -> None:
    back = last = time.monotonic()
    while not all(place.good >= SETTLED for place in places):
        time.sleep(TICK)
        now = time.monotonic()
        for place in places:
            place.tick(now - last, now - back)
        last = now
        if now - back > PATIENCE:
            print(f"  not settled {PATIENCE:g} s after the outage", flush=True)
            return


def _row(outage: float, place: Place, cluster: str) -> str:
    loss = place.losses[cluster]
    watch = f"{place.delay:g} s late" if place.delay else "in time"
    figures = f"{loss.missing / 60:.1f} | {loss.late:.0f} s | {max(loss.surplus, 0)} | {loss.deleted}"
    release = TABLE[place.release].version
    return f"| {outage / 60:g} min | {release} | {watch} | {WHAT[cluster]} | `{place.policy}` | {figures} |"


def kept(page: str, rows: Sequence[str]) -> list[str]:
    """The rows of the page for outages and releases that were not measured this time."""
    measured = [_measured_what(row) for row in rows]
    of_page = [line for line in page.splitlines() if re.match(r"\| \S+ min \| v", line)]
    return [row for row in of_page if _measured_what(row) not in measured]


def _measured_what(row: str) -> list[str]:
    """Outage and release."""
    return row.split(" | ")[:2]


def main() -> None:
    rows: list[str] = []
    for outage in OUTAGES:
        with tempfile.TemporaryDirectory() as directory:
            places = measured(outage, Path(directory) / "cluster")
        for cluster in CLUSTERS:
            for place in sorted(places, key=lambda each: (each.release, each.delay, each.policy)):
                rows.append(_row(outage, place, cluster))
                print(rows[-1], flush=True)
    path = DOCS / "worker-names.md"
    every = "\n".join([*kept(path.read_text(), rows), *rows])
    put("names_outage", filled("names_outage", rows=every), path)


if __name__ == "__main__":
    main()
