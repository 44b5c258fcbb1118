"""Parsing durations and quantities."""

from __future__ import annotations

import re
from decimal import Decimal

from puller.quantities import MAX_CHARACTERS as MAX_CHARACTERS
from puller.quantities import decimal_of

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_MAX_SECONDS = 2**31 - 1
_MAX_BYTES = 2**63 - 1


def parse_duration(value: object) -> int:
    """Seconds from an integer, or from `90s`, `15m`, `24h`, `7d`, `1h30m`. Raises ValueError for others."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return _countable(value, _MAX_SECONDS)
    if isinstance(value, str) and 0 < len(value) <= MAX_CHARACTERS:
        match = _DURATION.fullmatch(value)
        if match:
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return _countable(((days * 24 + hours) * 60 + minutes) * 60 + seconds, _MAX_SECONDS)
        if value.isascii() and value.isdigit():
            return _countable(int(value), _MAX_SECONDS)
    raise ValueError(f"{shown(value)} is not a duration: use seconds, or for example 90s, 15m, 24h, 7d")


def whole_number(text: str | None, digits: int = 9) -> int | None:
    """The number that a text of at most so many digits writes; None for others."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= digits else None


def parse_quantity(value: object) -> Decimal:
    """A Kubernetes quantity (`500m`, `40Gi`, `1e3`, 2) as an exact number. Raises ValueError for others."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    number = decimal_of(value) if isinstance(value, str) else None
    if number is None:
        raise ValueError(f"{shown(value)} is not a quantity: use a number, or for example 500M, 40Gi")
    return number


def parse_bytes(value: object) -> int:
    """Bytes, rounded up, from a number or a quantity. Raises ValueError below zero."""
    quantity = parse_quantity(value)
    if not quantity.is_finite() or quantity < 0:
        raise ValueError(f"{shown(value)} is not a size: it must be zero or more")
    return _countable(int(quantity.to_integral_value(rounding="ROUND_CEILING")), _MAX_BYTES)


def bytes_or_zero(value: object) -> int:
    """Bytes from a number or a quantity; 0 for any other value."""
    try:
        return parse_bytes(value)
    except ValueError:
        return 0


def in_binary(size: int) -> str:
    """Bytes in words, in the units of Kubernetes: `512 MiB`, `1.5 GiB`."""
    return _in_units(size, 1 << 20, 1 << 10, ("MiB", "GiB"))


def in_decimal(size: int) -> str:
    """Bytes in words, in the units of models' pages: `250 MB`, `7.5 GB`."""
    return _in_units(size, 10**6, 1000, ("MB", "GB"))


def _in_units(size: int, small: int, step: int, units: tuple[str, str]) -> str:
    if size < small * step:
        return f"{size / small:.0f} {units[0]}"
    amount = size / (small * step)
    return f"{amount:.0f} {units[1]}" if amount >= 10 else f"{amount:.1f}".removesuffix(".0") + f" {units[1]}"


def shown(value: object) -> str:
    """A value quoted for a message, cut if it is long."""
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        return f"{value[: MAX_CHARACTERS - 1]!r}…"
    return repr(value)


def _countable(number: int, most: int) -> int:
    """The number if a field of the API can hold it."""
    if number > most:
        raise ValueError(f"the maximum is {most}")
    return number
