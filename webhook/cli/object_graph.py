"""The dependencies between the objects of a set or a cluster, as one graph with a field path for each edge.

A workload has edges to the Services and hosts that its fields name, and a Service has edges to the workloads
behind it. So every edge belongs to one field of one object that a person can change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Final

from msgspec import Struct

from policies.core.dns import resolve
from policies.core.facts import Cluster, WholeObjects
from policies.core.finding import Certainty
from policies.core.pod_templates import pod_templates
from policies.core.resources import Resource
from policies.core.services import selects
from policies.core.target import PodTemplate, Target
from policies.core.workloads import Workload
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, text
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import read
from policies.kube.objects.scaling import HorizontalPodAutoscaler, PodDisruptionBudget
from policies.kube.objects.services import Ingress, Route, Service
from policies.relations.links import Relation, all_links
from policies.relations.reads import objects_read
from policies.relations.wait_cycles import Cycle, Identity, cycle_through

MAX_EDGES: Final = 100_000
"""Further edges are left out, and `Graph.truncated` is true."""

LEADS_TO: Final = "leads to"
MOUNTS: Final = "mounts"
READS: Final = "reads"
SCALES: Final = "scales"
GUARDS: Final = "limits disruptions of"
ROUTES: Final = "routes to"
HOST: Final = "Host"
"""The kind of a node for a host outside the set or cluster."""


class GraphNode(Struct, frozen=True):
    """An object, or a host outside."""

    kind: str
    namespace: str
    name: str
    replicas: int | None = None
    """Pods of a workload; None for other objects."""

    @property
    def id(self) -> str:
        return "/".join(filter(None, (self.namespace, self.kind, self.name)))

    @property
    def answers(self) -> bool:
        """Whether others send it requests, which fail with it; a budget or a ConfigMap does not fail."""
        return self.replicas is not None or self.kind in ("Service", HOST)

    @property
    def place(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"


class Edge(Struct, frozen=True):
    """One dependency, with the field of the source that causes it."""

    source: GraphNode
    relation: str
    target: GraphNode
    path: str = ""
    """Field path in the source; empty if the relation follows from labels."""
    who: str = ""
    certainty: Certainty = Certainty.CERTAIN
    limit: float | None = None
    """Seconds after which a wait ends by itself; None: never."""
    tolerates: int | None = None
    """Seconds for which a running pod tolerates a failure of the target; None if no probe depends on it."""


class Blast(Struct, frozen=True):
    """The effects of one node's failure on other workloads, in order of time."""

    of: GraphNode
    restarted: tuple[GraphNode, ...]
    """Workloads whose liveness probes fail, directly or through others."""
    unready: tuple[GraphNode, ...]
    """Workloads whose readiness probes fail, and no liveness probe."""
    after: Mapping[GraphNode, int]
    """Seconds of failure after which each of these is restarted or not ready."""

    @property
    def pods_restarted(self) -> int:
        return sum(node.replicas or 0 for node in self.restarted)


