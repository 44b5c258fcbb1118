"""Durations and quantities."""

from collections.abc import Callable
from decimal import Decimal

import pytest

from policies.kube.quantities import in_binary, in_decimal, parse_bytes, parse_duration, parse_quantity

DURATIONS: dict[object, int] = {
    0: 0,
    90: 90,
    "90": 90,
    "90s": 90,
    "15m": 900,
    "24h": 86400,
    "7d": 604800,
    "1h30m": 5400,
}
QUANTITIES: dict[object, str] = {
    **{"1": "1", 2: "2", 1.5: "1.5", "500m": "0.5", "1k": "1000", "1Ki": "1024", "40Gi": "42949672960"},
    **{"1.5G": "1500000000", "1e3": "1000", "1E-2": "0.01", ".5": "0.5", "2E": "2000000000000000000"},
}


def test_durations_and_quantities() -> None:
    assert {text: parse_duration(text) for text in DURATIONS} == DURATIONS
    assert {text: parse_quantity(text) for text in QUANTITIES} == {
        text: Decimal(value) for text, value in QUANTITIES.items()
    }


LONG = ["9" * 20_000 + "x", "9" * 20_000, "1" * 10_000 + "." + "1" * 10_000 + "q"]


@pytest.mark.parametrize(
    ("parse", "texts", "message"),
    [
        (
            parse_duration,
            ["", "s", "-1", -1, True, 1.5, None, "1x", "30m1h", " 5s", "\u0663s"],
            "not a duration",
        ),
        (
            parse_quantity,
            ["", "Gi", "1 Gi", "1GiB", "1K", True, None, "1e9999", "--1", "\u0661"],
            "not a quantity",
        ),
        (parse_bytes, ["-1", float("nan"), float("inf")], "not a size"),
        (parse_duration, [2**31, "2147483648", "30000d", "9" * 60], "the maximum is"),
        (parse_bytes, [2**63, "8Ei", "9e400", "9" * 60], "the maximum is"),
        (parse_duration, LONG, "… is not a"),
        (parse_quantity, LONG, "… is not a"),
        (parse_bytes, LONG, "… is not a"),
    ],
)
def test_malformed_and_large_values(
    parse: Callable[[object], object], texts: list[object], message: str
) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message) as refused:
            parse(text)
        assert len(str(refused.value)) < 200, "a long text is not repeated"


def test_bytes_are_rounded_up() -> None:
    assert [parse_bytes("1500m"), parse_bytes("1Gi")] == [2, 2**30]


def test_no_size_is_shown_as_zero() -> None:
    assert [in_binary(size) for size in (2**29, 3 * 2**29, 2**33, 100 * 2**30)] == [
        "512 MiB",
        "1.5 GiB",
        "8 GiB",
        "100 GiB",
    ]
    assert [in_decimal(size) for size in (25 * 10**7, 10**9, 7 * 2**30, 16 * 10**9)] == [
        "250 MB",
        "1 GB",
        "7.5 GB",
        "16 GB",
    ]
