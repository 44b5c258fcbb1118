"""Which objects the patches of a directory's kustomizations change: their files show only a part of the
containers that run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from policies.kube.json import Json, mapping, maps, strings, text
from policies.kube.yaml_text import BadDocument, load_all
from webhook.manifests.rendered import KUSTOMIZATIONS, at, loaded, visible

_CONTAINERS: Final = "containers"
"""In the text of a patch that changes containers, also in the paths of a JSON patch."""


def patched(directory: Path) -> dict[tuple[str, str], Path]:
    """The kind and the name of each object whose containers a patch changes, and the kustomization; an empty
    name is any."""
    found: dict[tuple[str, str], Path] = {}
    for file in visible(directory, KUSTOMIZATIONS):
        for place in _of(file, loaded(file)):
            found.setdefault(place, file)
    return found


def _of(file: Path, obj: Json) -> Iterator[tuple[str, str]]:
    for written in strings(obj, "patchesStrategicMerge"):
        yield from _targets(_content(file, written), {})
    for field in ("patches", "patchesJson6902"):
        for each in maps(obj, field):
            path = text(each, "path")
            content = _content(file, path) if path else text(each, "patch")
            yield from _targets(content, mapping(each, "target"))


def _content(file: Path, written: str) -> str:
    """A patch that is written in a kustomization, or the text of its file."""
    if "\n" in written:
        return written
    try:
        return at(file, written).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _targets(content: str, target: Json) -> Iterator[tuple[str, str]]:
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
