"""The fast path in a server: an answer that is given again is counted and logged as the first."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import orjson
import pytest
import structlog

from benchmarks._reviews import Workloads
from policies.core.facts import NoCluster
from tests.webhook.server.test_worker import flags
from tests.webhook.server.wired import REVIEW, Wired
from webhook import fast_path
from webhook.admission.answer import Recalled
from webhook.admission.envelope import parse
from webhook.fast_path.memo import DEFAULT_BYTES, Memo
from webhook.server import admission_server as server
from webhook.server import assembly, endpoints, log, reviews
from webhook.server import server_flags as serve
from webhook.server.connections import FastPath
from webhook.server.journal import AnswerRecord
from webhook.server.metrics import Metrics
from webhook.server.shared_memory import Identity, SharedRecords


@pytest.fixture(autouse=True)
def _no_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain HTTP of `Wired` has none to wait for."""
    monkeypatch.setattr(server, "LAST_HANDSHAKES_SECONDS", 0)


def wired_with(memo: Memo | None, policy: dict[str, str] | None = None) -> Wired:
    wired = Wired(policy or {})
    wired.endpoints = endpoints.endpoints(wired.policy, NoCluster(), memo=memo)
    wired.fast_path = cast(FastPath, fast_path) if memo else None
    return wired


async def test_a_pod_seen_before_is_answered_counted_and_logged_as_the_first_one() -> None:
    wired = wired_with(None)
    memo = Memo(2**20, wired.metrics.memo)
    wired.endpoints = endpoints.endpoints(wired.policy, NoCluster(), memo=memo)
    again = {**REVIEW, "request": {**REVIEW["request"], "uid": "2"}}
    with structlog.testing.capture_logs() as lines:
        answers = [await wired.post("mutate", review) for review in (REVIEW, again)]
    assert [answer.pop("uid") for answer in answers] == ["1", "2"]
    assert answers[0] == answers[1]
    assert wired.metric("chassis_mutations_total", policy="standard-probes", mode="enforce") == 2
    assert (
        wired.metric("chassis_admission_requests_total", endpoint="mutate", outcome="changed", kind="Pod")
        == 2
    )
    assert [line["uid"] for line in lines if line["event"] == "changed"] == ["1", "2"]
    assert wired.metric("chassis_memo_total", outcome="miss") == 1
    assert wired.metric("chassis_memo_total", outcome="hit") == 1


def replica(uid: str) -> bytes:
    """The review of another replica of one pod template, as an API server writes it."""
    review = orjson.loads(Workloads(1).pods(0, 1.0).known[0])
    review["request"]["uid"] = uid
    return orjson.dumps(review)


class Recalling(Memo):
    """A memo that records hits by bytes."""

    def recall(self, *asked: Any) -> Recalled | None:
        found = super().recall(*asked)
        self.found = [*getattr(self, "found", ()), *([found.uid] if found else ())]
        return found


@pytest.mark.parametrize("chunked", [False, True], ids=["at once", "by aiohttp"])
@pytest.mark.parametrize("endpoint", ["mutate", "validate"])
@pytest.mark.parametrize("policy", ["observe", "standard", "strict"])
async def test_a_replica_known_by_its_bytes_is_answered_counted_and_logged_as_the_first_one(
    endpoint: str, policy: str, chunked: bool
) -> None:
    """Compared with a server without a memo."""
    uids, told, memo = [f"uid-{number}" for number in range(5)], [], Recalling(2**20)
    for each in (None, memo):
        wired = wired_with(each, {"rules.yaml": f"profile: {policy}"})
        wired.chunked = chunked
        with structlog.testing.capture_logs() as lines:
            answers = [await wired.post(endpoint, replica(uid)) for uid in uids]
        counted = {
            (sample.name, str(sorted(sample.labels.items()))): sample.value
            for family in wired.metrics.registry.collect()
            for sample in family.samples
            if re.match("chassis_(admission_requests|mutations|findings|namespace|exemptions)", sample.name)
        }
        told.append((answers, counted, lines))
    assert memo.found == uids[2:]
    assert told[0] == told[1]
    assert [answer["uid"] for answer in told[0][0]] == uids
    assert {value for key, value in told[0][1].items() if key[0].endswith("requests_total")} == {len(uids)}


