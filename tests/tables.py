"""Tables of cheap cases that one test goes through.

pytest takes 4 CPU milliseconds to collect a test in each process, hand it out and report it: longer than most
cases of such a table take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest

Decorated: TypeAlias = Callable[[Callable[..., None]], Callable[[], None]]

MAX_SHOWN = 300
"""Characters of a case in the report of its failure."""


def table(names: str | tuple[str, ...], cases: Iterable[Any]) -> Decorated:
    """As `pytest.mark.parametrize` for a test without fixtures. Every case that fails is reported."""
    arguments = names.replace(",", " ").split() if isinstance(names, str) else names
    rows = list(cases)
    assert rows, "a table without cases would hold nothing"

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def whole() -> None:
            failures = []
            for row in rows:
                values = row.values if hasattr(row, "marks") else row if len(arguments) > 1 else (row,)
                try:
                    test(**dict(zip(arguments, values, strict=True)))
                except (Exception, pytest.fail.Exception) as failure:
                    failure.add_note(f"in the case {values!r:.{MAX_SHOWN}}")
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} cases fail", failures)

        whole.__name__, whole.__doc__, whole.__module__ = test.__name__, test.__doc__, test.__module__
        return whole

    return decorate
