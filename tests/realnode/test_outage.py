"""The outage, and every other hazard that one node can show: with the webhook, and without it.

The part without is the control: it shows that the hazard is real, and that the test would fail without the
webhook's work. The experiments run at the same time; each test judges the figures of one.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    wanted = {item.name.removeprefix("test_") for item in request.session.items if item.path == request.path}
    with ThreadPoolExecutor(AT_ONCE, "experiment") as pool:
        yield {name: pool.submit(run, node, name) for name in EXPERIMENTS if name in wanted}
    node.api.patch("configmaps", POLICY, {"data": {"gpu-affinity.yaml": None}}, INSTALLED)
    for name in (*accelerators.NODES.values(), workers.NODE):
        node.api.delete("nodes", name)


@pytest.fixture
def figures(running: dict[str, Future[Figures]], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the experiment of this test showed, written down before it is judged."""
    name = request.node.name.removeprefix("test_")
    found = running[name].result()
    evidence.keep(name, found)
    return found


def both(figures: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return figures["with"], figures["without"]


def refuses(figures: dict[str, Any]) -> bool:
    """Whether the hazard was refused, and without the webhook was not."""
    return (figures["with"]["said"], figures["without"]["said"]) == ("refuses", "")


def warns(figures: dict[str, Any]) -> bool:
    """Whether the hazard was warned about, and without the webhook was not."""
    return (figures["with"]["said"], figures["without"]["said"]) == ("warns", "")


def is_only_counted(figures: dict[str, Any]) -> bool:
    """Whether the default profile neither refuses nor warns, and only counts the hazard."""
    return (figures["with"]["said"], figures["without"]["said"]) == ("", "")


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
    assert warns(figures)
    assert without["left after"] is not None, "readiness sees it"
    assert (without["restarts"], without["ready"], without["answering"]) == (0, 0, 0)
    assert with_["anew after"] is not None


def test_open_port(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert (without["restarts"], without["ready"], without["answering"]) == (0, 1, 0), "the kernel answers"
    assert with_["left after"] is not None
    assert with_["anew after"] is not None


def test_late_liveness(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert is_only_counted(figures)
    assert with_["anew after"] < without["anew after"] / 1.5


def test_long_timeout(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert is_only_counted(figures)
    assert with_["left after"] < without["left after"] / 1.5


def assert_kills_slow_starts(figures: dict[str, Any]) -> None:
    """The slow start is killed for ever; a quick one is left alone by the same probe."""
    with_, without = both(figures)
    for arm in (with_, without):
        assert (arm["control answers"], arm["control"]) == (True, 0)
    assert without["answered after"] is None
    assert without["restarts"] >= 3, "killed in its start, again and again"
    assert with_["answered after"] is not None
    assert with_["restarts"] == 0


def test_slow_start(figures: dict[str, Any]) -> None:
    assert_kills_slow_starts(figures)
    assert figures["with"]["said"] == "", "a startup probe is added, and nothing is left to say"


def test_short_startup(figures: dict[str, Any]) -> None:
    assert_kills_slow_starts(figures)
    assert warns(figures)


def test_feature_store(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert refuses(figures)
    assert without["before"] == 0
    assert without["replicas restarted"] == 3, "one store down, every replica restarted"
    assert with_["restarts"] == 0


def test_store_for_readiness(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert refuses(figures)
    assert min(with_["before"], without["before"]) > 0.9
    assert (without["ready"], without["at the end"]) == (0, 0), "one store down, the Service is empty"
    assert with_["ready"] == 3
    assert with_["at the end"] > 0.95


def test_store_for_startup(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert without["ready"] == 0
    assert without["ready once the store is there"] is not None
    assert with_["restarts"] == 0


def test_strict_liveness(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert without["restarts"] > 0, "overload restarts what only was slow"
    assert with_["after"] < without["after"] / 2


def test_one_failure(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert without["before"] == with_["before"] == 0
    assert without["restarts"] > 0
    assert with_["restarts"] == 0


def test_busy_exec(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert without["restarts"] > 0
    assert with_["restarts"] == 0


def test_heavy_probe(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert refuses(figures)
    assert without["restarts"] > 0
    assert without["control"] == 0, "it is the size of the weights"
    assert with_["restarts"] == 0


def test_inner_timeout(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert without["restarts"] > 0
    assert with_["restarts"] == 0


def test_wrong_port(figures: dict[str, Any]) -> None:
    assert warns(figures)
    assert figures["without"]["ready"] == 0, "it answers, and not there"
    assert figures["with"]["ready after"] is not None


def test_unknown_port(figures: dict[str, Any]) -> None:
    assert refuses(figures)
    assert figures["without"]["ready"] == 0, "it answers, and nothing asks"
    assert figures["with"]["ready after"] is not None


def test_target_port(figures: dict[str, Any]) -> None:
    assert warns(figures)
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
    assert refuses(figures)
    assert min(with_["before"], without["before"]) > 0.9
    assert without["silent"] >= 5, "as long as they load"
    assert with_["silent"] < without["silent"] / 2


def test_short_deadline(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert warns(figures)
    assert not without["succeeds"]
    assert without["ready after"] is not None, "nothing was wrong with it"
    assert with_["succeeds"]


def assert_blocked(figures: dict[str, Any]) -> None:
    """The rollout is refused, and where it is not, it never ends."""
    with_, without = both(figures)
    assert refuses(figures)
    assert without["pending"] == 1
    assert not without["updated"], "the new pod waits for the old one, the old one for the new"
    assert with_["updated after"] is not None


def test_own_volume(figures: dict[str, Any]) -> None:
    assert_blocked(figures)


def test_host_port(figures: dict[str, Any]) -> None:
    assert_blocked(figures)


def test_no_room(figures: dict[str, Any]) -> None:
    assert_blocked(figures)


def test_too_many(figures: dict[str, Any]) -> None:
    assert refuses(figures)
    assert figures["without"]["pending"] == 1
    assert figures["with"]["ready after"] is not None


def test_blocked_drain(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert refuses(figures)
    assert not without["evicted"], "no drain ever ends"
    assert with_["evicted"]


def test_single_replica(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert is_only_counted(figures)
    assert min(with_["before"], without["before"]) > 0.9
    assert without["silent"] >= 5
    assert with_["silent"] < without["silent"] / 2


def test_short_grace(figures: dict[str, Any]) -> None:
    assert warns(figures)
    assert not figures["without"]["saved"]
    assert figures["with"]["saved"]


def test_bad_entry(figures: dict[str, Any]) -> None:
    assert refuses(figures)
    for arm in both(figures):
        assert not arm["loaded"]
        assert arm["others"], "the other models are served on"
        assert arm["corrected"] is not None


def test_own_service(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert refuses(figures)
    assert without["ready"] == 0, "ready once it is ready"
    assert without["control ready after"] is not None, "a wait for another Service ends"
    assert with_["ready after"] is not None


def test_wait_cycle(figures: dict[str, Any]) -> None:
    assert refuses(figures)
    assert figures["without"]["ready"] == 0
    assert figures["with"]["ready after"] is not None


def test_own_pod(figures: dict[str, Any]) -> None:
    assert warns(figures)
    assert figures["without"]["ready"] == 0
    assert figures["with"]["ready after"] is not None


def test_endless_wait(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert is_only_counted(figures)
    assert (without["tries"], without["warnings"]) == (0, 0), "nothing is seen of it"
    assert min(with_["tries"], with_["warnings"]) > 0
    assert with_["ready after"] is not None
    assert without["ready after"] is not None, "both come up once the database is there"


def test_ordered_start(figures: dict[str, Any]) -> None:
    assert refuses(figures)
    assert (figures["without"]["pods"], figures["without"]["ready"]) == (1, 0)
    assert figures["with"]["ready after"] is not None


def test_asks_itself(figures: dict[str, Any]) -> None:
    without = figures["without"]
    assert refuses(figures)
    assert without["ready"] == 0
    assert without["ready once shown"] is not None, "that the Service hides them is all that is wrong"
    assert figures["with"]["ready after"] is not None


def test_ray_in_background(figures: dict[str, Any]) -> None:
    assert warns(figures)
    assert figures["without"]["restarts"] > 3
    assert figures["with"]["restarts"] == 0


def test_jobs(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["evicted"] == "Failed", "an eviction is the end of it"
    assert with_["evicted"] == "runs again"
    assert without["tries"] > 1, "a mistake is tried again"
    assert (with_["wrong"], with_["tries"]) == ("Failed", 1)


def assert_kept_from_ending(figures: dict[str, Any]) -> None:
    """The Job's work is done, and another container keeps it from being complete."""
    assert (figures["without"]["ended"], figures["without"]["active"]) == ("", 1)
    assert figures["with"]["complete after"] is not None


def test_beside_server(figures: dict[str, Any]) -> None:
    assert_kept_from_ending(figures)
    assert warns(figures)


def test_beside_proxy(figures: dict[str, Any]) -> None:
    assert_kept_from_ending(figures)
    assert refuses(figures)


def test_doubled_workers(figures: dict[str, Any]) -> None:
    with_, without = both(figures)
    assert without["created"] > without["wanted"]
    assert without["peak"] > 4
    assert with_["created"] == with_["wanted"]
    assert (with_["peak"], with_["deleted"]) == (4, 0)
