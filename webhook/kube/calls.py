"""Protocols for calls of the API server, and the content types of patches. Cheap to import."""

from __future__ import annotations

from typing import Final, Protocol

from policies.kube.json import Json

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
JSON_MERGE: Final = "application/merge-patch+json"


class Writes(Protocol):
    """Writes that may raise ApiError."""

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = ...) -> bool:
        """Write or delete an object; False if another writer created, changed or deleted it before."""
        ...


class Calls(Writes, Protocol):
    """Consistent reads and compare-and-swap that may raise ApiError."""

    def now(self) -> float:
        """Seconds since the epoch by the API server's clock, from its last answer."""
        ...

    async def get(self, path: str) -> Json | None: ...
