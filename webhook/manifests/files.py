"""The objects of files, directories and standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from policies.kube.field_paths import named
from policies.kube.group_kinds import (
    CONFIG_MAP,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, mapping, text
from policies.kube.yaml_text import BadDocument, as_documents, load_all
from policies.probes.observed import OBSERVED
from webhook.admission.envelope import Request
from webhook.errors import UserError
from webhook.manifests.positions import Lines, Origin
from webhook.manifests.rendered import CHART, KUSTOMIZATIONS, MOST_BUILDS, RenderedSource, sources

_MOST_NAMED: Final = 3
"""Results that one sentence names."""
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
        raise UserError(*problems)
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
                    for document in parse(name, content, strict=strict and not lenient, own=True):
                        documents.append(document)  # an error may come after the last one
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
    unbuilt: list[tuple[RenderedSource, str]] = []
    reviewed: set[Path] = set()
    found = sources(directory, values)
    for source in found[:MOST_BUILDS] if build else ():
        try:
            made = [replace(each, origin=None) for each in parse(str(source.file), source.build())]
        except UserError as problem:
            unbuilt.append((source, str(problem)))
        else:
            documents += made
            reviewed |= source.files
    problems = [UserError(_with_its_files(why, reviewed, source)) for source, why in unbuilt]
    too_many = found[MOST_BUILDS:] if build else []
    if too_many:
        shown = [str(source.file) for source in too_many[:_MOST_NAMED]]
        more = len(too_many) - len(shown)
        why = (
            f"{', '.join(shown)}{f' and {more:,} more' if more else ''}: not reviewed, because one run "
            f"renders at most {MOST_BUILDS} results; review parts of the directory by themselves"
        )
        problems.append(UserError(_with_its_files(why, reviewed, *too_many)))
    left = (*(source for source, _ in unbuilt), *too_many)
    changed = (source.files if source.patched else source.parts for source in left)
    left_out = reviewed.union(*changed, *(source.parts for source in found))
    return documents, problems, {str(file) for file in left_out}


def _with_its_files(why: str, reviewed: Set[Path], *unbuilt: RenderedSource) -> str:
    """A sentence about results that are not reviewed, with the number of objects' files that are only in such
    results."""
    patched = [source.files - source.parts for source in unbuilt if source.patched]
    count = len(set[Path]().union(*patched) - reviewed)
    files = "the file" if count == 1 else f"the {count:,} files"
    changes = "they change" if len(unbuilt) > 1 else "it changes"
    return why.replace("not reviewed", f"not reviewed, nor {files} that {changes}", 1) if count else why


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
    if not source.endswith(".json") and not any(tag in str(problem) for tag in _OWN_TAGS):
        return False
    try:
        content = Path(source).read_bytes().replace(b"\0", b"")
    except OSError:
        return False
    return _OF_AN_OBJECT.search(content) is None


_OWN_TAGS: Final = ("constructor for the tag '!", "constructor for the tag 'tag:yaml.org,2002:python/")
"""In a parser's error about a tag that YAML does not define, or that names a function of Python, as in the
settings of MkDocs."""
_OF_AN_OBJECT: Final = re.compile(rb"(?im)apiversion|^kind\s*:")


def parse(source: str, content: str, *, strict: bool = False, own: bool = False) -> Iterator[Document]:
    """The objects of a text, in order. Then UserError for the first other document: if `strict`, for any; if
    `own`, for one with all parts of an object but its apiVersion or its kind."""
    try:
        content, values = _read(content)
    except BadDocument as error:
        raise UserError(f"{source}: {error}") from None
    if strict and not any(value for value, _ in values):
        raise UserError(f"{source}: it contains no object")
    other = None
    for index, (value, keys) in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, dict) or not (text(value, "apiVersion") and text(value, "kind")):
            if other is None and (strict or (own and _is_unnamed(value))):
                other = index + 1
            continue
        for number, (steps, obj) in enumerate(_items(value)):
            yield Document(
                source, index, obj, Origin(content, index, steps), duplicate_keys=() if number else keys
            )
    if other is not None:
        raise UserError(
            f"{source}: document {other} isn't a Kubernetes object: apiVersion or kind is missing"
        )


def _is_unnamed(value: object) -> bool:
    """Whether a document is an object that lacks only its apiVersion or only its kind: kubectl refuses it.
    Values of a chart and settings of other programs have other parts."""
    named_by = text(value, "apiVersion") or text(value, "kind")
    return bool(named_by and text(value, "metadata", "name") and mapping(value, "spec"))


def _read(content: str) -> tuple[str, list[tuple[Any, tuple[str, ...]]]]:
    """The text as YAML, and the values of its documents. Raises BadDocument."""
    try:
        return content, _values(content)
    except BadDocument:
        documents = as_documents(content)
        if not documents:
            raise
        return documents, _values(documents)


def _values(content: str) -> list[tuple[Any, tuple[str, ...]]]:
    """The documents of a text, each with the clauses about its duplicate keys."""
    values: list[tuple[Any, tuple[str, ...]]] = []
    duplicates: list[str] = []
    for value in load_all(content, duplicates=duplicates):
        values.append((value, tuple(duplicates)))
        duplicates.clear()
    return values


def _items(value: Json, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The objects of a document, each with its path."""
    items = value.get("items")
    if text(value, "kind").endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            if isinstance(item, dict):
                yield from _items(item, (*at, "items", str(number)))
    else:
        yield at, value


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