class Graph(Struct, frozen=True):
    """Nodes by namespace, kind and name; edges by source."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[Edge, ...]
    cycles: tuple[Cycle, ...]
    """Workloads that wait for each other, each cycle once."""
    truncated: bool = False

    def find(self, text: str) -> list[GraphNode]:
        """The nodes with a `name`, `Kind/name`, `namespace/name` or `namespace/Kind/name`."""
        wanted = text.lower()
        return [
            node
            for node in self.nodes
            if wanted
            in (each.lower() for each in (node.name, f"{node.kind}/{node.name}", node.place, node.id))
        ]

    def connected_to(self, nodes: Collection[GraphNode]) -> Graph:
        """The nodes, all that they depend on, and all that depend on them, directly or through others."""
        kept = _reachable(nodes, ((edge.source, edge.target) for edge in self.edges))
        kept |= _reachable(nodes, ((edge.target, edge.source) for edge in self.edges))
        ids = {node.id for node in kept}
        return Graph(
            tuple(node for node in self.nodes if node in kept),
            tuple(edge for edge in self.edges if edge.source in kept and edge.target in kept),
            tuple(cycle for cycle in self.cycles if not ids.isdisjoint(members_of(cycle))),
            self.truncated,
        )

    def blast(self, node: GraphNode) -> Blast:
        """The consequences of a failure of `node`: each probe delays them by the time that it tolerates."""
        providers: defaultdict[GraphNode, set[GraphNode]] = defaultdict(set)
        services: defaultdict[GraphNode, list[GraphNode]] = defaultdict(list)
        probes: defaultdict[GraphNode, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            if edge.relation == LEADS_TO:
                providers[edge.source].add(edge.target)
                services[edge.target].append(edge.source)
            elif edge.tolerates is not None:
                probes[edge.target].append(edge)
        failed: dict[GraphNode, int] = {}
        restarted: dict[GraphNode, int] = {}
        order = count()
        queue = [(0, next(order), node)]
        while queue:
            seconds, _, at = heappop(queue)
            if at in failed:
                continue
            failed[at] = seconds
            for service in services[at]:
                if providers[service] <= failed.keys():  # no workload behind it is left
                    heappush(queue, (seconds, next(order), service))
            for edge in probes[at]:
                later = seconds + (edge.tolerates or 0)
                if edge.relation == Relation.NEEDS_ALIVE and edge.source != node:
                    restarted[edge.source] = min(later, restarted.get(edge.source, later))
                heappush(queue, (later, next(order), edge.source))
        unready = {
            each: seconds
            for each, seconds in failed.items()
            if each.replicas is not None and each != node and each not in restarted
        }
        return Blast(
            node, tuple(sorted(restarted, key=restarted.__getitem__)), tuple(unready), restarted | unready
        )


def members_of(cycle: Cycle) -> list[str]:
    """The ids of the workloads that wait for each other, in order."""
    waiters = (step.waiter for step in cycle.steps)
    return [GraphNode(waiter.kind, waiter.namespace, waiter.name).id for waiter in waiters]


def _reachable(starts: Iterable[GraphNode], arrows: Iterable[tuple[GraphNode, GraphNode]]) -> set[GraphNode]:
    targets: defaultdict[GraphNode, list[GraphNode]] = defaultdict(list)
    for source, target in arrows:
        targets[source].append(target)
    reached = set(starts)
    pending = list(reached)
    while pending:
        new = [target for target in targets[pending.pop()] if target not in reached]
        reached.update(new)
        pending += new
    return reached


def graph_of(objects: Iterable[Json], kinds: Mapping[GroupKind, Workload], cluster: Cluster) -> Graph:
    """The graph of workloads, routes, and the Services, autoscalers and budgets of `cluster`.

    Objects with a controller are left out, since their owner is in the graph. `kinds`: the kinds with pod
    templates.
    """
    builder = _Builder(kinds, cluster)
    for obj in objects:
        builder.add(obj)
        if builder.full:
            break
    return builder.graph()


class _Builder:
    def __init__(self, kinds: Mapping[GroupKind, Workload], cluster: Cluster) -> None:
        self._kinds, self._cluster = kinds, cluster
        in_cluster = isinstance(cluster, WholeObjects) and not cluster.of_files
        self._omitted = "" if in_cluster else "default"
        self._nodes: dict[str, GraphNode] = {}
        self._edges: dict[Edge, None] = {}
        self._targets: list[tuple[Target, GraphNode]] = []
        self._by_label: defaultdict[tuple[str, str], list[tuple[GraphNode, PodTemplate]]] = defaultdict(list)

    @property
    def full(self) -> bool:
        return len(self._edges) >= MAX_EDGES

    def add(self, obj: Json) -> None:
        kind = kind_of(obj)
        if read(obj, Object).metadata.controller is not None:
            return
        if kind in self._kinds or kind.kind == "Pod":
            target = Target(obj, kind, pod_templates(obj, self._kinds))
            if target.templates:
                self._add_workload(target)
        elif kind.kind in ("Ingress", "HTTPRoute", "GRPCRoute"):
            node = self._node_of(obj, kind.kind)
            for name, namespace, path in _backends(obj, node.namespace):
                self._edge(Edge(node, ROUTES, self._node("Service", namespace, name), path))

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
        return Graph(nodes, edges, tuple(self._cycles().values()), self.full)

    def _cycles(self) -> dict[frozenset[Identity], Cycle]:
        found: dict[frozenset[Identity], Cycle] = {}
        for target, node in self._targets:
            cycle = cycle_through(target, node.namespace, self._cluster)
            if cycle is not None:
                found.setdefault(frozenset(step.waiter.identity for step in cycle.steps), cycle)
        return found

    def _node(self, kind: str, namespace: str, name: str, replicas: int | None = None) -> GraphNode:
        node = GraphNode(kind, namespace, name, replicas)
        known = self._nodes.get(node.id)
        if known is None or (known.replicas is None and replicas is not None):
            self._nodes[node.id] = node
            return node
        return known

    def _node_of(self, obj: Json, kind: str, replicas: int | None = None) -> GraphNode:
        return self._node(kind, self._namespace(obj), text(obj, "metadata", "name"), replicas)

    def _namespace(self, obj: Json) -> str:
        """Empty for a cluster-scoped object, as far as is known: files may omit the namespace."""
        return text(obj, "metadata", "namespace") or self._omitted

    def _node_of_host(self, host: str, namespace: str) -> GraphNode:
        """The node of the Service behind a host name, or of a host outside."""
        found = resolve(host, namespace, self._cluster)
        if found is None:
            return self._node(HOST, "", host)
        return self._node("Service", found.namespace, found.name)

    def _edge(self, edge: Edge) -> None:
        if not self.full:
            self._edges[edge] = None

    def _add_workload(self, target: Target) -> None:
        node = self._node_of(target.obj, target.kind.kind, target.replicas)
        self._targets.append((target, node))
        for link in all_links(target):
            other = self._node_of_host(link.host, node.namespace)
            details = link.path, link.who, link.certainty, link.limit, link.tolerates
            self._edge(Edge(node, link.relation, other, *details))
        for template in target.templates:
            # A cluster-scoped template is for pods in any namespace.
            for each in objects_read(template) if node.namespace else ():
                other = self._node(each.kind.kind, node.namespace, each.name)
                self._edge(Edge(node, MOUNTS if each.mounted else READS, other, each.path))
            for label in template.typed.metadata.labels.items():
                self._by_label[node.namespace, str(label)].append((node, template))

    def _add_service(self, obj: Json) -> None:
        node, service = self._node_of(obj, "Service"), read(obj, Service)
        labels = [(node.namespace, str(label)) for label in service.spec.selector.items()]
        # A selected workload has every label of the selector: look through the shortest list.
        candidates = min((self._by_label.get(label, []) for label in labels), key=len, default=[])
        for workload, template in candidates:
            if selects(service, template.typed.metadata.labels):
                self._edge(Edge(node, LEADS_TO, workload, "spec.selector"))
        external = service.spec.external_name.lower()
        if external:
            other = self._node_of_host(external, node.namespace)
            self._edge(Edge(node, LEADS_TO, other, "spec.externalName"))

    def _add_autoscaler(self, obj: Json) -> None:
        namespace = self._namespace(obj)
        reference = read(obj, HorizontalPodAutoscaler).spec.scale_target_ref
        scaled = self._nodes.get(GraphNode(reference.kind, namespace, reference.name).id)
        if scaled is not None:
            node = self._node_of(obj, "HorizontalPodAutoscaler")
            self._edge(Edge(node, SCALES, scaled, "spec.scaleTargetRef"))

    def _add_budget(self, obj: Json) -> None:
        namespace = self._namespace(obj)
        selector = read(obj, PodDisruptionBudget).spec.selector
        if selector is None:
            return
        for target, guarded in self._targets:
            pods = (template.typed.metadata.labels for template in target.templates)
            if guarded.namespace == namespace and any(map(selector.matches, pods)):
                node = self._node_of(obj, "PodDisruptionBudget")
                self._edge(Edge(node, GUARDS, guarded, "spec.selector"))


def _backends(obj: Json, namespace: str) -> Iterator[tuple[str, str, str]]:
    """(Service, namespace, field path) of each backend of an Ingress or a Gateway API route."""
    if kind_of(obj).kind == "Ingress":
        yield from ((service.name, namespace, at) for at, service in read(obj, Ingress).services())
        return
    for at, reference in read(obj, Route).services():
        yield reference.name, reference.namespace or namespace, at
