"""Errors of calls to the API server."""

from __future__ import annotations


class ApiError(Exception):
    """The API server answered with an error, or did not answer, or not as one (`status` 0).

    `reason` is the Status object's machine word (NotFound, Conflict, AlreadyExists, Expired …), or our own:
    Unreachable, BadAnswer (it can't be read), TooLarge (it is longer than the limit), BadPath (no request was
    sent). `resume`: continues an expired list with the objects of now.
    """

    def __init__(self, status: int, reason: str, message: str, resume: str = "") -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.resume = resume


def is_missing_right(error: ApiError) -> bool:
    """Whether the API server's authorizer refuses. A quota, or a namespace that is going, is 403, too."""
    return error.status == 403 and error.message.partition(" is forbidden: ")[2].startswith("User ")
