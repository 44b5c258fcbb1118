"""A probe's numbers are the API server's: missing fields, and 0, are the defaults."""

from typing import Any

import pytest

from policies.kube import probe_defaults


@pytest.mark.parametrize(
    ("probe", "give_up", "startup_deadline"),
    [
        ({}, 30, 30),
        (None, 30, 30),
        ({"periodSeconds": 0, "failureThreshold": 0, "initialDelaySeconds": 0}, 30, 30),
        ({"periodSeconds": 5, "failureThreshold": 4, "initialDelaySeconds": 7}, 20, 27),
        ({"periodSeconds": "5", "initialDelaySeconds": True}, 30, 30),
    ],
)
def test_budgets(probe: Any, give_up: int, startup_deadline: int) -> None:
    assert (probe_defaults.give_up(probe), probe_defaults.startup_deadline(probe)) == (
        give_up,
        startup_deadline,
    )


def test_a_timeout_of_zero_is_a_second() -> None:
    probes: list[Any] = [{}, {"timeoutSeconds": 0}, {"timeoutSeconds": 3}]
    assert [probe_defaults.timeout(probe) for probe in probes] == [1, 1, 3]
