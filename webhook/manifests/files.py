"""Manifests instead of a cluster: reading files, and objects as the facts that rules need."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, takewhile
from operator import eq
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.facts import NO_OBJECTS, WholeObjects
from policies.core.listing import Listing
from policies.core.resources import Resource, resource_kinds
from policies.core.scaled_objects import autoscaler_of_scaled_object
from policies.core.suggestions import closest
from policies.kube.field_paths import named
from policies.kube.group_kinds import (
    AUTOSCALER,
    CLAIM,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    LOCAL_QUEUE,
    NAMESPACE,
    POD,
    REPLICATION_CONTROLLER,
    SCALED_OBJECT,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.metadata import controller, labels_of
from policies.kube.objects.queues import QUEUE_NAME
from policies.probes.observed import OBSERVED, trimmed
from webhook.admission.envelope import Request
from webhook.errors import UserError
from webhook.manifests.documents import BadDocument, load_all
from webhook.manifests.positions import Lines, Origin
from webhook.manifests.rendered import CHART, KUSTOMIZATIONS, MOST_BUILDS, sources

SUFFIXES: Final = (".yaml", ".yml", ".json")


class Document(Struct, frozen=True):
    """A Kubernetes object with its file and the number of its YAML document.

    The source of an object in a cluster is the cluster, and it has no number.
    """

    source: str
    index: int | None
    obj: Json
    origin: Origin | None = None
    """The text that contains it."""
    duplicate_keys: tuple[str, ...] = ()
    """A clause for each duplicate key of the YAML document, in the document's first object."""
    exempted_at: str = ""
    """RFC 3339: the time at which the field manager of the exempt annotation last changed the object; empty
    if unknown."""

    @property
    def runs(self) -> bool:
        return self.index is None

    @property
    def place(self) -> str:
        return self.source if self.index is None else f"{self.source}#{self.index + 1}"

    @property
    def namespace(self) -> str:
        return text(self.obj, "metadata", "namespace")

    @property
    def name(self) -> str:
        return text(self.obj, "metadata", "name") or text(self.obj, "metadata", "generateName")

    @property
    def identity(self) -> tuple[GroupKind, str, str]:
        return kind_of(self.obj), self.namespace, self.name

    def lines(self, path: str, judged: Json | None = None) -> Lines | None:
        """The lines of a field path in the text; None without a text.

        `judged`: the object with that path, if the indices of its lists differ.
        """
        return None if self.origin is None else self.origin.lines(named(judged or self.obj, path))

    @property
    def start(self) -> str:
        """The file and first line of the object, such as `deploy/api.yaml:12`; the source without a text."""
        return self.source if self.origin is None else f"{self.source}:{self.origin.first_line}"

    def request(self, operation: str = "CREATE", old: Json | None = None) -> Request:
        """The admission request of applying this document."""
        return Request(
            uid="offline",
            kind=kind_of(self.obj),
            operation=operation,
            namespace=self.namespace or "default",
            name=self.name,
            object=self.obj,
            old_object=old,
            dry_run=True,
        )


def read(
    paths: Iterable[str], stdin: Callable[[], str] = lambda: sys.stdin.read(), *, lenient: bool = False
) -> list[Document]:
    """All objects of files, directories (recursively) and standard input (`-`), in order.

    A `List` counts as its items. Files of directories without a Kubernetes object, such as Helm's values, are
    skipped; other files must contain one unless `lenient`. Raises UserError.
    """
    documents, problems = read_all(paths, stdin, lenient=lenient)
    if problems:
        raise problems[0]
    return documents


