"""Directories for kustomize and Helm, whose files are parts of objects: the result of building is reviewed.

A patch or a template alone is never an object. If a directory cannot be built here, one sentence says what to
pipe, and its whole objects are read only if nothing patches them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.names import shortened
from policies.kube.yaml_text import BadDocument, load_all
from webhook.errors import UserError
from webhook.manifests.api_fields import newest_kubernetes

KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
CHART: Final = "Chart.yaml"
MOST_BUILDS: Final = 100
"""Directories that one command builds."""
SECONDS: Final = 30
"""The longest time to build one directory."""
_RELEASE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,51}[a-z0-9])?")
"""A name that Helm accepts for a release, of at most 53 characters:
https://github.com/helm/helm/blob/v3.22.0/pkg/chartutil/validate_name.go"""
_NEWER: Final = "chart requires kubeVersion"
"""In helm's error about a chart for a newer Kubernetes than the one that it assumes."""
_LOGGED: Final = re.compile(r'^E\d.*?\berr=(?:"|<(?: |$))')
"""The start of an error that kubectl logs."""
_INFLATES: Final = "must specify --enable-helm"
"""In the error of kustomize about a chart, which it only renders if told so."""
_OUTSIDE: Final = "is not in or below"
"""In the error of kustomize about a file outside of the directory, which it only reads if told so."""
_NO_RESTRICTION: Final = ("--load-restrictor=LoadRestrictionsNone",)
_HINT: Final = "Use --debug flag"
"""The start of the last line of helm's errors, which isn't part of the reason."""
_PATHS: Final = ("resources", "bases", "components")
_PARTS: Final = (
    "patchesStrategicMerge",
    "transformers",
    "generators",
    "configurations",
    "crds",
    "validators",
)
_PLAIN: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "metadata",
        "resources",
        "bases",
        "namespace",
        "configMapGenerator",
        "secretGenerator",
    }
    | {"generatorOptions", "sortOptions", "buildMetadata"}
)
"""Fields of a kustomization that leave its objects as they are written, but for the namespace."""
_WITH_PATH: Final = ("patches", "patchesJson6902", "replacements")


