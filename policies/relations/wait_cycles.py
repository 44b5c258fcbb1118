"""Cycles of workloads that wait for each other, so that none of them can start.

Law: a workload counts as blocked only if one of its waits can only end through blocked workloads. An unknown
target (a Service without a selector, a host outside the cluster, a workload of a kind that is not watched)
counts as one that may answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.dns import ResolvedService, resolve
from policies.core.facts import Cluster
from policies.core.finding import Certainty
from policies.core.listing import BY_NAME, NO_OBJECTS, Listing, is_manifest
from policies.core.resources import Resource
from policies.core.services import selected_workloads, selects
from policies.core.target import Target
from policies.kube.cache import Cache
from policies.kube.json import Json, text
from policies.kube.objects.services import Service
from policies.relations.links import CACHED_LINKS, CachedLinks, Link, Relation, blocking_links, cached_links

MAX_WAITERS: Final = 256
"""Workloads in one search; larger groups of workloads that wait for each other are not judged."""

Identity = tuple[str, str, str]
"""Namespace, kind and name."""


class Waiter(Struct, frozen=True):
    """A workload in the search."""

    kind: str
    namespace: str
    name: str
    links: tuple[Link, ...]
    ready: bool
    is_manifest: bool = False

    @property
    def identity(self) -> Identity:
        return self.namespace, self.kind, self.name

    def name_in(self, namespace: str) -> str:
        """Its name in a message about `namespace`: "Deployment db", "Deployment db in namespace ml"."""
        where = "" if self.namespace == namespace else f" in namespace {self.namespace}"
        return f"{self.kind} {self.name}{where}"


class WaitStep(Struct, frozen=True):
    waiter: Waiter
    link: Link
    service: str


class Cycle(Struct, frozen=True):
    """Workloads that wait for each other, beginning with the workload of the search."""

    steps: tuple[WaitStep, ...]

    @property
    def certainty(self) -> Certainty:
        """CERTAIN if none of them can start; LIKELY if that is so only while all of them are down."""
        if any(step.link.certainty is not Certainty.CERTAIN for step in self.steps):
            return Certainty.UNDECIDED
        return Certainty.LIKELY if self.running or self.limit is not None else Certainty.CERTAIN

    @property
    def running(self) -> Waiter | None:
        """A member that has a ready pod now."""
        return next((step.waiter for step in self.steps if step.waiter.ready), None)

    @property
    def limit(self) -> float | None:
        """Seconds after which the cycle ends by itself; None: never."""
        return min((step.link.limit for step in self.steps if step.link.limit is not None), default=None)


def cycle_through(target: Target, namespace: str, cluster: Cluster) -> Cycle | None:
    """The shortest cycle of waits that keeps the target from starting.

    None if there is none, if the target has several pod templates, or if Services are unknown. A certain
    cycle is preferred to one with waits that end by themselves or with undecided hosts.
    """
    if len(target.templates) != 1:
        return None
    links = blocking_links(target)
    if not links or cluster.listing(Resource.SERVICES, namespace) is None:
        return None
    start = Waiter(target.kind.kind, namespace, target.name, links, ready=False)
    known = in_listing(start, cluster)
    if known is not None and known.ready:
        start = replace(start, ready=True)
    search = _Search(start, target.templates[0].typed.metadata.labels, cluster)
    if not search.run():
        return None
    return search.cycle(_is_certain) or search.cycle(lambda link: True)


def _is_certain(link: Link) -> bool:
    return link.certainty is Certainty.CERTAIN and link.limit is None


class _Edge(Struct, frozen=True):
    link: Link
    service: str
    group: int
    """The providers of the Service, in the search's groups."""


