"""Manifests instead of a cluster: files to documents, and documents as the facts that rules ask for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile
from operator import eq
from pathlib import Path
from typing import Any, Final

from policies.core.facts import NO_OBJECTS, WholeObjects
from policies.core.listing import Listing
from policies.core.resources import Resource, resource_kinds
from policies.core.scaled_objects import SCALED_OBJECT, autoscaler_of_scaled_object
from policies.core.suggestions import closest
from policies.kube.field_paths import named
from policies.kube.group_kinds import (
    AUTOSCALER,
    CLAIM,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NAMESPACE,
    POD,
    REPLICATION_CONTROLLER,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.metadata import controller
from policies.probes.observed import OBSERVED, trimmed
from webhook.admission.envelope import Request
from webhook.errors import UserError
from webhook.kube.documents import BadDocument, load_all
from webhook.kube.positions import Lines, Origin

SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Document:
    """One Kubernetes object with the file and the number of its YAML document.

    An object that runs in a cluster has the cluster as its source, and no number.
    """

    source: str
    index: int | None
    obj: Json
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """The text that it was read from."""
    repeated: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Half a sentence for each key that appears twice in the YAML document; its first object has them."""
    exempted_at: str = field(default="", repr=False, compare=False)
    """RFC 3339: when the field manager of the exempt annotation last changed its fields of the object; empty
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
        """The lines of a field path in the text; None where there is no text.

        `judged` is the object whose field the path names, where the indices of its lists may be others.
        """
        return None if self.origin is None else self.origin.lines(named(judged or self.obj, path))

    def request(self, operation: str = "CREATE", old: Json | None = None) -> Request:
        """The admission request that applying this document would make."""
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
    """All objects in files, directories (recursively) and standard input (`-`), in order.

    A `List` counts as its items. In a directory, files without a Kubernetes object, such as Helm's values,
    are passed over; a file that was named must hold one unless `lenient`. Raises UserError.
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
    watch: Callable[[Iterable[tuple[str, bool]]], Iterable[tuple[str, bool]]] = iter,
) -> tuple[list[Document], list[UserError]]:
    """The same, with the error of each file that can't be read, in place of raising the first one: a
    template of Helm's among the manifests must not keep the others from being read. `watch` sees the files
    go by."""
    documents: list[Document] = []
    problems: list[UserError] = []
    for path in paths:
        try:
            for source, strict in watch(_sources(path)):
                try:
                    content = stdin() if source == "-" else _text(Path(source))
                    name = "standard input" if source == "-" else source
                    documents += list(parse(name, content, strict=strict and not lenient))
                except UserError as problem:
                    problems.append(problem)
        except UserError as problem:
            problems.append(problem)
    return documents, problems


def _sources(path: str) -> Iterator[tuple[str, bool]]:
    """The files of a path, and whether each of them must hold an object."""
    if path != "-" and Path(path).is_dir():
        yield from ((str(file), False) for file in _manifests(Path(path)))
    else:
        yield path, True


def _manifests(directory: Path) -> list[Path]:
    """The files below a directory that may hold manifests, in order; hidden ones are passed over."""
    found = [
        file
        for file in sorted(directory.rglob("*"))
        if file.suffix in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(directory).parts)
    ]
    if not found:
        raise UserError(f"{directory}: it holds no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: it is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def parse(source: str, content: str, *, strict: bool = False) -> Iterator[Document]:
    """The objects of a text, in order; if it is `strict`, UserError for a document that is no object."""
    values: list[tuple[Any, tuple[str, ...]]] = []
    repeated: list[str] = []
    try:
        for value in load_all(content, repeated=repeated):
            values.append((value, tuple(repeated)))
            repeated.clear()
    except BadDocument as error:
        raise UserError(f"{source}: {error}") from None
    if strict and not any(value for value, _ in values):
        raise UserError(f"{source}: it holds no object")
    for index, (value, keys) in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, dict) or not (text(value, "apiVersion") and text(value, "kind")):
            if strict:
                raise UserError(
                    f"{source}: document {index + 1} is no Kubernetes object: apiVersion or kind is missing"
                )
            continue
        for number, (steps, obj) in enumerate(_items(value)):
            yield Document(source, index, obj, Origin(content, index, steps), repeated=() if number else keys)