def read_all(
    paths: Iterable[str],
    stdin: Callable[[], str] = lambda: sys.stdin.read(),
    *,
    lenient: bool = False,
    build: bool = False,
    values: Sequence[str] = (),
    watch: Callable[[Iterable[tuple[str, bool]]], Iterable[tuple[str, bool]]] = iter,
) -> tuple[list[Document], list[UserError]]:
    """As `read`, but returns the error of each unreadable file.

    `build`: whether the results of kustomizations and charts are read; otherwise their whole objects are.
    `values`: files with values for the charts.
    `watch` wraps the iteration over the files.
    """
    documents: list[Document] = []
    problems: list[UserError] = []
    for path in paths:
        left_out: set[str] = set()
        if path != "-" and Path(path).is_dir():
            made, unbuilt, left_out = _rendered(Path(path), values, build=build)
            documents += made
            problems += unbuilt
        try:
            for source, strict in watch(each for each in _sources(path) if each[0] not in left_out):
                try:
                    content = stdin() if source == "-" else _text(Path(source))
                    name = "standard input" if source == "-" else source
                    documents += list(parse(name, content, strict=strict and not lenient))
                except UserError as problem:
                    if strict or not _holds_no_object(source, problem):
                        problems.append(problem)
        except UserError as problem:
            problems.append(problem)
    return documents, problems


def _rendered(
    directory: Path, values: Sequence[str], *, build: bool
) -> tuple[list[Document], list[UserError], set[str]]:
    """The objects of the kustomizations and charts of a directory, an error for each that cannot be built,
    and the files to leave out: those that are no objects, and those that a result contains."""
    documents: list[Document] = []
    problems: list[UserError] = []
    left_out: set[Path] = set()
    found = sources(directory, values)
    for source in found[:MOST_BUILDS] if build else ():
        try:
            made = [replace(each, origin=None) for each in parse(str(source.file), source.build())]
        except UserError as problem:
            problems.append(problem)
            left_out |= source.files if source.patched else source.parts
        else:
            documents += made
            left_out |= source.files
    for source in found[MOST_BUILDS:] if build else ():
        problems.append(
            UserError(f"{source.file}: not reviewed, because one run renders at most {MOST_BUILDS} results")
        )
        left_out |= source.files if source.patched else source.parts
    return documents, problems, {str(file) for file in left_out.union(*(source.parts for source in found))}


def _sources(path: str) -> Iterator[tuple[str, bool]]:
    """The files of a path, and whether each of them must contain an object."""
    if path != "-" and Path(path).is_dir():
        yield from ((str(file), False) for file in _manifests(Path(path)))
    else:
        yield path, True


def _manifests(directory: Path) -> list[Path]:
    """The files below a directory that may contain manifests, in order, without hidden ones."""
    found = [
        file
        for file in sorted(directory.rglob("*"))
        if file.suffix in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(directory).parts)
    ]
    if not found:
        raise UserError(f"{directory}: it contains no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: it isn't UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def _holds_no_object(source: str, problem: UserError) -> bool:
    """Whether an unreadable file of a directory is certainly no manifest, but data in JSON, or YAML with
    another program's own tags: it has no apiVersion and no line with a kind, in UTF-8 or UTF-16."""
    if not source.endswith(".json") and _OWN_TAG not in str(problem):
        return False
    try:
        content = Path(source).read_bytes().replace(b"\0", b"")
    except OSError:
        return False
    return _OF_AN_OBJECT.search(content) is None


_OWN_TAG: Final = "constructor for the tag '!"
"""In a parser's error about a tag that YAML does not define."""
_OF_AN_OBJECT: Final = re.compile(rb"(?im)apiversion|^kind\s*:")


def parse(source: str, content: str, *, strict: bool = False) -> Iterator[Document]:
    """The objects of a text, in order; if `strict`, UserError for any other document."""
    values: list[tuple[Any, tuple[str, ...]]] = []
    duplicates: list[str] = []
    try:
        for value in load_all(content, duplicates=duplicates):
            values.append((value, tuple(duplicates)))
            duplicates.clear()
    except BadDocument as error:
        raise UserError(f"{source}: {error}") from None
    if strict and not any(value for value, _ in values):
        raise UserError(f"{source}: it contains no object")
    for index, (value, keys) in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, dict) or not (text(value, "apiVersion") and text(value, "kind")):
            if strict:
                raise UserError(
                    f"{source}: document {index + 1} isn't a Kubernetes object: apiVersion or kind is missing"
                )
            continue
        for number, (steps, obj) in enumerate(_items(value)):
            yield Document(
                source, index, obj, Origin(content, index, steps), duplicate_keys=() if number else keys
            )


