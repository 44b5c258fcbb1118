"""The figures of earlier reviews next to those of now: `--before FILE`, written by `--statistics -o json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import orjson
from msgspec import Struct

from webhook.errors import UserError


class Figures(Struct, frozen=True):
    """The counts of one review of many objects."""

    made: datetime
    objects: int
    denied: int
    """Objects that would be refused."""
    warnings: Mapping[str, int]
    """By rule."""
    refusals: Mapping[str, int]
    """By rule."""

    @property
    def findings(self) -> Counter[str]:
        return Counter(self.warnings) + Counter(self.refusals)


class RuleTrend(NamedTuple):
    """A rule with another number of findings than before."""

    rule: str
    before: int
    now: int


class ReviewHistory(Struct, frozen=True):
    """Reviews in the order of their time, the last one that of the report."""

    reviews: Sequence[Figures]

    @property
    def better(self) -> list[RuleTrend]:
        return sorted(self._changes(-1), key=lambda each: each.now - each.before)

    @property
    def worse(self) -> list[RuleTrend]:
        return sorted(self._changes(1), key=lambda each: each.before - each.now)

    def _changes(self, sign: int) -> Iterable[RuleTrend]:
        first, last = self.reviews[0].findings, self.reviews[-1].findings
        for rule in sorted({*first, *last}):
            if (last[rule] - first[rule]) * sign > 0:
                yield RuleTrend(rule, first[rule], last[rule])


def earlier(paths: Iterable[str]) -> list[Figures]:
    """The figures in files. Raises UserError."""
    return [_figures(path) for path in paths]


def _figures(path: str) -> Figures:
    try:
        read = orjson.loads(Path(path).read_bytes())
        return Figures(
            datetime.fromisoformat(read["made"]),
            int(read["objects"]),
            int(read["refusals"]["objects"]),
            {rule: int(each["count"]) for rule, each in read["warnings"]["byRule"].items()},
            {rule: int(each["count"]) for rule, each in read["refusals"]["byRule"].items()},
        )
    except OSError as error:
        raise UserError(f"--before {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(
            f"--before {path}: this file doesn't have the figures of a review; write them with "
            "--statistics -o json"
        ) from None