def _items(value: Json, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The objects of a document, each with the way to it."""
    items = value.get("items")
    if text(value, "kind").endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            if isinstance(item, dict):
                yield from _items(item, (*at, "items", str(number)))
    else:
        yield at, value


class ManifestCluster(WholeObjects):
    """The `policies.core.facts.Cluster` made of manifests.

    A resource of which the input holds no object is not known, rather than known to be empty: a
    review sees a part of a cluster.
    """

    def __init__(
        self,
        objects: Sequence[Json],
        observed: Json | None = None,
        *,
        whole: bool = False,
        sources: Sequence[str] = (),
    ) -> None:
        """`observed`: the ConfigMap of observed starts. `whole`: whether these are all the objects that are
        applied together. `sources`: the file of each object."""
        self._objects = objects
        self._observed = observed
        self.whole = whole
        self._files = [Path(source).parts for source in sources]
        self._near: tuple[str, frozenset[int], ManifestCluster] = "", frozenset(), self

    def near(self, source: str) -> ManifestCluster:
        """The cluster as the objects of one file find it: of an object that several files hold, as those of
        several environments do, only the nearest version counts."""
        before, known, cluster = self._near
        if source != before:
            own = Path(source).parts
            far = frozenset(chain.from_iterable(self._farther(versions, own) for versions in self._versions))
            if far != known:
                objects = [obj for index, obj in enumerate(self._objects) if index not in far]
                cluster = ManifestCluster(objects, self._observed, whole=self.whole)
            self._near = source, far, cluster
        return cluster

    @cached_property
    def _versions(self) -> list[list[int]]:
        """The positions of objects that appear several times."""
        found: dict[tuple[GroupKind, str, str], list[int]] = {}
        for index, (obj, _) in enumerate(zip(self._objects, self._files, strict=False)):
            kind, metadata = kind_of(obj), mapping(obj, "metadata")
            if _ESSENTIAL.get(kind, "") in mapping(obj, "spec"):
                key = kind, text(metadata, "namespace") or "default", text(metadata, "name")
                found.setdefault(key, []).append(index)
        several = [versions for versions in found.values() if len(versions) > 1]
        compared = len(set(self._files)) * sum(map(len, several))
        return several if compared <= MOST_COMPARED else []

    def _farther(self, versions: list[int], own: tuple[str, ...]) -> Iterator[int]:
        nearness = [sum(takewhile(bool, map(eq, own, self._files[index]))) for index in versions]
        most = max(nearness)
        nearest: list[Json] = []
        for index, near in zip(versions, nearness, strict=True):
            obj = self._objects[index]
            if near < most or (self._files[index] != own and obj in nearest):
                yield index
            else:
                nearest.append(obj)

    @cached_property
    def _known(self) -> dict[tuple[Resource, str | None], Listing]:
        by_kind = {known.group_kind: known for known in resource_kinds()}
        found: dict[tuple[Resource, str | None], list[Json]] = {}
        for obj in chain(self._objects, _autoscalers(self._objects)):
            known = by_kind.get(kind_of(obj))
            if known is None or not text(obj, "metadata", "name") or not known.includes(obj):
                continue
            found.setdefault((known.resource, None), []).append(obj)
            if known.namespaced:
                found.setdefault(
                    (known.resource, text(obj, "metadata", "namespace") or "default"), []
                ).append(obj)
        return {key: Listing(objects) for key, objects in found.items()}

    @cached_property
    def _named(self) -> dict[tuple[GroupKind, str], dict[str, Json]]:
        """The objects by kind and namespace, then by name."""
        found: dict[tuple[GroupKind, str], dict[str, Json]] = {}
        for obj in self._objects:
            metadata = mapping(obj, "metadata")
            key = kind_of(obj), text(metadata, "namespace") or "default"
            found.setdefault(key, {})[text(metadata, "name")] = obj
        return found

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        return self._named.get((kind, namespace or "default"), {}).get(name)

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
                found.setdefault(text(obj, "metadata", "namespace") or "default", []).append(obj)
        return {namespace: Listing(objects) for namespace, objects in found.items()}

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """True only if the set makes the namespace too, so that nothing can be in it before.

        Secrets are kept out of files, so one that is missing is no sign of a mistake. Scripts make ConfigMaps
        with kubectl, so one is missing only if the set has another of nearly the same name.
        """
        if not self.whole or self.named(NAMESPACE, "", namespace) is None or kind == SECRET:
            return False
        if not self.leaves_out(kind, namespace, name):
            return False
        return kind != CONFIG_MAP or bool(closest(name, self._named.get((kind, namespace), ()), _ALIKE))

    def leaves_out(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """Whether applying the set makes no such object, neither by itself nor through a controller."""
        return (
            self.named(kind, namespace, name) is None
            and (kind, name) not in _MADE_BY_CLUSTERS
            and not self._makes_others(kind)
        )

    def _makes_others(self, kind: GroupKind) -> bool:
        """Whether an operator or a program of the set may make objects of a kind."""
        return self._has_operators or not self._creatable.isdisjoint((kind.resource, "*"))

    @cached_property
    def _has_operators(self) -> bool:
        kinds = {kind for kind, _ in self._named}
        return CUSTOM_RESOURCE_DEFINITION in kinds or any(kind.group not in _BUILT_IN for kind in kinds)

    @cached_property
    def _creatable(self) -> frozenset[str]:
        """The resources that roles of the set allow to create, or that StatefulSets create."""
        return frozenset(chain.from_iterable(map(_created_by, self._objects)))

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        if resource is Resource.OBSERVED:
            return self._starts(namespace or "") if self._observed is not None else None
        if (resource, None) not in self._known:
            return None
        return self._known.get((resource, namespace), _EMPTY)

    def _starts(self, namespace: str) -> Listing:
        if namespace not in self._starts_known:
            found = trimmed(namespace, mapping(self._observed, "data").get(namespace))
            self._starts_known[namespace] = Listing([found] if found else [])
        return self._starts_known[namespace]

    @cached_property
    def _starts_known(self) -> dict[str, Listing]:
        return {}


_ESSENTIAL: Final = {
    **dict.fromkeys((DEPLOYMENT, STATEFUL_SET, DISRUPTION_BUDGET, SERVICE), "selector"),
    **dict.fromkeys((AUTOSCALER, SCALED_OBJECT), "scaleTargetRef"),
}
"""Kinds of which files often hold several versions, and a field that a version has unless it is a patch."""
MOST_COMPARED: Final = 5_000_000
"""Versions that are compared, once for each file (some 8 s); where there are more, all versions count."""
_ALIKE: Final = 0.8
"""How alike two names are of which one is a mistake for the other."""
_BUILT_IN: Final = frozenset(
    {
        *("", "admissionregistration.k8s.io", "apps", "autoscaling", "batch", "coordination.k8s.io"),
        *("networking.k8s.io", "policy", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io"),
    }
)
"""API groups of Kubernetes whose objects make no Services, claims or ConfigMaps."""
_MADE_BY_CLUSTERS: Final = frozenset(
    (CONFIG_MAP, name)
    for name in ("kube-root-ca.crt", "istio-ca-root-cert", "openshift-service-ca.crt", "linkerd-config")
)
"""Objects that controllers make in every namespace."""


def _created_by(obj: Json) -> Iterator[str]:
    for rule in maps(obj, "rules"):
        if not {"create", "*"}.isdisjoint(strings(rule, "verbs")):
            yield from strings(rule, "resources")
    if maps(obj, "spec", "volumeClaimTemplates"):
        yield CLAIM.resource


def is_whole(paths: Sequence[str], problems: Sequence[UserError]) -> bool:
    """Whether the input is all that is applied together: directories or a stream, all of it read."""
    return is_complete(paths, problems) and all(path == "-" or Path(path).is_dir() for path in paths)


def is_complete(paths: Iterable[str], problems: Sequence[UserError]) -> bool:
    """Whether all of the input was read, and none of it is for kustomize or Helm, which make more objects."""
    directories = (Path(path) for path in paths if path != "-")
    return not problems and not any(
        file.name in _GENERATORS for path in directories for file in path.rglob("*")
    )


_GENERATORS: Final = (
    "kustomization.yaml",
    "kustomization.yml",
    "Kustomization",
    "Chart.yaml",
    "helmfile.yaml",
)


def observed_in(path: str) -> Json:
    """The ConfigMap of observed starts in a file. UserError if there is none."""
    for document in read([path]):
        if kind_of(document.obj) == CONFIG_MAP and document.name == OBSERVED:
            return document.obj
    raise UserError(f"{path}: there is no ConfigMap {OBSERVED} in it")


_EMPTY: Final = Listing()


def _autoscalers(objects: Iterable[Json]) -> Iterator[Json]:
    """What KEDA makes of the ScaledObjects among manifests; in a cluster it has made them."""
    for obj in objects:
        if kind_of(obj) == SCALED_OBJECT and text(obj, "metadata", "name"):
            made = autoscaler_of_scaled_object(obj)
            if made is not None:
                yield made