def _items(value: Json, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The objects of a document, each with its path."""
    items = value.get("items")
    if text(value, "kind").endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            if isinstance(item, dict):
                yield from _items(item, (*at, "items", str(number)))
    else:
        yield at, value


class _Selected(Struct, frozen=True):
    """The workloads that an object selects."""

    nearness: int
    """Of the nearest one to the object."""
    by: frozenset[tuple[str, ...]]
    """Their files."""


class ManifestCluster(WholeObjects):
    """The `policies.core.facts.Cluster` of manifests.

    A resource without an object among the manifests is unknown, not empty: they are a part of a cluster.
    """

    def __init__(
        self,
        objects: Sequence[Json],
        observed: Json | None = None,
        *,
        whole: bool = False,
        sources: Sequence[str] = (),
        among: ManifestCluster | None = None,
    ) -> None:
        """`observed`: the ConfigMap of observed starts. `whole`: whether these are all objects that are
        applied together. `sources`: the file of each object. `among`: all objects, if these are a part."""
        self._objects = objects
        self._observed = observed
        self.whole = whole
        self._among = among or self
        self._files = [Path(source).parts for source in sources]
        self._near: tuple[str, frozenset[int], ManifestCluster] = "", frozenset(), self

    def near(self, source: str) -> ManifestCluster:
        """The cluster for the objects of one file. If several files contain versions of an object, as for
        several environments, only the nearest version counts. A Service or budget that selects a workload
        nearer to it than this file belongs to that one. It counts for this file only if it is in the same
        directory, or one above or below, and selects no workload of this file. A queue belongs to the nearest
        workload that names it."""
        last_source, last_far, cluster = self._near
        if source != last_source:
            own = Path(source).parts
            farther = chain.from_iterable(self._farther(versions, own) for versions in self._versions)
            far = frozenset(chain(farther, self._of_others(own)))
            if far != last_far:
                objects = [obj for index, obj in enumerate(self._objects) if index not in far]
                cluster = ManifestCluster(objects, self._observed, whole=self.whole, among=self)
            self._near = source, far, cluster
        return cluster

    @cached_property
    def _versions(self) -> list[list[int]]:
        """The indices of the versions of each object with several."""
        found: dict[tuple[GroupKind, str, str], list[int]] = {}
        for index, (obj, _) in enumerate(zip(self._objects, self._files, strict=False)):
            kind = kind_of(obj)
            if _ESSENTIAL.get(kind, "") in mapping(obj, "spec"):
                key = (kind, _namespace(obj), text(obj, "metadata", "name"))
                if kind in (AUTOSCALER, SCALED_OBJECT):  # in several files, they are alternatives
                    scaled = mapping(obj, "spec", "scaleTargetRef")
                    key = AUTOSCALER, key[1], f"{scaled.get('kind') or 'Deployment'}/{scaled.get('name')}"
                found.setdefault(key, []).append(index)
        several = [versions for versions in found.values() if len(versions) > 1]
        compared = len(set(self._files)) * sum(map(len, several))
        return several if compared <= MAX_COMPARED else []

    def _farther(self, versions: list[int], own: tuple[str, ...]) -> Iterator[int]:
        """The versions that do not count for a file, and duplicates."""
        nearness = [_nearness(own, self._files[index]) for index in versions]
        most = max(nearness)
        nearest: list[Json] = []
        for index, near in zip(versions, nearness, strict=True):
            obj = self._objects[index]
            if near < most or (self._files[index] != own and obj in nearest):
                yield index
            else:
                nearest.append(obj)

    def _of_others(self, own: tuple[str, ...]) -> Iterator[int]:
        """The Services, budgets and queues that belong to workloads of other files."""
        for index, selected in self._selected.items():
            file = self._files[index]
            nearness = _nearness(file, own)
            if nearness >= selected.nearness:
                continue
            apart = nearness < min(len(file), len(own)) - 1
            if apart or own in selected.by or kind_of(self._objects[index]) == LOCAL_QUEUE:
                yield index

    @cached_property
    def _selected(self) -> dict[int, _Selected]:
        """What each Service and budget selects, and what names each queue, by its index."""
        workloads: dict[str, list[tuple[int, Json]]] = {}
        selectors: list[tuple[int, Json]] = []
        for index, (obj, _) in enumerate(zip(self._objects, self._files, strict=False)):
            labels = mapping(obj, *(_LABELS[-2:] if kind_of(obj) == POD else _LABELS))
            if queue := labels_of(obj).get(QUEUE_NAME):
                labels = {**labels, QUEUE_NAME: queue}
            if labels:
                workloads.setdefault(_namespace(obj), []).append((index, labels))
            if selector := _selector(obj):
                selectors.append((index, selector))
        others = max(sum(map(len, workloads.values())), len(set(self._files)))
        if len(selectors) * others > MAX_COMPARED:
            return {}
        found = {}
        for index, selector in selectors:
            files = frozenset(
                self._files[other]
                for other, labels in workloads.get(_namespace(self._objects[index]), ())
                if selector.items() <= labels.items()
            )
            if files:
                found[index] = _Selected(max(_nearness(self._files[index], each) for each in files), files)
        return found

    @cached_property
    def _known(self) -> dict[tuple[Resource, str | None], Listing]:
        by_kind = {known.group_kind: known for known in resource_kinds()}
        found: dict[tuple[Resource, str | None], list[Json]] = {}
        for obj in chain(self._objects, _autoscalers(self._objects)):
            known = by_kind.get(kind_of(obj))
            if known is None or not text(obj, "metadata", "name") or not known.includes(obj):
                continue
            if known.problem(obj):
                continue  # its own review says so
            found.setdefault((known.resource, None), []).append(obj)
            if known.namespaced:
                found.setdefault((known.resource, _namespace(obj)), []).append(obj)
        return {key: Listing(objects) for key, objects in found.items()}

    @cached_property
    def _named(self) -> dict[tuple[GroupKind, str], dict[str, Json]]:
        """The objects by kind and namespace, then by name."""
        found: dict[tuple[GroupKind, str], dict[str, Json]] = {}
        for obj in self._objects:
            found.setdefault((kind_of(obj), _namespace(obj)), {})[text(obj, "metadata", "name")] = obj
        return found

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        return self._named.get((kind, namespace or "default"), {}).get(name)

    def every(self, kind: GroupKind, namespace: str | None) -> Iterable[Json]:
        if namespace is None:
            return [obj for obj in self._objects if kind_of(obj) == kind]
        return self._named.get((kind, namespace or "default"), {}).values()

    def other_pods(self, namespace: str) -> Listing:
        return self._others.get(namespace or "default", NO_OBJECTS)

    @cached_property
    def _others(self) -> dict[str, Listing]:
        found: dict[str, list[Json]] = {}
        for obj in self._objects:
            stays = kind_of(obj) == REPLICATION_CONTROLLER or (
                kind_of(obj) == POD and text(obj, "spec", "restartPolicy") in ("", "Always")
            )
            if stays and controller(obj) is None:
                found.setdefault(_namespace(obj), []).append(obj)
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
        return kind != CONFIG_MAP or bool(closest(name, self._named.get((kind, namespace), ()), _SIMILAR))

    def leaves_out(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """Whether neither the set nor a controller creates such an object."""
        every = self._among
        return (
            every.named(kind, namespace, name) is None
            and (kind, name) not in _IN_EVERY_NAMESPACE
            and not every._has_operators
            and every._creatable.isdisjoint((kind.resource, "*"))
        )

    def makes_no(self, kind: GroupKind, namespace: str, name: str) -> bool:
        return self.whole and self.leaves_out(kind, namespace, name)

    @cached_property
    def _has_operators(self) -> bool:
        kinds = {kind for kind, _ in self._named}
        return CUSTOM_RESOURCE_DEFINITION in kinds or any(kind.group not in _BUILT_IN for kind in kinds)

    @cached_property
    def _creatable(self) -> frozenset[str]:
        """The resources that roles of the set may create, or that StatefulSets create."""
        return frozenset(chain.from_iterable(map(_created_by, self._objects)))

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


_ESSENTIAL: Final = {
    **dict.fromkeys((DEPLOYMENT, STATEFUL_SET, DISRUPTION_BUDGET, SERVICE), "selector"),
    **dict.fromkeys((AUTOSCALER, SCALED_OBJECT), "scaleTargetRef"),
    CLAIM: "accessModes",
    GroupKind("", "ResourceQuota"): "hard",
    GroupKind("", "LimitRange"): "limits",
    LOCAL_QUEUE: "clusterQueue",
    GroupKind("kueue.x-k8s.io", "ClusterQueue"): "resourceGroups",
}
"""Kinds with versions in several files, and a field that is absent in a patch."""
_LABELS: Final = ("spec", "template", "metadata", "labels")
_SELECTORS: Final = {SERVICE: ("spec", "selector"), DISRUPTION_BUDGET: ("spec", "selector", "matchLabels")}
MAX_COMPARED: Final = 5_000_000
"""Comparisons of versions and files (about 8 s); with more, all versions count."""
_SIMILAR: Final = 0.8
"""The least similarity of two names of which one is a misspelling of the other."""
_BUILT_IN: Final = frozenset(
    {
        *("", "admissionregistration.k8s.io", "apps", "autoscaling", "batch", "coordination.k8s.io"),
        *("networking.k8s.io", "policy", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io"),
    }
)
"""API groups of Kubernetes whose objects cause no Services, claims or ConfigMaps."""
_IN_EVERY_NAMESPACE: Final = frozenset(
    (CONFIG_MAP, name)
    for name in ("kube-root-ca.crt", "istio-ca-root-cert", "openshift-service-ca.crt", "linkerd-config")
)
"""Objects that controllers create in every namespace."""


def _created_by(obj: Json) -> Iterator[str]:
    for rule in maps(obj, "rules"):
        if not {"create", "*"}.isdisjoint(strings(rule, "verbs")):
            yield from strings(rule, "resources")
    if maps(obj, "spec", "volumeClaimTemplates"):
        yield CLAIM.resource


def is_whole(paths: Sequence[str], problems: Sequence[UserError]) -> bool:
    """Whether the input is complete and has all objects that are applied together: directories or a
    stream."""
    return is_complete(paths, problems) and all(path == "-" or Path(path).is_dir() for path in paths)


def is_complete(paths: Iterable[str], problems: Sequence[UserError]) -> bool:
    """Whether all input was read, and none of it is for kustomize or Helm, which create further objects."""
    files = (file for path in paths if path != "-" for file in Path(path).rglob("*"))
    return not problems and all(file.name not in _GENERATORS for file in files)


_GENERATORS: Final = (*KUSTOMIZATIONS, CHART, "helmfile.yaml")


def observed_in(path: str) -> Json:
    """The ConfigMap of observed starts in a file. Raises UserError."""
    for document in read([path]):
        if kind_of(document.obj) == CONFIG_MAP and document.name == OBSERVED:
            return document.obj
    raise UserError(f"{path}: there is no ConfigMap {OBSERVED} in it")


def _selector(obj: Json) -> Json:
    """The labels by which a Service or a budget selects pods, or workloads name a queue; else empty."""
    if kind_of(obj) == LOCAL_QUEUE:
        return {QUEUE_NAME: text(obj, "metadata", "name")}
    return mapping(obj, *_SELECTORS.get(kind_of(obj), ("none",)))


def _namespace(obj: Json) -> str:
    return text(obj, "metadata", "namespace") or "default"


def _nearness(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The number of equal parts at the start of two paths."""
    return sum(takewhile(bool, map(eq, one, other)))


def _autoscalers(objects: Iterable[Json]) -> Iterator[Json]:
    """The autoscalers that KEDA creates for ScaledObjects."""
    for obj in objects:
        if kind_of(obj) == SCALED_OBJECT and text(obj, "metadata", "name"):
            made = autoscaler_of_scaled_object(obj)
            if made is not None:
                yield made
