"""The workloads of a cluster that wait for other workloads, and which of them can never start.

Law: a workload counts as blocked only if some wait of it can only end through blocked workloads. An unknown
target (a Service without a selector, a host outside the cluster, a workload of a kind that is not watched)
counts as something that may answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from policies.commands import Budget
from policies.containers.commands import Allowance, affords
from policies.core.facts import BY_NAME, Cluster
from policies.core.finding import Certainty
from policies.core.listing import is_manifest
from policies.core.names import Destination, destination
from policies.core.resources import Resource
from policies.core.services import behind, selects
from policies.core.target import Target, pod_templates
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, integer, mapping, maps, text
from policies.relations.links import Link, Relation, blocking_links, pod_labels

MOST_WAITERS: Final = 256
"""Workloads that one search looks at; a larger group of workloads that wait for each other is not judged."""

MOST_STEPS: Final = 10_000
"""Steps that reading the commands of another workload may take; one that needs more has no known waits."""

Identity = tuple[str, str, str]
"""Namespace, kind and name."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a watch cache keeps of a workload for this package."""

    links: tuple[Link, ...]
    """Those that keep its pods from becoming ready."""
    serves: bool
    """Whether a pod of it is ready."""


KEPT: Final = "relations"
"""The key of a `Kept` in a cached workload. JSON cannot hold one, so no manifest can forge it."""


def kept(obj: Json, share: Callable[[str], str] = str) -> Kept | None:
    """The fields to keep of a workload from an API server; None if it neither waits nor serves.

    `share` answers one copy of equal strings: many workloads wait in containers of the same name.
    """
    workload = _WORKLOADS.get(kind_of(obj))
    if workload is None:
        return None
    links: tuple[Link, ...] = ()
    if _may_wait(obj):
        templates = pod_templates(obj, {workload.gk: workload})
        allowance = Allowance(Budget(MOST_STEPS))
        if all(affords(template, allowance) for template in templates):
            links = blocking_links(Target(obj, workload.gk, templates))
    serves = integer(obj, "status", "readyReplicas", default=0) > 0
    if not links and not serves:
        return None
    shared = (
        replace(each, host=share(each.host), path=share(each.path), who=share(each.who)) for each in links
    )
    return Kept(tuple(shared), serves)


def _may_wait(obj: Json) -> bool:
    """Whether anything in the pod template may wait: most workloads cost no more than this look."""
    spec = mapping(obj, "spec", "template", "spec")
    return "initContainers" in spec or any(
        "command" in container or "args" in container or "readinessProbe" in container
        for container in maps(spec, "containers")
    )


_WORKLOADS: Final = {each.gk: each for each in known_workloads()}


@dataclass(frozen=True, slots=True)
class Waiter:
    """A workload in the search."""

    kind: str
    namespace: str
    name: str
    links: tuple[Link, ...]
    serves: bool
    written: bool = False
    """Whether it is read from a manifest: the others are in a cluster, where the manifests go."""

    @property
    def identity(self) -> Identity:
        return self.namespace, self.kind, self.name

    def seen_from(self, namespace: str) -> str:
        """How a person in `namespace` names it: "Deployment db", "Deployment db in namespace ml"."""
        where = "" if self.namespace == namespace else f" in namespace {self.namespace}"
        return f"{self.kind} {self.name}{where}"


@dataclass(frozen=True, slots=True)
class Step:
    """One wait on the way round: who waits, by which link, for which Service, and who is behind it."""

    waiter: Waiter
    link: Link
    service: str
    after: Waiter


@dataclass(frozen=True, slots=True)
class Cycle:
    """Workloads that wait for each other; the first step is the one of the workload that was asked about."""

    steps: tuple[Step, ...]

    @property
    def certainty(self) -> Certainty:
        """SURE if none of them can start; LIKELY if that holds once all of them are down."""
        if any(step.link.certainty is not Certainty.SURE for step in self.steps):
            return Certainty.UNDECIDED
        return Certainty.LIKELY if self.running or self.limit is not None else Certainty.SURE

    @property
    def running(self) -> Waiter | None:
        """A member that has a ready pod now."""
        return next((step.waiter for step in self.steps if step.waiter.serves), None)

    @property
    def limit(self) -> float | None:
        """Seconds after which the cycle ends by itself; None: never."""
        return min((step.link.limit for step in self.steps if step.link.limit is not None), default=None)


def cycle_through(target: Target, namespace: str, cluster: Cluster) -> Cycle | None:
    """The shortest cycle of waits that keeps the target from starting.

    None if there is none, if the target has several pod templates, or if Services are not known. A certain
    cycle is preferred to one that depends on waits with an end or on hosts that cannot be decided.
    """
    if len(target.templates) != 1:
        return None
    links = blocking_links(target)
    if not links or cluster.listing(Resource.SERVICES, namespace) is None:
        return None
    here = Waiter(target.kind.kind, namespace, target.name, links, serves=False)
    known = listed(here, cluster)
    if known is not None and known.serves:
        here = replace(here, serves=True)
    search = _Search(here, pod_labels(target), cluster)
    search.run()
    if search.too_large:
        return None
    return search.cycle(_is_certain) or search.cycle(lambda link: True)


