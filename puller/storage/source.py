"""What a storage URI holds: the list of objects that make up a model.

A URI names a prefix (all objects below it, and none of a sibling whose name only starts alike), or one
object, which may be an archive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from puller.reasons import Reason
from puller.spec import without_secrets
from puller.storage.base import Limits, StorageError, in_thread
from puller.storage.objects import RemoteObject, Source, azure_account, wanted
from puller.store import reserved

if TYPE_CHECKING:
    from puller.storage.webclient import WebClient


async def resolve(
    uri: str, files: tuple[str, ...], env: Mapping[str, str], limits: Limits, web: WebClient | None
) -> Source:
    """List what `uri` holds, narrowed to the globs in `files`. `web`: there for those that are `over_web`.
    Raises StorageError.

    The clients of the clouds, and of the web, are imported by the first URI that needs them.
    """
    if web is not None and uri.startswith("hf://"):
        from puller.storage import hub

        return await _tree(await hub.listing(uri, env, limits, web), files, limits)
    if web is not None and uri.startswith("oci://"):
        from puller.storage.oci import artifact

        found = await artifact(uri, env, limits, web)
        if found.layers:
            kept = (item for item in found.objects if wanted(item.path, files) and not reserved(item.path))
            return replace(found, objects=tuple(kept))
        return replace(found, objects=(await _tree(list(found.objects), files, limits)).objects)
    if web is not None:
        from puller.storage.web import page

        return await page(uri, web)
    from puller.storage import cloud
    from puller.storage.locate import locate

    held = await cloud.held(locate(uri, env, limits), limits)
    if isinstance(held, Source):
        return held
    if not held:
        raise StorageError(
            Reason.NOT_FOUND, f"neither an object nor a prefix is there: {without_secrets(uri)}"
        )
    return await _tree(held, files, limits)


def over_web(uri: str) -> bool:
    """Whether what the URI names is at a plain web server, at the hub or in a registry."""
    return uri.startswith(("hf://", "oci://", "http://", "https://")) and not azure_account(uri)


async def _tree(objects: list[RemoteObject], files: tuple[str, ...], limits: Limits) -> Source:
    """The objects of a prefix, without directory placeholders and our own kind of notes."""
    stopped = threading.Event()  # many globs on many paths take a while
    return await in_thread(partial(_picked, objects, files, limits, stopped.is_set), stopped.set)


def _picked(
    objects: list[RemoteObject], files: tuple[str, ...], limits: Limits, stopped: Callable[[], bool]
) -> Source:
    parents: set[str] = set()
    for item in objects:
        parents.update(_parents(item.path))
        if len(parents) > limits.max_entries:
            raise StorageError(
                Reason.TOO_MANY_OBJECTS, f"they make more than {limits.max_entries} directories."
            )
    kept: list[RemoteObject] = []
    for item in objects:
        if stopped():
            raise StorageError(Reason.CANCELLED, "the model is no longer wanted.")
        if item.path in parents:
            if item.size:
                raise StorageError(
                    Reason.HOSTILE_PATH, f"{item.path!r} is both an object and a prefix of others."
                )
        elif wanted(item.path, files) and not reserved(item.path):
            kept.append(item)
    if not kept:
        raise StorageError(
            Reason.NOT_FOUND,
            "no object is picked by the globs in `files`." if files else "there are no objects.",
        )
    return Source(tuple(kept))


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rsplit("/", 1)[0]
        yield path
