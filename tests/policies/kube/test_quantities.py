"""Durations and quantities."""

from collections.abc import Callable
from decimal import Decimal

import pytest

from policies.kube.quantities import parse_bytes, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0),
        (90, 90),
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("24h", 86400),
        ("7d", 604800),
        ("1h30m", 5400),
    ],
)
def test_durations(text: object, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", -1, True, 1.5, None, "1x", "30m1h", " 5s", "\u0663s"])
def test_not_a_duration(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        (2, "2"),
        (1.5, "1.5"),
        ("500m", "0.5"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("40Gi", str(40 * 2**30)),
        ("1.5G", "1500000000"),
        ("1e3", "1000"),
        ("1E-2", "0.01"),
        (".5", "0.5"),
        ("2E", str(2 * 10**18)),
    ],
)
def test_quantities(text: object, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GiB", "1K", True, None, "1e9999", "--1", "\u0661"])
def test_not_a_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_bytes_are_whole_and_not_negative() -> None:
    assert parse_bytes("1500m") == 2
    assert parse_bytes("1Gi") == 2**30
    for bad in ("-1", float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not a"):
            parse_bytes(bad)


@pytest.mark.parametrize("text", [2**31, "2147483648", "30000d", "9" * 60])
def test_a_duration_fits_the_fields_of_the_api(text: object) -> None:
    with pytest.raises(ValueError, match="the maximum is"):
        parse_duration(text)


@pytest.mark.parametrize("text", [2**63, "8Ei", "9e400", "9" * 60])
def test_bytes_fit_the_fields_of_the_api(text: object) -> None:
    with pytest.raises(ValueError, match="the maximum is"):
        parse_bytes(text)


@pytest.mark.parametrize("parse", [parse_duration, parse_quantity, parse_bytes])
@pytest.mark.parametrize("text", ["9" * 20_000 + "x", "9" * 20_000, "1" * 10_000 + "." + "1" * 10_000 + "q"])
def test_a_long_text_is_refused_unread_and_not_repeated(parse: Callable[[object], object], text: str) -> None:
    with pytest.raises(ValueError, match="… is not a") as refused:
        parse(text)
    assert len(str(refused.value)) < 200
