"""The dependencies between the objects of a set or a cluster, as one graph with evidence for each edge.

A workload never points to another workload: it points to the Service or host that its text names, and the
Service points to the workloads behind it. So every edge has one place in one object that a person can change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final

from policies.core.facts import Cluster
from policies.core.finding import Certainty
from policies.core.names import destination
from policies.core.resources import Resource
from policies.core.services import selects
from policies.core.target import PodTemplate, Target, pod_templates
from policies.core.workloads import Workload
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, indexed_maps, integer, mapping, text
from policies.kube.metadata import controller
from policies.kube.selectors import matches
from policies.relations.links import Link, Relation, all_links
from policies.relations.reads import objects_read
from policies.relations.waiters import Cycle, cycle_through

MOST_EDGES: Final = 100_000
"""The greatest number of edges; the rest is left out, and `Graph.truncated` is true."""

LEADS_TO: Final = "leads to"
MOUNTS: Final = "mounts"
READS: Final = "reads"
SCALES: Final = "scales"
GUARDS: Final = "limits disruptions of"
ROUTES: Final = "routes to"
HOST: Final = "Host"
"""The kind of a node that is no object: a host outside the set or cluster."""


@dataclass(frozen=True, slots=True)
class Node:
    """An object, or a host outside."""

    kind: str
    namespace: str
    name: str
    replicas: int | None = None
    """Pods of a workload; None for other objects."""

    @property
    def id(self) -> str:
        return "/".join(filter(None, (self.namespace, self.kind, self.name)))

    def __str__(self) -> str:
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {name}"


@dataclass(frozen=True, slots=True)
class Edge:
    """One dependency, with the place in the source that causes it."""

    source: Node
    relation: str
    target: Node
    path: str = ""
    """Field path in the source; empty where the relation follows from labels."""
    who: str = ""
    certainty: Certainty = Certainty.SURE
    limit: float | None = None
    """Seconds after which a wait ends by itself; None: never."""
    tolerates: int | None = None
    """Seconds for which a running pod tolerates that the target fails; None: its probes do not ask it."""


@dataclass(frozen=True, slots=True)
class Blast:
    """What happens to other workloads while one node fails, in the order in which it happens."""

    of: Node
    restarted: tuple[Node, ...]
    """Workloads whose liveness probes fail, directly or through others."""
    unready: tuple[Node, ...]
    """Workloads whose readiness probes fail, and no liveness probe."""
    after: Mapping[Node, int]
    """Seconds of failure after which each of these is restarted, or else not ready."""

    @property
    def pods_restarted(self) -> int:
        return sum(node.replicas or 0 for node in self.restarted)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in reading order, edges by source."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    cycles: tuple[Cycle, ...]
    """Workloads that wait for each other, each cycle once."""
    truncated: bool = False

    def find(self, text: str) -> list[Node]:
        """The nodes that a person means by `name`, `Kind/name` or `namespace/Kind/name`."""
        wanted = text.lower()
        return [
            node
            for node in self.nodes
            if wanted in (node.name.lower(), f"{node.kind}/{node.name}".lower(), node.id.lower())
        ]

    def connected_to(self, nodes: Iterable[Node]) -> Graph:
        """The part of the graph that the nodes lead to, or that leads to them."""
        forward, backward = _neighbours(self.edges)
        kept = set(_reached(nodes, forward)) | set(_reached(nodes, backward))
        return Graph(
            tuple(node for node in self.nodes if node in kept),
            tuple(edge for edge in self.edges if edge.source in kept and edge.target in kept),
            self.cycles,
            self.truncated,
        )

    def blast(self, node: Node) -> Blast:
        """The consequences if `node` fails, and after how long: each probe adds the time that it
        tolerates."""
        behind: dict[Node, set[Node]] = {}
        services: dict[Node, list[Node]] = {}
        asked: dict[Node, list[Edge]] = {}
        for edge in self.edges:
            if edge.relation == LEADS_TO:
                behind.setdefault(edge.source, set()).add(edge.target)
                services.setdefault(edge.target, []).append(edge.source)
            elif edge.tolerates is not None:
                asked.setdefault(edge.target, []).append(edge)
        failed: dict[Node, int] = {}
        restarted: dict[Node, int] = {}
        numbers = count()
        queue = [(0, next(numbers), node)]
        while queue:
            seconds, _, at = heappop(queue)
            if at in failed:
                continue
            failed[at] = seconds
            for service in services.get(at, ()):  # it answers as long as one workload behind it does
                if behind[service] <= failed.keys():
                    heappush(queue, (seconds, next(numbers), service))
            for edge in asked.get(at, ()):
                later = seconds + (edge.tolerates or 0)
                if edge.relation == Relation.NEEDS_ALIVE and edge.source != node:
                    restarted[edge.source] = min(later, restarted.get(edge.source, later))
                heappush(queue, (later, next(numbers), edge.source))
        unready = {
            each: seconds
            for each, seconds in failed.items()
            if each.replicas is not None and each != node and each not in restarted
        }
        return Blast(
            node, tuple(sorted(restarted, key=restarted.__getitem__)), tuple(unready), restarted | unready
        )


def _neighbours(edges: Iterable[Edge]) -> tuple[dict[Node, list[Node]], dict[Node, list[Node]]]:
    forward: dict[Node, list[Node]] = {}
    backward: dict[Node, list[Node]] = {}
    for edge in edges:
        forward.setdefault(edge.source, []).append(edge.target)
        backward.setdefault(edge.target, []).append(edge.source)
    return forward, backward


def _reached(starts: Iterable[Node], neighbours: Mapping[Node, Sequence[Node]]) -> Iterator[Node]:
    seen = dict.fromkeys(starts)
    queue = deque(seen)
    while queue:
        at = queue.popleft()
        yield at
        for other in neighbours.get(at, ()):
            if other not in seen:
                seen[other] = None
                queue.append(other)


def graph_of(objects: Iterable[Json], kinds: Mapping[GroupKind, Workload], cluster: Cluster) -> Graph:
    """The graph of workloads, with what `cluster` knows of Services, autoscalers and budgets.

    Args:
        objects: workloads and other objects of the graph; pods and workloads with a controller are
            left out, since the object that made them is in it.
        kinds: the kinds that make pods.
        cluster: where names of Services are looked up.
    """
    build = _Build(kinds, cluster)
    for obj in objects:
        build.add(obj)
        if build.full:
            break
    return build.graph()


class _Build:
    def __init__(self, kinds: Mapping[GroupKind, Workload], cluster: Cluster) -> None:
        self._kinds, self._cluster = kinds, cluster
        self._nodes: dict[str, Node] = {}
        self._edges: dict[Edge, None] = {}
        self._targets: list[tuple[Target, str]] = []
        self._by_label: dict[tuple[str, str], list[tuple[Node, PodTemplate]]] = {}

    @property
    def full(self) -> bool:
        return len(self._edges) >= MOST_EDGES

    def add(self, obj: Json) -> None:
        kind = kind_of(obj)
        if controller(obj) is not None:
            return
        if kind in self._kinds or kind.kind == "Pod":
            target = Target(obj, kind, pod_templates(obj, self._kinds))
            if target.templates:
                self._add_workload(target)
        elif kind.kind in ("Ingress", "HTTPRoute", "GRPCRoute"):
            self._add_routes(obj, kind.kind)

    def graph(self) -> Graph:
        for resource, add in (
            (Resource.SERVICES, self._add_service),
            (Resource.AUTOSCALERS, self._add_autoscaler),
            (Resource.BUDGETS, self._add_budget),
        ):
            for obj in self._cluster.listing(resource) or ():
                add(obj)
        nodes = tuple(sorted(self._nodes.values(), key=lambda node: (node.namespace, node.kind, node.name)))
        edges = tuple(
            sorted(self._edges, key=lambda edge: (edge.source.id, edge.relation, edge.target.id, edge.path))
        )
        return Graph(nodes, edges, tuple(self._cycles()), self.full)

    def _cycles(self) -> Iterator[Cycle]:
        seen: set[frozenset[tuple[str, str, str]]] = set()
        for target, namespace in self._targets:
            cycle = cycle_through(target, namespace, self._cluster)
            if cycle is not None:
                members = frozenset(step.waiter.identity for step in cycle.steps)
                if members not in seen:
                    seen.add(members)
                    yield cycle

    def _node(self, kind: str, namespace: str, name: str, replicas: int | None = None) -> Node:
        node = Node(kind, namespace, name, replicas)
        known = self._nodes.get(node.id)
        if known is None or (known.replicas is None and replicas is not None):
            self._nodes[node.id] = node
            return node
        return known

    def _edge(self, edge: Edge) -> None:
        if not self.full:
            self._edges[edge] = None

    # --- workloads -------------------------------------------------------------------------------------

    def _add_workload(self, target: Target) -> None:
        namespace = text(target.obj, "metadata", "namespace") or "default"
        replicas = integer(target.spec, "replicas", default=1)
        node = self._node(target.kind.kind, namespace, target.name, replicas)
        self._targets.append((target, namespace))
        for link in all_links(target):
            self._edge(
                Edge(
                    node,
                    link.relation,
                    self._destination(link, namespace),
                    link.path,
                    link.who,
                    link.certainty,
                    link.limit,
                    link.tolerates,
                )
            )
        for template in target.templates:
            for read in objects_read(template):
                other = self._node(read.kind.kind, namespace, read.name)
                self._edge(Edge(node, MOUNTS if read.mounted else READS, other, read.path))
            for label in mapping(template.pod, "metadata", "labels").items():
                self._by_label.setdefault((namespace, str(label)), []).append((node, template))

    def _destination(self, link: Link, namespace: str) -> Node:
        found = destination(link.host, namespace, self._cluster)
        if found is None:
            return self._node(HOST, "", link.host)
        return self._node("Service", found.namespace, found.name)

    # --- the objects around workloads --------------------------------------------------------------------

    def _add_service(self, service: Json) -> None:
        namespace = text(service, "metadata", "namespace") or "default"
        node = self._node("Service", namespace, text(service, "metadata", "name"))
        labels = [(namespace, str(label)) for label in mapping(service, "spec", "selector").items()]
        # One label of the selector leads to all that it can select; the rarest one to the fewest more.
        candidates = min((self._by_label.get(label, []) for label in labels), key=len, default=[])
        for workload, template in candidates:
            if selects(service, template.pod):
                self._edge(Edge(node, LEADS_TO, workload, "spec.selector"))
        external = text(service, "spec", "externalName")
        if external:
            found = destination(external.lower(), namespace, self._cluster)
            other = (
                self._node(HOST, "", external.lower())
                if found is None
                else self._node("Service", found.namespace, found.name)
            )
            self._edge(Edge(node, LEADS_TO, other, "spec.externalName"))

    def _add_autoscaler(self, obj: Json) -> None:
        namespace = text(obj, "metadata", "namespace") or "default"
        reference = mapping(obj, "spec", "scaleTargetRef")
        scaled = self._nodes.get(Node(text(reference, "kind"), namespace, text(reference, "name")).id)
        if scaled is not None:
            node = self._node("HorizontalPodAutoscaler", namespace, text(obj, "metadata", "name"))
            self._edge(Edge(node, SCALES, scaled, "spec.scaleTargetRef"))

    def _add_budget(self, obj: Json) -> None:
        namespace = text(obj, "metadata", "namespace") or "default"
        selector = obj.get("spec", {}).get("selector") if isinstance(obj.get("spec"), dict) else None
        for target, place in self._targets:
            if place == namespace and any(
                matches(selector, mapping(template.pod, "metadata", "labels"))
                for template in target.templates
            ):
                node = self._node("PodDisruptionBudget", namespace, text(obj, "metadata", "name"))
                guarded = self._node(target.kind.kind, namespace, target.name)
                self._edge(Edge(node, GUARDS, guarded, "spec.selector"))

    def _add_routes(self, obj: Json, kind: str) -> None:
        namespace = text(obj, "metadata", "namespace") or "default"
        node = self._node(kind, namespace, text(obj, "metadata", "name"))
        for name, place, path in _routed(obj, namespace):
            self._edge(Edge(node, ROUTES, self._node("Service", place, name), path))


def _routed(obj: Json, namespace: str) -> Iterator[tuple[str, str, str]]:
    """(Service, namespace, field path) of each backend of an Ingress or a Gateway API route."""
    name = text(obj, "spec", "defaultBackend", "service", "name")
    if name:
        yield name, namespace, "spec.defaultBackend.service.name"
    for rule_index, entry in indexed_maps(obj, "spec", "rules"):
        for index, path in indexed_maps(entry, "http", "paths"):
            name = text(path, "backend", "service", "name")
            if name:
                place = f"spec.rules[{rule_index}].http.paths[{index}].backend.service.name"
                yield name, namespace, place
        for index, reference in indexed_maps(entry, "backendRefs"):
            name = text(reference, "name")
            if name and text(reference, "kind") in ("", "Service"):
                other = text(reference, "namespace") or namespace
                yield name, other, f"spec.rules[{rule_index}].backendRefs[{index}].name"
