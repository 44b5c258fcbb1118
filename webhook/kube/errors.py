"""Errors of calls to the API server."""

from __future__ import annotations


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
