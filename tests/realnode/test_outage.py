"""The outage, and every other hazard that one node can show: with the webhook, and without it.

The part without is the control: it shows that the hazard is real, and that the test would fail without the
webhook's work. The experiments run at the same time; each test judges the figures of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e import kuberay
from tests.e2e.install import NAMESPACE as INSTALLED
from tests.e2e.install import POLICY
from tests.e2e.node.cluster import RealNode
from tests.e2e.node.webhook import Webhook
from tests.realnode import evidence
from tests.realnode.experiments import AT_ONCE, EXPERIMENTS, accelerators, run, workers
from tests.realnode.experiments.model_api import Figures

pytestmark = pytest.mark.realnode


@pytest.fixture(scope="module")
def running(
    node: RealNode, webhook: Webhook, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Figures]]]:
    """Every experiment whose test was collected, begun or queued."""
    node.add_fake_nodes(*accelerators.NODES.values(), **{accelerators.GPU: "8"})
    node.add_fake_nodes(workers.NODE, **kuberay.ROOM)
    kuberay.install(node, workers.RELEASE)
    webhook.write_policy(gpu_affinity=accelerators.FIXED)
    wanted = {experiment_of(item) for item in request.session.items if item.path == request.path}
    with ThreadPoolExecutor(AT_ONCE, "experiment") as pool:
        yield {name: pool.submit(run, node, name) for name in EXPERIMENTS if name in wanted}
    node.api.patch("configmaps", POLICY, {"data": {"gpu-affinity.yaml": None}}, INSTALLED)
    for name in (*accelerators.NODES.values(), workers.NODE):
        node.api.delete("nodes", name)


def experiment_of(item: pytest.Item) -> str:
    """The experiment that a test judges: its parameter, or its own name."""
    return item.name.rpartition("[")[2].removesuffix("]").removeprefix("test_")


@pytest.fixture
def figures(running: dict[str, Future[Figures]], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the experiment of this test showed, written down before it is judged."""
    name = experiment_of(request.node)
    found = running[name].result()
    evidence.keep(name, found)
    return found