async def test_a_review_that_has_ended_a_worker_is_let_in_unread_unless_its_answer_is_known() -> None:
    """A request known by its bytes was answered before, and is not read."""
    memo, suspect = Recalling(2**20), Identity.of_request(parse(replica("uid-0")))
    assert suspect is not None
    for known in (False, True):
        wired = wired_with(memo)
        wired.shared = SharedRecords.unshared()
        if not known:
            wired.shared.suspects.add(suspect)
        for uid in ("uid-1", "uid-2", "uid-3"):
            answer = await wired.post("mutate", replica(uid))
            assert ("patch" in answer) is known
            assert ("did not read" in " ".join(answer.get("warnings", ()))) is not known
        wired.shared.suspects.add(suspect)
    assert "patch" in await wired.post("mutate", replica("uid-4"))
    assert memo.found == ["uid-3", "uid-4"]


async def test_known_bytes_are_read_where_every_line_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    memo = Recalling(2**20)
    wired = wired_with(memo, {})
    for uid in ("uid-1", "uid-2"):
        await wired.post("mutate", replica(uid))
    monkeypatch.setattr(reviews, "verbose", lambda: True)
    await wired.post("mutate", replica("uid-3"))
    monkeypatch.undo()
    assert getattr(memo, "found", []) == []
    await wired.post("mutate", replica("uid-5"))
    assert memo.found == ["uid-5"]


def fail(*_: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("failing", ["recorded", "recalled"])
async def test_a_bug_costs_no_answer(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = Recalling(2**20)
    wired = wired_with(memo, {"rules.yaml": "profile: strict"})
    answers = [await wired.post("validate", replica("uid-1")) for _ in range(2)]
    if failing == "recorded":
        monkeypatch.setattr(AnswerRecord, "record_again", fail)
    else:
        memo.recall = fail  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines:
        answers.append(await wired.post("validate", replica("uid-1")))
    assert answers[0] == answers[1] == answers[2]
    assert getattr(memo, "found", []) == (["uid-1"] if failing == "recorded" else [])
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [f"answer not {failing}"]
    labels = {"endpoint": "validate", "outcome": "allowed", "kind": "Pod"}
    assert wired.metric("chassis_admission_requests_total", **labels) == (2 if failing == "recorded" else 3)


def test_the_memo_has_the_bytes_of_the_flag() -> None:
    assert flags("--self-signed").memo * assembly.MIB == DEFAULT_BYTES


# --- the log -------------------------------------------------------------------------------------------

NAMES = [
    'web"}\n{"event": "denied", "user": "admin',
    "web\r\nnext",
    "\x1b[2Jweb\x07",
    "web\u2028{}",
    "web\x85{}",
    "web\u202egpj",
    "\\",
    "é",
]


@pytest.fixture
def lines() -> Iterator[Callable[[], list[Any]]]:
    """The log as JSON; each line must be a line for every reader of lines."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure("info", "json", stream)

    def written() -> list[Any]:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert len(found) == stream.getvalue().count("\n")
        assert all(char.isprintable() or char == "\n" for char in stream.getvalue())
        return found

    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configuration)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fast", [False, True], ids=["engine", "fast path"])
async def test_no_name_adds_a_line_to_the_log(fast: bool, name: str, lines: Callable[[], list[Any]]) -> None:
    memo = Recalling(2**20) if fast else None
    wired = wired_with(memo)
    review = {**REVIEW, "request": {**REVIEW["request"], "name": name}}
    for _ in range(5):
        assert "patch" in await wired.post("mutate", review)
    escaped = b"\\u" in orjson.dumps(name)  # plain characters may be escaped, too: such bodies are read
    assert len(getattr(memo, "found", [])) == (3 if fast and not escaped else 0)
    said = [line for line in lines() if line["event"] == "changed"]
    assert [(line["name"], line["user"]) for line in said] == [(name, "ada")] * 5
    assert all(said[0].keys() == line.keys() for line in said)


# --- the switch ----------------------------------------------------------------------------------------


async def test_the_policy_switches_the_fast_path_off_and_on() -> None:
    memo = Recalling(2**20)
    wired = wired_with(memo)
    wired.metrics = Metrics(["Pod"], fast_path=lambda: wired.policy.config.webhook.fast_path)
    for on in (True, False, True):
        before, entries = list(getattr(memo, "found", [])), len(memo)
        wired.policy.offer({"webhook.yaml": f"fastPath: {str(on).lower()}"}, "test")
        assert wired.metric("chassis_fast_path") == on
        for number in range(4):
            assert "patch" in await wired.post("mutate", replica(f"{on}-{number}"))
        if on:
            assert memo.found[len(before) :] == ["True-2", "True-3"]
        else:
            assert (getattr(memo, "found", []), len(memo)) == (before, entries)


@pytest.mark.parametrize("off", [False, True])
def test_the_flag_decides_whether_the_package_is_loaded(off: bool) -> None:
    options = serve.options_of(flags("--self-signed", *(["--fast-path=off"] if off else [])))
    assert (assembly._fast_path(options) is None) is off