class RenderedSource(Struct, frozen=True):
    """A directory whose result is reviewed instead of its files."""

    file: Path
    """Its kustomization or Chart.yaml."""
    tools: tuple[tuple[str, ...], ...]
    """Commands of different programs, each of which builds it; empty if it can't be built alone."""
    parts: frozenset[Path]
    """The files that are no objects: patches, templates, values."""
    files: frozenset[Path]
    """All files that the result contains, parts included."""
    remote: str = ""
    """An address that building it would download from."""
    patched: bool = False
    """Whether it changes its objects, so that they are not judged as they are written."""

    def build(self) -> str:
        """The manifests that it makes; empty for a library chart.

        UserError if it can't be built: the message says what to pipe, or that this is a component, which only
        the kustomization that uses it can build.
        """
        if not self.tools and self.files == self.parts:
            return ""
        if not self.tools:
            raise UserError(f"{self.file}: not reviewed, because no kustomization here uses this component")
        if self.remote:
            raise self._left_out(f"it refers to {self.remote}, and `chassis review` downloads nothing")
        for command in self.tools:
            if shutil.which(command[0]) is None:
                continue
            done = self._run(command)
            if done.returncode and _NEWER in done.stderr:
                done = self._run((*command, "--kube-version", newest_kubernetes()))
            if done.returncode:
                more = [*(_NO_RESTRICTION if _OUTSIDE in done.stderr else ())]
                more += ["--enable-helm"] if _INFLATES in done.stderr else []
                raise self._left_out(f"{command[0]} failed: {_reason(done.stderr)}", more)
            return done.stdout
        names = " and ".join(command[0] for command in self.tools)
        raise self._left_out(f"{names} {'is' if len(self.tools) == 1 else 'are'} not installed")

    def _run(self, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(  # noqa: S603 - the command is one of three of this module
                command, capture_output=True, timeout=SECONDS, check=False, text=True
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise self._left_out(f"{command[0]} failed: {error}") from None

    def _left_out(self, why: str, options: Iterable[str] = ()) -> UserError:
        return UserError(
            f"{self.file}: its rendered result was not reviewed ({why}); render it and pipe it: "
            f"{' '.join((*self.tools[0], *options))} | chassis review -"
        )


def _reason(printed: str) -> str:
    """Why a command failed: what it printed from its error on, else its last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_HINT)] or ["it printed no reason"]
    if lines[-1] == ">":  # kubectl logs an error of several lines between angle brackets
        lines.pop()
    starts = (at for at, line in enumerate(lines) if line.lower().startswith("error:") or _LOGGED.match(line))
    first = next(starts, len(lines) - 1)
    return shortened(_LOGGED.sub("", " ".join(lines[first:])), 1000)


def sources(directory: Path, values: Iterable[str] = ()) -> list[RenderedSource]:
    """The charts and kustomizations below a directory, without those that another one contains.

    `values`: files with values for the charts.
    """
    charts = list(_charts(directory, [f"--values={file}" for file in values]))
    inside = frozenset(file for chart in charts for file in chart.files)
    return [*charts, *_kustomizations(directory, inside)]


# --- Helm ------------------------------------------------------------------------------------------


def _charts(directory: Path, flags: Iterable[str]) -> Iterator[RenderedSource]:
    roots = {file.parent for file in visible(directory, (CHART,))}
    roots -= {root for root in roots if _is_subchart(root, roots)}
    charts = {root: loaded(root / CHART) for root in sorted(roots)}
    several = sum(text(chart, "type") != "library" for chart in charts.values()) > 1
    for root, chart in charts.items():
        files = frozenset(
            file for file in root.rglob("*") if file.is_file() and _chart_of(file, roots) == root
        )
        # Two releases of one name would share the objects whose names begin with it.
        name = text(chart, "name")
        release = name if several and _RELEASE.fullmatch(name) else "release"
        command = ("helm", "template", release, str(root), *flags)
        library = text(chart, "type") == "library"
        yield RenderedSource(root / CHART, () if library else (command,), files, files)


def _is_subchart(root: Path, charts: Container[Path]) -> bool:
    """Whether Helm renders a chart with the one around it: it is in `charts` of that one."""
    return any(parent.name == "charts" and parent.parent in charts for parent in root.parents)


def _chart_of(file: Path, charts: Container[Path]) -> Path | None:
    """The innermost chart that contains a file."""
    return next((parent for parent in file.parents if parent in charts), None)


# --- kustomize -------------------------------------------------------------------------------------


def _kustomizations(directory: Path, inside: frozenset[Path]) -> Iterator[RenderedSource]:
    found = [file for file in visible(directory, KUSTOMIZATIONS) if file not in inside]
    objects = {file: loaded(file) for file in found}
    contained = {
        other for file in found for other in map(kustomization_in, _targets(file, objects[file])) if other
    }
    reached: set[Path] = set()
    # Kustomizations that contain each other come last. The error of kubectl names them.
    for file in sorted(found, key=contained.__contains__):
        if file in contained and file in reached:
            continue
        parts, files, remote, patched = _closure(file)
        reached |= parts
        root = str(file.parent)
        if text(objects[file], "kind") == "Component":
            yield RenderedSource(file, (), parts, files if patched else parts, patched=patched)
            continue
        tools = (("kubectl", "kustomize", root), ("kustomize", "build", root))
        yield RenderedSource(file, tools, parts, files, remote, patched)


def _closure(root: Path) -> tuple[frozenset[Path], frozenset[Path], str, bool]:
    """The parts and all files of a kustomization and those that it refers to, one remote address, and whether
    it changes its objects."""
    parts: set[Path] = set()
    files: set[Path] = set()
    remote, patched, todo = "", False, [root]
    while todo:
        file = todo.pop()
        if file in files:
            continue
        files.add(file)
        parts.add(file)
        obj = loaded(file)
        parts.update(_parts(file, obj))
        patched = patched or not _PLAIN.issuperset(obj)
        for written in _written(obj):
            if _is_remote(written):
                remote = remote or written
        for target in _targets(file, obj):
            inner = kustomization_in(target)
            if inner is None:
                files.add(target)
            else:
                todo.append(inner)
    return frozenset(parts), frozenset(files | parts), remote, patched


def _written(obj: Json) -> Iterator[str]:
    for field in _PATHS:
        yield from strings(obj, field)


def _is_remote(written: str) -> bool:
    return "://" in written or "?ref=" in written or written.startswith(("github.com/", "git@"))


def _targets(file: Path, obj: Json) -> Iterator[Path]:
    """The files and directories that a kustomization contains."""
    for written in _written(obj):
        if not _is_remote(written):
            yield at(file, written)


def _parts(file: Path, obj: Json) -> Iterator[Path]:
    """The files of a kustomization that are no objects."""
    for field in _PARTS:
        yield from (at(file, each) for each in strings(obj, field) if "\n" not in each)
    for field in _WITH_PATH:
        yield from (at(file, text(each, "path")) for each in maps(obj, field) if text(each, "path"))
    for field in ("configMapGenerator", "secretGenerator"):
        for each in maps(obj, field):
            yield from (at(file, named.rpartition("=")[2]) for named in strings(each, "files"))
    if text(mapping(obj, "openapi"), "path"):
        yield at(file, text(mapping(obj, "openapi"), "path"))


def at(file: Path, written: str) -> Path:
    """A path of a kustomization, without `..`, so that two ways to a file are equal."""
    found: list[str] = []
    for part in (file.parent / written).parts:
        if part == ".." and found and found[-1] not in ("..", "/"):
            found.pop()
        else:
            found.append(part)
    return Path(*found)


def kustomization_in(directory: Path) -> Path | None:
    """The file of kustomize in a directory, if there is one."""
    try:
        return next((file for name in KUSTOMIZATIONS if (file := directory / name).is_file()), None)
    except OSError:  # a name that is too long
        return None


# --- both ------------------------------------------------------------------------------------------


def visible(directory: Path, names: Iterable[str]) -> list[Path]:
    """The files with one of the names below a directory, in order, without hidden ones."""
    return sorted(
        file
        for name in names
        for file in directory.rglob(name)
        if not any(part.startswith(".") for part in file.relative_to(directory).parts)
    )


def loaded(file: Path) -> Json:
    """The first document of a file; an empty map if there is none."""
    try:
        value = next(iter(load_all(file.read_text(encoding="utf-8"))), None)
    except (BadDocument, OSError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


# --- patches --------------------------------------------------------------------------------------


_CONTAINERS: Final = "containers"
"""In the text of a patch that changes containers, also in the paths of a JSON patch."""


def patched(directory: Path) -> dict[tuple[str, str], Path]:
    """The kind and the name of each object whose containers a patch changes, and the kustomization; an empty
    name is any."""
    found: dict[tuple[str, str], Path] = {}
    for file in visible(directory, KUSTOMIZATIONS):
        for place in _patches_of(file, loaded(file)):
            found.setdefault(place, file)
    return found


def _patches_of(file: Path, obj: Json) -> Iterator[tuple[str, str]]:
    for written in strings(obj, "patchesStrategicMerge"):
        yield from _patched_by(_patch_text(file, written), {})
    for field in ("patches", "patchesJson6902"):
        for each in maps(obj, field):
            path = text(each, "path")
            content = _patch_text(file, path) if path else text(each, "patch")
            yield from _patched_by(content, mapping(each, "target"))


def _patch_text(file: Path, written: str) -> str:
    """A patch that is written in a kustomization, or the text of its file."""
    if "\n" in written:
        return written
    try:
        return at(file, written).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _patched_by(content: str, target: Json) -> Iterator[tuple[str, str]]:
    if _CONTAINERS not in content:
        return
    if target:
        yield text(target, "kind"), text(target, "name")
        return
    try:
        objects: list[Any] = list(load_all(content))
    except BadDocument:
        return
    for obj in objects:
        if isinstance(obj, dict):
            yield text(obj, "kind"), text(obj, "metadata", "name")
