"""The calls of the API server that its users share, and the content types of patches. Light to import."""

from __future__ import annotations

from typing import Final, Protocol

from policies.kube.json import Json

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
JSON_MERGE: Final = "application/merge-patch+json"


class Writes(Protocol):
    """Writes; each may raise ApiError."""

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = ...) -> bool:
        """Write or delete an object; False if another writer came first (it is there, changed or gone)."""
        ...


class Calls(Writes, Protocol):
    """Consistent reads and compare-and-swap; each may raise ApiError."""

    def now(self) -> float:
        """Seconds since the epoch by the API server's clock, from its last answer."""
        ...

    async def get(self, path: str) -> Json | None: ...
