"""Manifests instead of a cluster: the objects of files as the facts that rules need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Final

from policies.core.autoscalers import MAKERS, made_autoscaler
from policies.core.facts import WholeObjects
from policies.core.listing import NO_OBJECTS, Listing
from policies.core.resources import Resource, resource_kinds
from policies.core.workloads import known_workloads
from policies.kube.cache import Cache
from policies.kube.group_kinds import (
    AUTOSCALER,
    CLAIM,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    NAMESPACE,
    POD,
    REPLICATION_CONTROLLER,
    SECRET,
    SERVICE,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.metadata import controller
from policies.kube.names import SIMILAR, closest
from policies.probes.observed import trimmed
from webhook.manifests.nearest import ROUTES, Nearest, namespace_of
from webhook.manifests.rendered import CHART, KUSTOMIZATIONS


class ManifestCluster(WholeObjects):
    """The `policies.core.facts.Cluster` of manifests.

    A resource without an object among the manifests is unknown, not empty: they are a part of a cluster.
    """

    of_files = True

    def __init__(
        self,
        objects: Sequence[Json],
        observed: Json | None = None,
        *,
        whole: bool = False,
        sources: Iterable[str] = (),
    ) -> None:
        """`observed`: the ConfigMap of observed starts. `whole`: whether these are all objects that are
        applied together. `sources`: the file of each object."""
        self.objects = objects
        self._observed = observed
        self.whole = whole
        self._sources = tuple(sources)
        self._nearest = Nearest(objects, self._sources)
        self.caches: dict[frozenset[int], Cache] = {}
        """Those of files from which versions of routes are hidden, by the indices of these."""
        self._last_near: NearCluster | None = None

    def near(self, source: str) -> NearCluster:
        """The cluster for the objects of one file; see `Nearest.hidden_from`. Consecutive files from which
        the same objects are hidden share these."""
        last = self._last_near
        if last is None or last.source != source:
            indices = self._nearest.hidden_from(source)
            hidden = last.hidden if last and last.hidden.indices == indices else HiddenObjects(self, indices)
            last = self._last_near = NearCluster(self, source, hidden)
        return last

    @cached_property
    def kinds(self) -> list[GroupKind]:
        """The kind of each object."""
        return list(map(kind_of, self.objects))

    @cached_property
    def _known(self) -> dict[tuple[Resource, str | None], Listing]:
        by_kind = {known.group_kind: known for known in resource_kinds()}
        found: dict[tuple[Resource, str | None], list[Json]] = {}
        for obj in chain(self.objects, self.autoscalers.values()):
            known = by_kind.get(kind_of(obj))
            if known is None or not text(obj, "metadata", "name") or not known.includes(obj):
                continue
            if known.problem(obj):
                continue  # its own review says so
            if not known.namespaced and "$" in text(obj, "metadata", "name"):
                continue  # a template of Nodes or ResourceSlices, from which a script makes any number
            found.setdefault((known.resource, None), []).append(obj)
            if known.namespaced:
                found.setdefault((known.resource, namespace_of(obj)), []).append(obj)
        return {key: Listing(objects) for key, objects in found.items()}

    @cached_property
    def autoscalers(self) -> dict[int, Json]:
        """The autoscalers that other controllers make, by the index of the objects of which they do."""
        made = {
            index: made_autoscaler(obj)
            for index, obj in enumerate(self.objects)
            if kind_of(obj) in MAKERS and text(obj, "metadata", "name")
        }
        return {index: obj for index, obj in made.items() if obj is not None}

    @cached_property
    def _named(self) -> dict[tuple[GroupKind, str], dict[str, list[Json]]]:
        """The objects by kind and namespace, then by name."""
        found: dict[tuple[GroupKind, str], dict[str, list[Json]]] = {}
        for obj in self.objects:
            by_name = found.setdefault((kind_of(obj), namespace_of(obj)), {})
            by_name.setdefault(text(obj, "metadata", "name"), []).append(obj)
        return found

    def versions(self, kind: GroupKind, namespace: str, name: str) -> Sequence[Json]:
        """The objects of a name: several files may contain one each."""
        return self._named.get((kind, namespace or "default"), {}).get(name, ())

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        found = self.versions(kind, namespace, name)
        return found[-1] if found else None

    def file_of(self, obj: Json) -> str:
        """The file of an object of the set; empty if it is unknown."""
        return self._files.get(id(obj), "")

    @cached_property
    def _files(self) -> dict[int, str]:
        """The file of each object, by its identity."""
        return {id(obj): source for obj, source in zip(self.objects, self._sources, strict=False)}

    def every(self, kind: GroupKind, namespace: str | None) -> Iterable[Json]:
        if namespace is None:
            return [obj for obj, own in zip(self.objects, self.kinds, strict=True) if own == kind]
        return [found[-1] for found in self._named.get((kind, namespace or "default"), {}).values()]

    def other_pods(self, namespace: str) -> Listing:
        return self._others.get(namespace or "default", NO_OBJECTS)

    @cached_property
    def _others(self) -> dict[str, Listing]:
        found: dict[str, list[Json]] = {}
        for obj in self.objects:
            stays = kind_of(obj) == REPLICATION_CONTROLLER or (
                kind_of(obj) == POD and text(obj, "spec", "restartPolicy") in ("", "Always")
            )
            if stays and controller(obj) is None:
                found.setdefault(namespace_of(obj), []).append(obj)
        return {namespace: Listing(objects) for namespace, objects in found.items()}

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """True only if the set creates the namespace, so that it is empty before.

        Secrets are often not in files. Scripts create ConfigMaps with kubectl, so a ConfigMap is missing only
        if the set has one with a similar name.
        """
        if not self.whole or self.named(NAMESPACE, "", namespace) is None or kind == SECRET:
            return False
        if not self.leaves_out(kind, namespace, name):
            return False
        return kind != CONFIG_MAP or bool(closest(name, self._named.get((kind, namespace), ()), SIMILAR))

    def leaves_out(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """Whether neither the set nor a controller creates such an object."""
        return (
            self.named(kind, namespace, name) is None
            and (kind, name) not in _IN_EVERY_NAMESPACE
            and not self._may_be_made(kind, namespace, name)
            and self._creatable.isdisjoint((kind.resource, "*"))
        )

    def _may_be_made(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """Whether the operator of an object of the set may create such an object."""
        if kind == CLAIM:
            return self._may_have_other_claims
        if kind == SERVICE:
            own = (self._named.get((each, namespace or "default"), {}) for each in _own_names())
            return self._may_have_other_services or any(map(name.startswith, chain.from_iterable(own)))
        return self._has_operators

    def makes_no(self, kind: GroupKind, namespace: str, name: str) -> bool:
        return self.whole and self.leaves_out(kind, namespace, name)

    @cached_property
    def _has_operators(self) -> bool:
        return self._has_kinds_besides(_only_pods())

    @cached_property
    def _may_have_other_claims(self) -> bool:
        return self._has_kinds_besides(_only_pods() | _without_claims())

    @cached_property
    def _may_have_other_services(self) -> bool:
        return self._has_kinds_besides(_only_pods() | _own_names())

    def _has_kinds_besides(self, known: frozenset[GroupKind]) -> bool:
        """Whether objects of other kinds than those and Kubernetes' own may cause further objects."""
        kinds = {kind for kind, _ in self._named} - known
        return CUSTOM_RESOURCE_DEFINITION in kinds or any(kind.group not in _BUILT_IN for kind in kinds)

    @cached_property
    def _creatable(self) -> frozenset[str]:
        """The resources that roles of the set may create, or that StatefulSets create."""
        return frozenset(chain.from_iterable(map(_created_by, self.objects)))

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        if resource is Resource.OBSERVED:
            return self._starts.get(namespace or "", NO_OBJECTS) if self._observed is not None else None
        if (resource, None) not in self._known:
            return None
        return self._known.get((resource, namespace), NO_OBJECTS)

    @cached_property
    def _starts(self) -> dict[str, Listing]:
        data = mapping(self._observed, "data").items()
        found = ((namespace, trimmed(namespace, value)) for namespace, value in data)
        return {namespace: Listing([starts]) for namespace, starts in found if starts}


