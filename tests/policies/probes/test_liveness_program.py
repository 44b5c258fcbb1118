"""What is read of the liveness program in a probe, which anybody may write."""

from __future__ import annotations

import pytest

from policies.probes.liveness_program import is_program, plan_in


@pytest.mark.parametrize("plan", ["[" * 100_000, "1" * 5000, "[1]", '"text"', "{", '{"a": NaN'])
def test_a_forged_plan_is_empty(plan: str) -> None:
    command = ["sh", "-c", "exec", "User-Agent: mlchassis-liveness", "8000", "http", "0", "/health", plan]
    probe = {"exec": {"command": command}}
    assert is_program(probe)
    assert plan_in(probe) == {}
