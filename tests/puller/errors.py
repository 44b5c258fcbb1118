"""Expected errors of storage and of model servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from puller.reasons import StepError


@contextmanager
def refused(reason: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[StepError]]:
    """The block raises a StorageError or ServerError with this reason."""
    with pytest.raises(StepError, match=match) as caught:
        yield caught
    assert caught.value.reason == reason
