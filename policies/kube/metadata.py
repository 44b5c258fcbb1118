"""Labels, annotations and the controller of an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from policies.kube.json import Json, dig, mapping, maps

HELM_HOOK: Final = "helm.sh/hook"
ARGO_HOOK: Final = "argocd.argoproj.io/hook"
"""Annotations of objects that Helm and Argo CD apply at a certain time of a release, and delete."""


def labels_of(obj: Json) -> Mapping[str, str]:
    return mapping(obj, "metadata", "labels")


def annotations_of(obj: Json) -> Mapping[str, str]:
    return mapping(obj, "metadata", "annotations")


_ANNOTATIONS_SIZE: Final = 256 << 10
"""The API server's limit for the bytes of all keys and values."""


def has_room(annotations: Mapping[str, Any], added: Mapping[str, str]) -> bool:
    """Whether the API server accepts an object with these annotations and the added ones."""
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


LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def last_applied(obj: Json) -> Json | None:
    """The manifest that `kubectl apply` keeps in the object, if it does."""
    try:
        found = orjson.loads(annotations_of(obj).get(LAST_APPLIED, ""))
    except (orjson.JSONDecodeError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def applied(obj: Json, *steps: str | int) -> Any:
    """The value that the author of an object applied at a path, or None: by server-side apply or by `kubectl
    apply`."""
    fields = ("fieldsV1", *(f"f:{step}" for step in steps))
    managed = maps(obj, "metadata", "managedFields")
    if any(each.get("operation") == "Apply" and dig(each, *fields) is not None for each in managed):
        return dig(obj, *steps)
    return dig(last_applied(obj), *steps)


def written(obj: Json, *steps: str | int) -> Any:
    """What `applied` returns, or the value in a file, where every value is written.

    What `kubectl create` sent cannot be distinguished from a default of the API server.
    """
    found = applied(obj, *steps)
    if found is None and last_applied(obj) is None and not maps(obj, "metadata", "managedFields"):
        return dig(obj, *steps)
    return found