_BUILT_IN: Final = frozenset(
    {
        *("", "admissionregistration.k8s.io", "apps", "autoscaling", "batch", "coordination.k8s.io"),
        *("networking.k8s.io", "policy", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io"),
    }
)
"""API groups of Kubernetes whose objects cause no Services, claims or ConfigMaps."""
_DEPLOYED: Final = (*KUSTOMIZATIONS, CHART)
"""Files whose result is deployed by itself: as an application of Argo CD, or as a release of Helm."""
_IN_EVERY_NAMESPACE: Final = frozenset(
    (CONFIG_MAP, name)
    for name in ("kube-root-ca.crt", "istio-ca-root-cert", "openshift-service-ca.crt", "linkerd-config")
)
"""Objects that controllers create in every namespace."""


@cache
def _only_pods() -> frozenset[GroupKind]:
    """Kinds outside the groups of Kubernetes whose controllers create nothing that other pods need."""
    return frozenset(each.group_kind for each in known_workloads() if each.only_pods)


@cache
def _own_names() -> frozenset[GroupKind]:
    """Kinds outside the groups of Kubernetes whose controllers name all their Services after the object."""
    return frozenset(each.group_kind for each in known_workloads() if each.own_names)


@cache
def _without_claims() -> frozenset[GroupKind]:
    """Kinds outside the groups of Kubernetes whose controllers create no claims."""
    return frozenset(each.group_kind for each in known_workloads() if each.no_claims)


def _created_by(obj: Json) -> Iterator[str]:
    for rule in maps(obj, "rules"):
        if not {"create", "*"}.isdisjoint(strings(rule, "verbs")):
            yield from strings(rule, "resources")
    if maps(obj, "spec", "volumeClaimTemplates"):
        yield CLAIM.resource


class HiddenObjects:
    """The objects of a set of manifests that do not count for some of its files, and the listings without
    them, which these files share.

    Only Services, budgets, queues and objects with versions are hidden, so all files share the other
    listings: a set has as many files as objects.
    """

    def __init__(self, among: ManifestCluster, indices: frozenset[int]) -> None:
        """`indices`: those of the objects."""
        self._among = among
        self.indices = indices
        self.ids = {
            id(obj)
            for index in indices
            for obj in (among.objects[index], among.autoscalers.get(index))
            if obj is not None
        }
        routes = frozenset(index for index in indices if among.kinds[index] in ROUTES)
        self.cache = among.caches.setdefault(routes, Cache()) if routes else among.cache
        kinds = {among.kinds[index] for index in indices}
        kinds |= set() if kinds.isdisjoint(MAKERS) else {AUTOSCALER}
        self._filtered = {known.resource for known in resource_kinds() if known.group_kind in kinds}
        self._listings: dict[tuple[Resource, str | None], Listing] = {}

    def listing(self, resource: Resource, namespace: str | None) -> Listing | None:
        """The other objects of a resource; None if all of them are hidden."""
        if resource not in self._filtered:
            return self._among.listing(resource, namespace)
        return self._others(resource, namespace) if self._others(resource, None) else None

    def _others(self, resource: Resource, namespace: str | None) -> Listing:
        key = (resource, namespace)
        if key not in self._listings:
            every = self._among.listing(resource, namespace) or ()
            self._listings[key] = Listing(obj for obj in every if id(obj) not in self.ids)
        return self._listings[key]


class NearCluster(WholeObjects):
    """The objects of a set of manifests that count for one of its files."""

    of_files = True

    def __init__(self, among: ManifestCluster, source: str, hidden: HiddenObjects) -> None:
        """`source`: the file."""
        self._among, self.source, self.hidden = among, source, hidden

    @property
    def cache(self) -> Cache:
        """Values of routes, and of kinds that are never hidden."""
        return self.hidden.cache

    def _versions(self, kind: GroupKind, namespace: str, name: str) -> Iterator[Json]:
        """The objects of a name that count, the last one first."""
        found = reversed(self._among.versions(kind, namespace, name))
        return (obj for obj in found if id(obj) not in self.hidden.ids)

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        return next(self._versions(kind, namespace, name), None)

    def apart(self, obj: Json) -> bool:
        files = self.source, self._among.file_of(obj)
        return len({*files}) > 1 and all(Path(each).name in _DEPLOYED for each in files)

    def together(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        return next((obj for obj in self._versions(kind, namespace, name) if not self.apart(obj)), None)

    def versions(self, kind: GroupKind, namespace: str, name: str) -> Sequence[Json]:
        return self._among.versions(kind, namespace, name)

    def every(self, kind: GroupKind, namespace: str | None) -> Iterable[Json]:
        every = self._among.every(kind, namespace)
        if not self.hidden.ids:
            return every
        if namespace is None:
            return [obj for obj in every if id(obj) not in self.hidden.ids]
        shown = (self.named(kind, namespace, text(obj, "metadata", "name")) for obj in every)
        return [obj for obj in shown if obj is not None]

    def other_pods(self, namespace: str) -> Listing:
        return self._among.other_pods(namespace)

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        return self._among.lacks(kind, namespace, name)

    def makes_no(self, kind: GroupKind, namespace: str, name: str) -> bool:
        return self._among.makes_no(kind, namespace, name)

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self.hidden.listing(resource, namespace)
