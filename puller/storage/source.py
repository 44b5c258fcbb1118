"""From a storage URI to the objects that make up the model.

A URI is that of a prefix (`m1` does not match `m10/…`) or of one object, which may be an archive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from puller.model_config import without_secrets
from puller.reasons import StatusReason
from puller.storage.base import Limits, StorageError, in_thread
from puller.storage.objects import RemoteObject, StoredContent, azure_account, selected

if TYPE_CHECKING:
    from puller.storage.webclient import WebClient


async def resolve(
    uri: str, files: tuple[str, ...], env: Mapping[str, str], limits: Limits, web: WebClient | None
) -> StoredContent:
    """The content of the model at `uri`, limited to the globs in `files`. `web`: for URIs that are
    `over_web`. Raises StorageError.

    The client libraries are imported by the first URI that needs them.
    """
    if web is not None and uri.startswith("hf://"):
        from puller.storage import hub

        return await _select(await hub.listing(uri, env, limits, web), files, limits)
    if web is not None and uri.startswith("oci://"):
        from puller.storage.oci import artifact

        found = await artifact(uri, env, limits, web)
        if found.layers:
            return replace(found, objects=tuple(item for item in found.objects if selected(item.path, files)))
        return replace(found, objects=(await _select(found.objects, files, limits)).objects)
    if web is not None:
        from puller.storage.web import web_object

        return await web_object(uri, web)
    from puller.storage import cloud
    from puller.storage.locate import locate

    found_in_cloud = await cloud.resolve(locate(uri, env, limits), limits)
    if isinstance(found_in_cloud, StoredContent):
        return found_in_cloud
    if not found_in_cloud:
        raise StorageError(
            StatusReason.NOT_FOUND, f"there is no object and no prefix at {without_secrets(uri)}"
        )
    return await _select(found_in_cloud, files, limits)


def over_web(uri: str) -> bool:
    """Whether the URI is of a web server, the Hugging Face hub or a registry."""
    return uri.startswith(("hf://", "oci://", "http://", "https://")) and not azure_account(uri)


async def _select(objects: Iterable[RemoteObject], files: tuple[str, ...], limits: Limits) -> StoredContent:
    """The selected objects, without directory placeholders."""
    stopped = threading.Event()  # many globs on many paths take a while
    return await in_thread(_selected, list(objects), files, limits, stopped.is_set, cancel=stopped.set)


def _selected(
    objects: list[RemoteObject], files: tuple[str, ...], limits: Limits, stopped: Callable[[], bool]
) -> StoredContent:
    parents: set[str] = set()
    for item in objects:
        parents.update(_parents(item.path))
        if len(parents) > limits.max_entries:
            raise StorageError(
                StatusReason.TOO_MANY_OBJECTS, f"they make more than {limits.max_entries} directories."
            )
    kept: list[RemoteObject] = []
    for item in objects:
        if stopped():
            raise StorageError(StatusReason.CANCELLED, "the model is no longer wanted.")
        if item.path in parents:
            if item.size:
                raise StorageError(
                    StatusReason.HOSTILE_PATH, f"{item.path!r} is both an object and a prefix of others."
                )
        elif selected(item.path, files):
            kept.append(item)
    if not kept:
        why = "no object matches the globs in `files`." if files else "there are no objects."
        raise StorageError(StatusReason.NOT_FOUND, why)
    return StoredContent(tuple(kept))


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rsplit("/", 1)[0]
        yield path
