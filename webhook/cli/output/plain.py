"""Tables and JSON without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from policies.kube.printable import printable, printable_json


def as_json(value: Any) -> str:
    """Indented JSON with a final line end."""
    return printable_json(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()) + "\n"


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A header and a line for each row; a column is as wide as its widest cell."""
    cells = [[name.upper() for name in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"


def plural(count: int, one: str, several: str = "") -> str:
    """A number with its noun, such as `2 pods`."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