def _is_certain(link: Link) -> bool:
    return link.certainty is Certainty.SURE and link.limit is None


@dataclass(frozen=True, slots=True)
class _Edge:
    link: Link
    service: str
    providers: tuple[Identity, ...]


class _Search:
    """Everything that a workload waits for, directly and through others."""

    def __init__(self, here: Waiter, labels: Mapping[str, str], cluster: Cluster) -> None:
        self._here, self._cluster = here, cluster
        self._pod: Json = {"metadata": {"labels": labels}}
        self._known: dict[Identity, Waiter] = {here.identity: here}
        self._edges: dict[Identity, list[_Edge]] = {}
        self.too_large = False

    def run(self) -> None:
        """Follow the waits; stop once too many workloads take part."""
        queue = deque([self._here])
        while queue:
            waiter = queue.popleft()
            edges = self._edges[waiter.identity] = []
            for link in waiter.links:
                edge, others = self._edge(waiter, link)
                if edge is None:
                    continue
                edges.append(edge)
                for other in others:
                    if other.identity not in self._known:
                        self._known[other.identity] = other
                        queue.append(other)
                if len(self._known) > MOST_WAITERS:
                    self.too_large = True
                    return

    def _edge(self, waiter: Waiter, link: Link) -> tuple[_Edge | None, list[Waiter]]:
        found = destination(link.host, waiter.namespace, self._cluster)
        if found is None or not _hides(found, link):
            return None, []
        providers = self._providers(found)
        if not providers:
            return None, []
        edge = _Edge(link, found.name, tuple(each.identity for each in providers))
        return edge, providers

    def _providers(self, found: Destination) -> list[Waiter]:
        """The workloads behind a Service: one that is ready answers."""
        listing = self._cluster.listing(Resource.WORKLOADS, found.namespace)
        providers: list[Waiter] = []
        if found.namespace == self._here.namespace and selects(found.service, self._pod):
            providers.append(self._here)
        for obj in behind(found.service, listing):
            waiter = _waiter(obj, found.namespace)
            if waiter.identity != self._here.identity:
                providers.append(waiter)
            if len(providers) > MOST_WAITERS:
                break
        if found.pod:
            owner = found.pod.rpartition("-")[0]
            providers = [each for each in providers if each.kind == "StatefulSet" and each.name == owner]
        return providers

    def cycle(self, counts: Callable[[Link], bool]) -> Cycle | None:
        """The shortest cycle through the start among the workloads that are blocked by links that count."""
        blocked = self._blocked(counts)
        if self._here.identity not in blocked:
            return None
        came: dict[Identity, Step] = {}
        queue = deque([self._here.identity])
        while queue:
            at = queue.popleft()
            for edge in self._edges.get(at, ()):
                if not counts(edge.link) or not blocked.issuperset(edge.providers):
                    continue
                for provider in edge.providers:
                    step = Step(self._known[at], edge.link, edge.service, self._known[provider])
                    if provider == self._here.identity:
                        return Cycle(_way(came, step))
                    if provider not in came:
                        came[provider] = step
                        queue.append(provider)
        return None

    def _blocked(self, counts: Callable[[Link], bool]) -> set[Identity]:
        """The workloads that can only start after another blocked one: the greatest such set."""
        blocked = set(self._known)
        changed = True
        while changed:
            free = {
                identity
                for identity in blocked
                if not any(
                    counts(edge.link) and blocked.issuperset(edge.providers)
                    for edge in self._edges.get(identity, ())
                )
            }
            changed = bool(free)
            blocked -= free
        return blocked


def _way(came: Mapping[Identity, Step], last: Step) -> tuple[Step, ...]:
    steps = [last]
    while (before := came.get(steps[-1].waiter.identity)) is not None:
        steps.append(before)
    return tuple(reversed(steps))


def _hides(found: Destination, link: Link) -> bool:
    """Whether a wait for the Service ends only when a pod behind it is ready."""
    publishes = mapping(found.service, "spec").get("publishNotReadyAddresses") is True
    if link.name_lookup:
        return found.headless and not publishes
    # A pod that is published early refuses connections as long as its own init containers wait.
    return not publishes or link.relation is Relation.WAITS


def _waiter(obj: Json, namespace: str) -> Waiter:
    """A workload of a listing, from a watch cache or from a manifest."""
    found = obj.get(KEPT)
    if not isinstance(found, Kept):
        # A manifest, or a cached workload that neither waits nor serves.
        found = (kept(obj) if is_manifest(obj) else None) or Kept((), serves=False)
    name = text(obj, "metadata", "name")
    return Waiter(text(obj, "kind"), namespace, name, found.links, found.serves, is_manifest(obj))


def listed(here: Waiter, cluster: Cluster) -> Waiter | None:
    """The same workload as the listing has it."""
    listing = cluster.listing(Resource.WORKLOADS, here.namespace)
    named = listing.by(BY_NAME)[here.name] if listing else ()
    return next((_waiter(obj, here.namespace) for obj in named if text(obj, "kind") == here.kind), None)