class _Search:
    """The workloads that a workload waits for, directly and through others.

    Many Services may select the same many workloads. So the workloads behind a selector are found once, and
    each step takes time that grows with the links and the groups, not with their product.
    """

    def __init__(self, start: Waiter, labels: Mapping[str, str], cluster: Cluster) -> None:
        """`labels`: those of the start's pods."""
        self._start, self._labels, self._cluster = start, labels, cluster
        self._waiters: dict[Identity, Waiter] = {start.identity: start}
        self._queue = deque([start])
        self._edges: dict[Identity, list[_Edge]] = {}
        self._groups: list[tuple[Identity, ...]] = []
        self._known_groups: dict[tuple[object, ...], int] = {}

    def run(self) -> bool:
        """Follow the waits; False if they lead to too many workloads."""
        while self._queue:
            waiter = self._queue.popleft()
            edges = self._edges[waiter.identity] = []
            for link in waiter.links:
                found = resolve(link.host, waiter.namespace, self._cluster)
                if not found or not _needs_ready_pod(found, link):
                    continue
                group = self._group(found)
                if self._groups[group]:
                    edges.append(_Edge(link, found.name, group))
                if len(self._waiters) > MAX_WAITERS:
                    return False
        return True

    def _group(self, found: ResolvedService) -> int:
        """The workloads behind a Service, as an index: it answers if one of them is ready."""
        owner = found.pod.rpartition("-")[0] if found.pod else ""
        key = (found.namespace, owner, tuple(found.service.spec.selector.items()))
        group = self._known_groups.get(key)
        if group is None:
            group = self._known_groups[key] = len(self._groups)
            providers = self._providers(found)
            if found.pod:
                providers = [each for each in providers if each.kind == "StatefulSet" and each.name == owner]
            self._groups.append(tuple(each.identity for each in providers))
            for provider in providers:
                if provider.identity not in self._waiters:
                    self._waiters[provider.identity] = provider
                    self._queue.append(provider)
        return group

    def _providers(self, found: ResolvedService) -> list[Waiter]:
        listing = self._cluster.listing(Resource.WORKLOADS, found.namespace) or NO_OBJECTS
        own = found.namespace == self._start.namespace and selects(found.service, self._labels)
        others = _selected(found.service, found.namespace, listing)
        return [self._start] * own + [each for each in others if each.identity != self._start.identity]

    def cycle(self, blocks: Callable[[Link], bool]) -> Cycle | None:
        """The shortest cycle through the start, of links that block."""
        visited = self._answering(blocks)
        previous: dict[Identity, WaitStep] = {}
        queue = deque([self._start.identity])
        while queue:
            at = queue.popleft()
            for edge in self._edges.get(at, ()):
                if edge.group in visited or not blocks(edge.link):
                    continue
                visited.add(edge.group)
                step = WaitStep(self._waiters[at], edge.link, edge.service)
                for provider in self._groups[edge.group]:
                    if provider == self._start.identity:
                        return Cycle(_steps_to(step, previous))
                    if provider not in previous:
                        previous[provider] = step
                        queue.append(provider)
        return None

    def _answering(self, blocks: Callable[[Link], bool]) -> set[int]:
        """The groups with a workload that can start: each of its waits ends through such a group."""
        waits: dict[Identity, int] = dict.fromkeys(self._waiters, 0)
        waiting: dict[int, list[Identity]] = {}
        member_of: dict[Identity, list[int]] = {}
        for identity, edges in self._edges.items():
            for edge in edges:
                if blocks(edge.link):
                    waits[identity] += 1
                    waiting.setdefault(edge.group, []).append(identity)
        for group, providers in enumerate(self._groups):
            for provider in providers:
                member_of.setdefault(provider, []).append(group)
        free = [identity for identity, count in waits.items() if not count]
        answering: set[int] = set()
        while free:
            for group in member_of.get(free.pop(), ()):
                if group in answering:
                    continue
                answering.add(group)
                for identity in waiting.get(group, ()):
                    waits[identity] -= 1
                    if not waits[identity]:
                        free.append(identity)
        return answering


def _steps_to(last: WaitStep, previous: Mapping[Identity, WaitStep]) -> tuple[WaitStep, ...]:
    steps = [last]
    while (before := previous.get(steps[-1].waiter.identity)) is not None:
        steps.append(before)
    return tuple(reversed(steps))


def _needs_ready_pod(found: ResolvedService, link: Link) -> bool:
    """Whether a wait for the Service ends only when a pod behind it is ready."""
    publishes = found.service.spec.publish_not_ready_addresses
    if link.name_lookup:
        return found.headless and not publishes
    # A pod that is published early refuses connections while its own init containers wait.
    return not publishes or link.relation is Relation.WAITS


def _selected(service: Service, namespace: str, listing: Listing) -> tuple[Waiter, ...]:
    """The workloads that a Service selects, at most one more than a search may have; found once for all
    reviews."""
    key = (namespace, *service.spec.selector.items())
    return listing.derive(_cache).once_for(key, _waiters_behind, service, namespace, listing)


def _waiters_behind(service: Service, namespace: str, listing: Listing) -> tuple[Waiter, ...]:
    found = islice(selected_workloads(service, listing), MAX_WAITERS + 1)
    return tuple(_read_once(obj, namespace, listing) for obj in found)


def _read_once(obj: Json, namespace: str, listing: Listing) -> Waiter:
    """A workload of a listing as a waiter, read once for all reviews. The listing keeps the object, and so
    the id."""
    return listing.derive(_cache).once_for(id(obj), _waiter, obj, namespace)


def _cache(_: Listing) -> Cache:
    return Cache()


def _waiter(obj: Json, namespace: str) -> Waiter:
    """A workload of a listing, from a watch cache or from a manifest."""
    cached = obj.get(CACHED_LINKS)
    if not isinstance(cached, CachedLinks):
        # A manifest, or a cached workload that neither waits nor has ready pods.
        cached = (cached_links(obj) if is_manifest(obj) else None) or CachedLinks((), ready=False)
    name = text(obj, "metadata", "name")
    return Waiter(text(obj, "kind"), namespace, name, cached.links, cached.ready, is_manifest(obj))


def in_listing(waiter: Waiter, cluster: Cluster) -> Waiter | None:
    """The same workload as it is in the listing."""
    listing = cluster.listing(Resource.WORKLOADS, waiter.namespace)
    if not listing:
        return None
    same = (obj for obj in listing.by(BY_NAME)[waiter.name] if text(obj, "kind") == waiter.kind)
    return next((_read_once(obj, waiter.namespace, listing) for obj in same), None)
