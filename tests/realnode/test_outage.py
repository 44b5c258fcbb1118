"""The outage, and every other hazard that one node can show: with the webhook, and without it.

The part without is the control: it shows that the hazard is real, and that the test would fail if the webhook
did nothing. All experiments run at the same time; each test judges the figures of one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.realnode import evidence
from tests.realnode.experiments import EXPERIMENTS, Running

pytestmark = pytest.mark.realnode


@pytest.fixture(scope="module")
def running(node: RealNode, webhook: Webhook, request: pytest.FixtureRequest) -> dict[str, Running]:
    """Every experiment whose test was collected, started."""
    wanted = {item.name.removeprefix("test_") for item in request.session.items if item.path == request.path}
    return {name: Running(node, run) for name, run in EXPERIMENTS.items() if name in wanted}


@pytest.fixture
def figures(running: dict[str, Running], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the experiment of this test showed, written down before it is judged."""
    name = request.node.name.removeprefix("test_")
    found = running[name].figures()
    evidence.keep(name, found)
    return found


def both(figures: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return figures["with"], figures["without"]


def test_outage(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert min(with_["before"], without["before"]) > 0.9, "before the overload both answer"
    assert without["at the end"] == 0
    assert without["restarts"] == 0
    assert without["ready"] == 3, "it stands in its Service and answers nothing"
    assert with_["at the end"] > 0.95
    assert with_["restarts"] >= 3
    events = with_["events"]
    assert events["hung"] < events["out of the Service"] < events["first restart"] < events["all ready again"]


def test_slow_start(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    for arm in (with_, without):
        assert arm["control answers"]
        assert arm["control"] == 0, "a quick start is left alone by that probe"
    assert without["answered after"] is None
    assert without["restarts"] >= 3, "killed in its start, again and again"
    assert with_["answered after"] is not None
    assert with_["restarts"] == 0


def test_feature_store(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["refused"] == ""
    assert without["replicas restarted"] == 3, "one store down, every replica restarted"
    assert "liveness-external-dependency" in with_["refused"]
    assert with_["restarts"] == 0


def test_strict_liveness(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["restarts"] > 0, "overload restarts what only was slow"
    assert with_["after"] == 0


def test_rolling_update(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert with_["before"] == without["before"] == 1
    assert without["lost"] > 10
    # On a starved machine a client may give up by itself.
    assert with_["lost"] <= with_["requests"] / 500


def test_jobs(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["evicted"] == "Failed", "an eviction is the end of it"
    assert with_["evicted"] == "runs again"
    assert without["tries"] > 1, "a mistake is tried again"
    assert (with_["wrong"], with_["tries"]) == ("Failed", 1)


def test_blocked_drain(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert not without["evicted"], "no drain ever ends"
    assert "drain-blocked-by-pdb" in with_["refused"]
    assert with_["evicted"]


def test_own_volume(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["updated after"] is None
    assert without["pending"] == 1
    assert not without["updated"], "the new pod waits for the volume, the old one for the new"
    assert "rollout-volume-deadlock" in with_["refused"]
    assert with_["updated after"] is not None


def test_own_service(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["refused"] == ""
    assert without["ready"] == 0, "ready once it is ready"
    assert without["control ready after"] is not None, "a wait for another Service ends"
    assert "init-waits-on-own-service" in with_["refused"]
