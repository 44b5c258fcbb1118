"""Tables of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row, with columns as wide as their widest cell; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False))
        yield "  ".join([*cells, row[-1]])
