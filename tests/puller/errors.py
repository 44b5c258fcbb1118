"""Expected errors of storage and of model servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from puller.servers.base import ServerError
from puller.storage.base import StorageError

Caught = pytest.ExceptionInfo[StorageError | ServerError]


@contextmanager
def refused(
    reason: str, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[StorageError | ServerError]]:
    """The block raises a StorageError or ServerError with this reason."""
    with pytest.raises((StorageError, ServerError), match=match) as caught:
        yield caught
    assert caught.value.reason == reason
