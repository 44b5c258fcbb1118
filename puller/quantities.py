"""Kubernetes quantities (`500m`, `40Gi`, `1e3`) as exact numbers: the only parser in the project.

Law: pure. Standard library only; the length of the text is limited.
Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

MAX_CHARACTERS: Final = 64
"""Longer quantities are refused."""

_QUANTITY: Final = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?", re.ASCII
)
_SUFFIX: Final[dict[str | None, Decimal]] = {
    None: Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("num", -3)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def decimal_of(text: str) -> Decimal | None:
    """The exact number of a quantity; None if the API server would refuse the text."""
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if match is None:
        return None
    number, suffix = match.groups()
    return Decimal(number) * (_SUFFIX[suffix] if suffix in _SUFFIX else Decimal(f"1{suffix}"))


def human(size: int) -> str:
    """1610612736 -> "1.5 GiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
