"""A real vLLM that is stopped under load: what the webhook adds saves the requests that are under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from policies.kube.objects.pods import DEFAULT_GRACE
from tests.vllm.server import Vllm
from tests.vllm.stopping import end, traffic

pytestmark = pytest.mark.vllm

TOKENS = (100, 300, 500) * 4
"""Of the answers of each client."""


class Arm(NamedTuple):
    options: tuple[str, ...]
    sleep: float
    grace: float


ARMS = {
    "without the webhook": Arm((), 0, DEFAULT_GRACE),
    "a sleep of 5 s": Arm((), 5, DEFAULT_GRACE),
    "with the webhook": Arm((), 25, DEFAULT_GRACE),
    "with --shutdown-timeout and the webhook": Arm(("--shutdown-timeout", "60"), 5, 65),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, release: str) -> Iterator[dict[str, Vllm]]:
    """One for each arm, and one that stays."""
    running: dict[str, Vllm] = {}
    common = ("--max-model-len", "1024", "--max-num-seqs", "8")
    try:
        for name, options in {"stays": (), **{name: arm.options for name, arm in ARMS.items()}}.items():
            running[name] = Vllm(tmp_path_factory.mktemp("vllm"), (*common, *options), release)
        for each in running.values():
            each.wait_until_it_serves()
        yield running
    finally:
        for each in running.values():
            each.stop()


@pytest.mark.parametrize("name", ARMS)
def test_requests_under_way_when_a_replica_is_stopped(
    servers: dict[str, Vllm], name: str, record_property: Callable[[str, object], None]
) -> None:
    arm, leaves = ARMS[name], servers[name]
    with traffic([servers["stays"], leaves], TOKENS) as found:
        while found.whole < 3 * len(TOKENS):
            assert leaves.process.running
            found.ended.wait(0.2)
        took = end(leaves, found, sleep=arm.sleep, grace=arm.grace)
    figures = {"whole": found.whole, "lost": len(found.lost), "ended after": round(took, 1)}
    for key, value in figures.items():
        record_property(key, value)
    print(name, figures, found.lost)
    if name == "without the webhook":
        assert found.lost, "so the others can fail"
    elif name != "a sleep of 5 s":
        assert found.lost == []
