"""The controllers above an object, as far as the user may read them.

Anybody who creates a pod writes its ownerReference, so a reference counts only if its uid is the owner's,
the selector of a workload matches the pod's labels, and controllers of that kind create such objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from policies.kube.group_kinds import CRON_JOB, DEPLOYMENT, JOB, REPLICA_SET, GroupKind, kind_of
from policies.kube.json import Json, text
from policies.kube.metadata import controller, labels_of
from policies.kube.objects.reading import readable
from policies.kube.objects.workloads import PodController
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.discovery import Collection

_MAX_DEPTH: Final = 5
_MAX_CACHED: Final = 5_000
_CREATES: Final = {DEPLOYMENT: REPLICA_SET, CRON_JOB: JOB}
"""Kinds that never create pods, and what they create."""


class Owners:
    """Reads owners of the known kinds, each once."""

    def __init__(self, api: ApiServer, known: Sequence[Collection]) -> None:
        self._api, self._known = api, {each.kind: each for each in known}
        self._read: dict[tuple[GroupKind, str, str], Json | None] = {}

    async def above(self, obj: Json) -> list[Json]:
        """The controllers above an object, the direct owner first, as far as their kinds are known."""
        found: list[Json] = []
        below, owner = obj, controller(obj)
        while owner is not None and len(found) < _MAX_DEPTH:
            above = await self._one(owner, text(obj, "metadata", "namespace"))
            if above is None or text(above, "metadata", "uid") != text(owner, "uid"):
                break
            if kind_of(above) in _CREATES and kind_of(below) != _CREATES[kind_of(above)]:
                break
            if kind_of(above).group == DEPLOYMENT.group and not _selects(above, labels_of(obj)):
                break
            found.append(above)
            below, owner = above, controller(above)
        return found

    async def _one(self, owner: Json, namespace: str) -> Json | None:
        kind = kind_of(owner)
        collection = self._known.get(kind)
        if collection is None:
            return None
        key = kind, namespace, text(owner, "name")
        if key not in self._read:
            if len(self._read) > _MAX_CACHED:
                self._read.clear()
            path = paths.one(collection.api_version, collection.plural, text(owner, "name"), namespace)
            found = await self._api.get(path)
            head = {"apiVersion": collection.api_version, "kind": kind.kind}
            self._read[key] = None if found is None else {**head, **found}
        return self._read[key]


def _selects(workload: Json, labels: Mapping[str, str]) -> bool:
    found = readable(workload, PodController)
    return found is not None and found.selects(labels)
