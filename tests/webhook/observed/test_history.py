"""What `chassis tune --prometheus` makes of the series of kube-state-metrics and kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.webhook.observed.test_pods import made
from tests.webhook.observed.test_tuning import CONFIG, injected
from webhook.errors import UserError
from webhook.observed.history import LivenessResults, ObservedHistory, history, query_history
from webhook.observed.record import Record
from webhook.observed.tuning import FINE, NOTHING_KNOWN, Row, rows

IMAGE = made()["spec"]["containers"][0]["image"]
Series = list[tuple[Mapping[str, str], float]]


def series(count: int = 6, image: str = IMAGE) -> dict[str, Series]:
    """By a word of the query: `count` pods of Deployment llm that are gone, each ready after 300 s."""
    pods = [{"namespace": "ml", "pod": f"llm-5d4f-{n}"} for n in range(count)]
    replica_set = {"namespace": "ml", "replicaset": "llm-5d4f"}
    return {
        "kube_pod_owner": [
            ({**pod, "owner_kind": "ReplicaSet", "owner_name": "llm-5d4f"}, 1.0) for pod in pods
        ],
        "kube_replicaset_owner": [({**replica_set, "owner_kind": "Deployment", "owner_name": "llm"}, 1.0)],
        "kube_pod_container_info": [
            ({**pod, "container": "server", "image_spec": image}, 1.0) for pod in pods
        ],
        "kube_pod_status_ready_time": [
            ({**pod, "uid": "u", "container": "server"}, 300.0 + n) for n, pod in enumerate(pods)
        ],
    }


def probes(failed: float, within: Mapping[str, float]) -> dict[str, Series]:
    labels = {"namespace": "ml", "pod": "llm-5d4f-0", "container": "server"}
    return {
        "prober_probe_total": [
            ({**labels, "result": "failed"}, failed),
            ({**labels, "result": "successful"}, within["+Inf"]),
            ({**labels, "result": "unknown"}, 7.0),
        ],
        "prober_probe_duration_seconds_bucket": [
            ({**labels, "le": bound}, count) for bound, count in within.items()
        ],
        **series(1),
    }


async def known(found: Mapping[str, Series]) -> ObservedHistory:
    async def ask(query: str) -> Series:
        return next((each for name, each in found.items() if name in query), [])

    return await history(ask, "ml")


def only(pod: Json, found: ObservedHistory) -> Row:
    [row] = rows([pod], [], Record(), CONFIG, NoCluster(), found)
    return row


@pytest.mark.parametrize(
    ("found", "loads"),
    [
        (series(), (300, 301, 302, 303, 304, 305)),
        (series(image="acme/other:2"), ()),
        (series() | {"kube_replicaset_owner": []}, ()),
    ],
    ids=["pods that are gone", "another image", "another owner"],
)
async def test_only_starts_of_the_same_workload_and_image_count(
    found: dict[str, Series], loads: tuple[int, ...]
) -> None:
    row = only(injected(made()), await known(found))
    assert row.loads == loads
    assert row.starts == len(loads)
    assert row.verdicts == (("a hung start would last 10 h",) if loads else (NOTHING_KNOWN,))


SLOW = "3.0% of liveness answers took more than 2.5 s of 5 s: raise timeoutSeconds"


@pytest.mark.parametrize(
    ("failed", "within", "verdict"),
    [
        (0, {"1": 9_000, "2.5": 9_700, "5.0": 10_000, "+Inf": 10_000}, SLOW),
        (0, {"2.5": 9_950, "+Inf": 10_000}, FINE),
        (50, {"0.5": 950, "+Inf": 950}, "5.0% of 1,000 liveness probes failed"),
        (9, {"0.5": 20, "+Inf": 20}, FINE),
    ],
    ids=["slow", "few are slow", "failing", "few probes"],
)
async def test_liveness_probes_that_fail_often_or_nearly_time_out(
    failed: float, within: dict[str, float], verdict: str
) -> None:
    pod = made(livenessProbe={"httpGet": {"path": "/", "port": 1}, "timeoutSeconds": 5})
    row = only(pod, await known(probes(failed, within)))
    assert row.verdicts == (verdict,)
    assert row.as_json()["liveness"]["succeeded"] == within["+Inf"]


@pytest.mark.parametrize(("timeout", "bound"), [(1, 0.5), (2, 1), (3, 2.5), (5, 2.5), (10, 5), (20, 10)])
def test_the_bucket_that_is_compared_is_half_the_timeout_or_more(timeout: int, bound: float) -> None:
    liveness = LivenessResults()
    liveness.buckets |= {0.5: 1, 1: 2, 2.5: 3, 5: 4, 10: 5, float("inf"): 10}
    found = liveness.slow(timeout)
    assert found is not None
    assert found[1] == bound
    assert liveness.slow(30) is None, "kubelet has no bucket there"


@asynccontextmanager
async def answering(status: int, body: Any) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        assert "query" in await request.post()
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/prom/api/v1/query", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/prom"))


async def test_an_answer_of_the_http_api() -> None:
    body = {"status": "success", "data": {"resultType": "vector", "result": []}}
    async with answering(200, body) as url:
        assert (await query_history(url, "")).starts == {}


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (400, {"status": "error", "error": "bad query"}, "Prometheus refuses the query: bad query"),
        (200, {"status": "success"}, "doesn't answer like Prometheus"),
        (404, ["no"], "doesn't answer like Prometheus"),
    ],
)
async def test_bad_answers_are_one_sentence(status: int, body: Any, sentence: str) -> None:
    async with answering(status, body) as url:
        with pytest.raises(UserError, match=sentence):
            await query_history(url, "ml")


@pytest.mark.parametrize("url", ["prometheus", "ftp://x", "http://", "http://[", "http://127.0.0.1:1/"])
async def test_bad_urls_are_one_sentence(url: str) -> None:
    with pytest.raises(UserError, match=r"must be an http or https URL|doesn't answer"):
        await query_history(url, "")


async def test_a_password_is_not_printed() -> None:
    with pytest.raises(UserError) as error:
        await query_history("http://me:s3cret@127.0.0.1:1/", "")
    assert "s3cret" not in str(error.value)
