"""The metadata of every object: labels, annotations, the controlling owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from policies.kube.json import Json, mapping, maps


def labels_of(obj: Json) -> Mapping[str, str]:
    return mapping(obj, "metadata", "labels")


def annotations_of(obj: Json) -> Mapping[str, str]:
    return mapping(obj, "metadata", "annotations")


_ANNOTATIONS_SIZE: Final = 256 << 10
"""Bytes of all keys and values together: the API server refuses an object with more."""


def has_room(annotations: Mapping[str, Any], added: Mapping[str, str]) -> bool:
    """Whether annotations may be added to those that are there, without the object being refused."""
    size = 0
    for key, value in {**added, **annotations}.items():
        written = f"{key}{value}"
        size += len(written) if written.isascii() else len(written.encode(errors="surrogatepass"))
    return size <= _ANNOTATIONS_SIZE


def controller(obj: Json) -> Json | None:
    """The owner reference marked as controller."""
    for reference in maps(obj, "metadata", "ownerReferences"):
        if reference.get("controller") is True:
            return reference
    return None