def both(figures: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return figures["with"], figures["without"]


def by_name(cases: Mapping[str, Sequence[object]]) -> list[Any]:
    """The parameters of a test for each of these experiments."""
    return [pytest.param(*each, id=name) for name, each in cases.items()]


def reaction(figures: dict[str, Any]) -> str:
    """The webhook's reaction to the hazard, where the control saw none."""
    assert figures["without"]["reaction"] == ""
    return str(figures["with"]["reaction"])


def test_outage(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert min(with_["before"], without["before"]) > 0.9, "before the overload both answer"
    assert without["at the end"] == 0
    assert without["restarts"] == 0
    assert without["ready"] == 3, "it stands in its Service and answers nothing"
    assert with_["again"] > 0.5, "it answers, as far as nine other experiments leave it processors to"
    assert with_["restarts"] >= 3
    events = with_["events"]
    assert events["hung"] < events["out of the Service"] < events["first restart"] < events["all ready again"]


def test_masked_hang(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "warns"
    assert without["left after"] is not None, "readiness sees it"
    assert (without["restarts"], without["ready"], without["answering"]) == (0, 0, 0)
    assert with_["restarted after"] is not None


def test_open_port(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "warns"
    assert (without["restarts"], without["ready"], without["answering"]) == (0, 1, 0), "the kernel answers"
    assert with_["left after"] is not None
    assert with_["restarted after"] is not None


@pytest.mark.parametrize("expected", by_name({"slow_start": [""], "short_startup": ["warns"]}))
def test_slow_starts(figures: dict[str, Any], expected: str) -> None:
    """The slow start is killed again and again; a quick one is left alone by the same probe."""
    with_, without = both(figures)
    for arm in (with_, without):
        assert (arm["control answers"], arm["control"]) == (True, 0)
    assert without["answered after"] is None
    assert without["restarts"] >= 3
    assert with_["answered after"] is not None
    assert with_["restarts"] == 0
    assert reaction(figures) == expected


def test_feature_store(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "refuses"
    assert without["before"] == 0
    assert without["replicas restarted"] == 3, "one store down, every replica restarted"
    assert with_["restarts"] == 0


def test_store_for_readiness(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "refuses"
    assert min(with_["before"], without["before"]) > 0.9
    assert (without["ready"], without["at the end"]) == (0, 0), "one store down, the Service is empty"
    assert with_["ready"] == 3
    assert with_["at the end"] > 0.95


def test_store_for_startup(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "warns"
    assert without["ready"] == 0
    assert without["ready once the store is there"] is not None
    assert with_["restarts"] == 0


def test_strict_liveness(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "warns"
    assert without["restarts"] > 0, "overload restarts what only was slow"
    assert with_["after"] < without["after"] / 2


RESTARTED: dict[str, tuple[str, int, dict[str, int]]] = {
    "one_failure": ("warns", 1, {"before": 0}),
    "busy_exec": ("warns", 1, {}),
    "heavy_probe": ("refuses", 1, {"control": 0}),
    "inner_timeout": ("warns", 1, {}),
    "ray_in_background": ("warns", 4, {}),
}
"""The webhook's reaction, the least restarts without it, and other figures of both arms."""


@pytest.mark.parametrize(("expected", "least", "others"), by_name(RESTARTED))
def test_healthy_containers_are_restarted(
    figures: dict[str, Any], expected: str, least: int, others: dict[str, int]
) -> None:
    with_, without = both(figures)
    assert reaction(figures) == expected
    assert without["restarts"] >= least
    for arm in (with_, without):
        assert {name: arm[name] for name in others} == others
    assert with_["restarts"] == 0


NEVER_READY: dict[str, tuple[str, dict[str, int], tuple[str, ...]]] = {
    "wrong_port": ("warns", {}, ()),
    "unknown_port": ("refuses", {}, ()),
    "wait_cycle": ("refuses", {}, ()),
    "own_pod": ("warns", {}, ()),
    "own_service": ("refuses", {}, ("control ready after",)),
    "ordered_start": ("refuses", {"pods": 1}, ()),
    "asks_itself": ("refuses", {}, ("ready once shown",)),
}
"""The webhook's reaction; without it, other figures, and times of pods that do get ready: a control."""


@pytest.mark.parametrize(("expected", "others", "ready"), by_name(NEVER_READY))
def test_pods_that_never_get_ready(
    figures: dict[str, Any], expected: str, others: dict[str, int], ready: tuple[str, ...]
) -> None:
    with_, without = both(figures)
    assert reaction(figures) == expected
    assert without["ready"] == 0
    assert {name: without[name] for name in others} == others
    assert all(without[each] is not None for each in ready)
    assert with_["ready after"] is not None


def test_target_port(figures: dict[str, Any]) -> None:
    assert reaction(figures) == "warns"
    assert figures["without"]["answered"] == 0, "the pod is ready, and not behind the Service"
    assert figures["with"]["answered after"] is not None


def test_rolling_update(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert min(with_["before"], without["before"]) > 0.95
    assert without["lost"] > 5
    # On a starved machine a client may give up by itself.
    assert with_["lost"] <= with_["requests"] / 500


def test_all_down(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "refuses"
    assert min(with_["before"], without["before"]) > 0.9
    assert without["silent"] >= 5, "as long as they load"
    assert with_["silent"] < without["silent"] / 2


def test_short_deadline(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "warns"
    assert not without["succeeds"]
    assert without["ready after"] is not None, "nothing was wrong with it"
    assert with_["succeeds"]


@pytest.mark.parametrize("experiment", ["own_volume", "host_port", "no_room"])
def test_blocked_rollouts(figures: dict[str, Any], experiment: str) -> None:
    """The rollout is refused; without the webhook it never ends."""
    with_, without = both(figures)
    assert reaction(figures) == "refuses"
    assert without["pending"] == 1
    assert not without["updated"], "the new pod waits for the old one, the old one for the new"
    assert with_["updated after"] is not None


def test_too_many(figures: dict[str, Any]) -> None:
    assert reaction(figures) == "refuses"
    assert figures["without"]["pending"] == 1
    assert figures["with"]["ready after"] is not None


def test_blocked_drain(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "refuses"
    assert not without["evicted"], "no drain ever ends"
    assert with_["evicted"]


def test_single_replica(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "", "the default profile only counts it"
    assert min(with_["before"], without["before"]) > 0.9
    assert without["silent"] >= 5
    assert with_["silent"] < without["silent"] / 2


def test_short_grace(figures: dict[str, Any]) -> None:
    assert reaction(figures) == "warns"
    assert not figures["without"]["saved"]
    assert figures["with"]["saved"]


def test_bad_entry(figures: dict[str, Any]) -> None:
    assert reaction(figures) == "refuses"
    for arm in both(figures):
        assert not arm["loaded"]
        assert arm["others"], "the other models are served on"
        assert arm["corrected"] is not None


def test_endless_wait(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert reaction(figures) == "", "the default profile only counts it"
    assert (without["tries"], without["warnings"]) == (0, 0), "nothing is seen of it"
    assert min(with_["tries"], with_["warnings"]) > 0
    assert with_["ready after"] is not None
    assert without["ready after"] is not None, "both come up once the database is there"


def test_jobs(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["evicted"] == "Failed", "an eviction is the end of it"
    assert with_["evicted"] == "runs again"
    assert without["tries"] > 1, "a mistake is tried again"
    assert (with_["wrong"], with_["tries"]) == ("Failed", 1)


@pytest.mark.parametrize("expected", by_name({"beside_server": ["warns"], "beside_proxy": ["refuses"]}))
def test_jobs_next_to_a_container_that_does_not_end(figures: dict[str, Any], expected: str) -> None:
    """The Job's work is done, and the other container keeps the Job from being complete."""
    with_, without = both(figures)
    assert reaction(figures) == expected
    assert (without["ended"], without["active"]) == ("", 1)
    assert with_["complete after"] is not None


def test_doubled_workers(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["created"] > without["wanted"]
    assert without["peak"] > 4
    assert with_["created"] == with_["wanted"]
    assert (with_["peak"], with_["deleted"]) == (4, 0)
