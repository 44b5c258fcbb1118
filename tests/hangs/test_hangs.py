"""Servers that hung, and servers that were only silent, replayed against the livenessProbe that they get."""

from __future__ import annotations

import zlib
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.probes.preset import known_presets
from tests.hangs.replay import (
    ACCEPTED,
    CONTAINERS,
    LONGEST_JITTER,
    WAITING,
    Phase,
    Replay,
    cases,
    probe_of,
)
from tests.tables import table

BY_NAME = {case.name: case for case in cases()}


@table(("name", "jitter"), product(BY_NAME, (0, LONGEST_JITTER)))
def test_case(name: str, jitter: int) -> None:
    case = BY_NAME[name]
    replay = Replay(case.server, jitter)
    after = replay.live(case.phases)
    story = "\n".join(f"{when - 1000:.0f} s: {status} {message}" for when, status, message in replay.seen)
    assert (after is not None) == case.restarted, story
    assert after is None or 120 <= after <= case.within, story


def test_every_server_has_a_hang_and_an_honest_silence() -> None:
    found = {(case.server, case.restarted) for case in cases()}
    assert found == {(server, restarted) for server in CONTAINERS for restarted in (True, False)}


def test_every_plan_is_replayed() -> None:
    presets = known_presets()

    def plan(server: str) -> tuple[object, ...]:
        progress = presets[server].progress
        assert progress is not None
        if progress.like:
            return plan(progress.like)
        return progress.metrics, progress.canaries, progress.connections

    replayed = [plan(server) for server in CONTAINERS]
    missing = {name for name, preset in presets.items() if preset.progress and plan(name) not in replayed}
    assert missing == set()


@pytest.mark.parametrize("server", CONTAINERS)
def test_the_probe_is_the_program(server: str) -> None:
    assert "exec" in probe_of(server)


SILENCE = 150
"""Seconds: a server that finishes something in every such window is never restarted, if its metrics page or
the kernel shows it. It is the time from the first of 6 failures to the last."""


@given(
    st.lists(
        st.builds(
            Phase,
            seconds=st.integers(1, SILENCE - 1),
            health=st.sampled_from([200, 503, None]),
            page=st.booleans(),
            sends=st.just(True),
            answers_after=st.sampled_from([0.05, 5.0, None]),
            status=st.sampled_from([200, 429, 500, 503]),
            jump=st.sampled_from([0.0, 0.0, 7.0]),
            reset=st.booleans(),
            processors=st.sampled_from([0.0, 2.0]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(sorted(CONTAINERS)),
    st.integers(0, LONGEST_JITTER),
)
def test_a_server_that_finishes_something_in_every_window_is_never_restarted(
    phases: list[Phase], server: str, jitter: int
) -> None:
    replay = Replay(server, jitter)
    done, work = replay.first_done, dict.fromkeys(replay.gauges_of_work, 7.0)
    story = [Phase(seconds=60)]
    for n, phase in enumerate(phases, start=1):
        shown = phase.page or phase.health == 503
        story.append(replace(phase, page=shown, values={**work, done: 1000.0 * n}))
    assert replay.live(tuple(story)) is None, replay.seen


REPLICAS = tuple(zlib.crc32(f"llm-6b7c9d-{n}".encode()) % (LONGEST_JITTER + 1) for n in range(10))
"""The jitter of ten pods, by their names."""
HUNG = Phase(seconds=7200, answers_after=None, processors=0.0)


@pytest.mark.parametrize("server", ["vllm", "nim"])
def test_ten_replicas_behind_a_hung_service_are_restarted_once(server: str) -> None:
    restarts = [Replay(server, jitter).live((Phase(seconds=300), HUNG)) for jitter in REPLICAS]
    found = [after for after in restarts if after is not None]
    assert len(found) == len(REPLICAS)
    assert 30 <= max(found) - min(found) <= 90, "not all at once"
    again = [Replay(server, jitter).live((HUNG,)) for jitter in REPLICAS]
    assert again == [None] * len(REPLICAS), "a restart did not help, so there is no second one"


def test_ten_servers_that_accept_no_connection_are_not_restarted_at_once() -> None:
    """Their check is armed by its own connection, so it restarts them again if they hang again."""
    hung = replace(HUNG, values={WAITING: 40.0})
    for before in (Phase(seconds=300, rates={ACCEPTED: 5}), Phase(seconds=60, rates={ACCEPTED: 5})):
        restarts = [Replay("uvicorn", jitter).live((before, hung)) for jitter in REPLICAS]
        found = [after for after in restarts if after is not None]
        assert len(found) == len(REPLICAS)
        assert 30 <= max(found) - min(found) <= 90


@pytest.mark.parametrize("server", CONTAINERS)
def test_of_ten_overloaded_replicas_none_is_restarted(server: str) -> None:
    for jitter in (min(REPLICAS), sorted(REPLICAS)[5], max(REPLICAS)):  # each by itself
        replay = Replay(server, jitter)
        work = dict.fromkeys(replay.gauges_of_work, 100.0)
        slow = Phase(
            seconds=3600, health=None, answers_after=None, rates={replay.first_done: 0.1}, values=work
        )
        assert replay.live((Phase(seconds=300), slow)) is None
