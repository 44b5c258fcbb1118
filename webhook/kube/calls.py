"""Protocols for calls of the API server, their errors, and the content types of patches. Cheap to import."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from policies.kube.json import Json

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
JSON_MERGE: Final = "application/merge-patch+json"

Sleep = Callable[[float], Awaitable[object]]
Clock = Callable[[], float]
"""Monotonic seconds."""


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


class ApiError(Exception):
    """The API server answered with an error; `status` is 0 without a valid answer.

    `reason` is that of the Status object (NotFound, Conflict, AlreadyExists, Expired …), or our own:
    Unreachable, BadAnswer (malformed), TooLarge, BadPath (no request was sent). `resume` is the token that
    continues an expired list with a newer snapshot.
    """

    def __init__(self, status: int, reason: str, message: str, resume: str = "") -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.resume = resume


def is_missing_right(error: ApiError) -> bool:
    """Whether the authorizer refused the call. Quotas and namespaces in deletion cause a 403, too."""
    return error.status == 403 and error.message.partition(" is forbidden: ")[2].startswith("User ")
