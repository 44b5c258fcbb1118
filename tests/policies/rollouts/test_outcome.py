"""The outcome of a rollout, compared with what the controller's loop does."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from policies.rollouts.rollouts import RollingUpdate, RolloutOutcome, outcome
from tests.policies.rollouts.deployment_controller import roll_out


@st.composite
def updates(draw: st.DrawFn) -> RollingUpdate:
    replicas = draw(st.integers(1, 12))
    surge = draw(st.integers(0, 6))
    return RollingUpdate(replicas, surge, draw(st.integers(0 if surge else 1, replicas)))


ORDERS = st.lists(st.booleans(), min_size=1, max_size=6)


@given(updates(), st.integers(0, 20), ORDERS)
def test_the_outcome_is_that_of_the_controller(update: RollingUpdate, room: int, order: list[bool]) -> None:
    completes, _, _ = roll_out(update, room, cycle(order))
    assert completes is (outcome(update, room) is RolloutOutcome.COMPLETES)


@given(updates(), st.integers(0, 20), ORDERS)
def test_a_rollout_that_is_short_has_too_few_places_for_its_replicas(
    update: RollingUpdate, room: int, order: list[bool]
) -> None:
    _, _, most = roll_out(update, room, cycle(order))
    assert most <= update.replicas + update.surge
    assert (outcome(update, room) is RolloutOutcome.SHORT) is (room < update.replicas)


@given(updates(), st.integers(0, 8), ORDERS)
def test_available_pods_stay_within_the_bound_if_all_have_room(
    update: RollingUpdate, more: int, order: list[bool]
) -> None:
    _, least, _ = roll_out(update, update.replicas + more, cycle(order))
    assert least >= update.replicas - update.unavailable


@given(updates(), st.integers(0, 20))
def test_room_for_half_a_pod_is_none(update: RollingUpdate, room: int) -> None:
    assert outcome(update, room + 0.5) is outcome(update, room)


@given(st.integers(1, 12), st.integers(0, 20))
def test_without_surge_a_rollout_completes_wherever_all_replicas_run(replicas: int, more: int) -> None:
    assert outcome(RollingUpdate(replicas, 0, 1), replicas + more) is RolloutOutcome.COMPLETES
