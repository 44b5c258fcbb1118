"""What `chassis tune` says of budgets and ends, and what it proposes."""

import json
from typing import Any

import pytest
import yaml

from policies.core.facts import NoCluster
from policies.kube.json import Json
from policies.kube.pods import containers
from policies.probes.observed import run_of
from tests.webhook.kube.apiserver import FakeApiServer
from tests.webhook.observed.test_pods import BEGAN, made, status
from webhook.cli.tune import _print, _read, _without_pods, patch_of
from webhook.config.load import load
from webhook.kube.api import ApiServer
from webhook.observed.record import Ended, Ends, ObservedStart, Record
from webhook.observed.tuning import FINE, NOTHING_KNOWN, Row, _node_types, rows

CONFIG = load({})
ANNOTATION = "mlchassis.dev/expected-start.server"


def injected(pod: Json, budget: int = 36_000) -> Json:
    get = {"path": "/health", "port": 8000}
    probe = {"httpGet": get, "periodSeconds": 5, "failureThreshold": budget // 5}
    pod["spec"]["containers"][0]["startupProbe"] = probe
    changed = "policy x\nstandard-probes spec.containers[server].startupProbe: 10 h"
    pod["metadata"]["annotations"] = {"mlchassis.dev/changed": changed}
    return pod


def recorded(pod: Json, *loads: int, ends: tuple[tuple[str, int], ...] = (), **end: Any) -> Record:
    key = f"Deployment/llm/server@{run_of(pod, next(iter(containers(pod))), 0)}"
    record = Record()
    node_type = end.pop("node_type", "")
    where: dict[str, Any] = {"namespace": "ml", "key": key, "at": BEGAN, "node_type": node_type}
    record.add([ObservedStart(**where, load=n, pull=1, ready=n, first=True, place="") for n in loads], BEGAN)
    record.add([Ended(**where, reason=name, **end) for name, count in ends for _ in range(count)], BEGAN)
    return record


def only(pods: list[Json], record: Record | None = None, events: list[Json] | None = None) -> Row:
    [row] = rows(pods, events or [], record or Record(), CONFIG, NoCluster())
    return row


def killing(pod: str, probe: str, count: int) -> Json:
    message = f"Container server failed {probe} probe, will be restarted"
    regarding = {"kind": "Pod", "namespace": "ml", "name": pod}
    return {"reason": "Killing", "message": message, "count": count, "involvedObject": regarding}


def test_a_budget_of_hours_for_a_start_of_minutes() -> None:
    pod = injected(made())
    row = only([pod], recorded(pod, *range(290, 313)))
    assert (row.budget, row.injected, row.starts) == (36_000, True, 23)
    assert (row.percentile(0.5), row.percentile(0.99), row.slowest) == (301, 312, 312)
    assert patch_of(row) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "ml", "name": "llm"},
        "spec": {"template": {"metadata": {"annotations": {ANNOTATION: "312s"}}}},
    }


@pytest.mark.parametrize(
    ("budget", "loads", "killed", "verdict", "expected"),
    [
        (36_000, range(290, 313), 0, "a hung start would last 10 h", "312s"),
        (36_000, [0] * 6, 0, "a hung start would last 10 h", "200s"),
        (36_000, [10, 11, 12, 13], 0, FINE, None),
        (600, [500] * 17, 3, "the startup probe killed 3 of 20 starts", "610s"),
    ],
)
def test_a_budget_is_judged_by_its_starts(
    budget: int, loads: list[int], killed: int, verdict: str, expected: str | None
) -> None:
    pod = injected(made(), budget)
    row = only([pod], recorded(pod, *loads, ends=(("StartupProbe", killed),), after=610))
    assert row.verdicts == (verdict,)
    assert row.annotation == ((ANNOTATION, expected) if expected else None)
    assert (patch_of(row) is None) is (expected is None)


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([("llm-5d4f-x", "startup", 4), ("other", "startup", 9)], "the startup probe killed 4 of 5 starts"),
        ([("llm-5d4f-x", "liveness", 2)], "the liveness probe restarted it 2 times"),
    ],
)
def test_events_show_which_probes_ended_runs(events: list[tuple[str, str, int]], verdict: str) -> None:
    pod = injected(made(), 600)
    pod["status"] = {"containerStatuses": [{"name": "server", "restartCount": 4}]}
    assert only([pod], None, [killing(*each) for each in events]).verdicts == (verdict,)


def test_a_server_without_probes_is_named() -> None:
    pod = status(made(startupProbe=None), ready=10)
    assert only([pod]).verdicts == ("it has no probes, so a hang isn't noticed",)
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        pod = made(startupProbe=None)
        pod["spec"]["containers"][0][kind] = {"tcpSocket": {"port": 8000}, "failureThreshold": 60}
        probed = status(pod, ready=10)
        assert only([probed]).verdicts == (FINE,)


def test_a_pod_that_waits_for_a_node_is_not_called_fine() -> None:
    assert only([injected(made(), 600)]).verdicts == (NOTHING_KNOWN,)


def test_a_written_probe_is_shown_with_what_it_needs() -> None:
    pod = made(startupProbe={"httpGet": {"path": "/health", "port": 1}, "periodSeconds": 10})
    row = only([pod], recorded(pod, 25))
    assert row.verdicts == ("the slowest start took 25 s of 30 s",)
    assert (row.injected, row.annotation, row.startup_failures) == (False, None, 60)
    patch = patch_of(row)
    assert patch is not None
    [container] = patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "server", "startupProbe": {"failureThreshold": 60}}


def test_without_a_record_running_pods_show_their_starts() -> None:
    probe = {"httpGet": {"path": "/health", "port": 8000}}
    pods = [status(made(f"u{n}", startupProbe=None, readinessProbe=probe), ready=10 + n) for n in range(6)]
    row = only(pods)
    assert row.loads == (10, 11, 12, 13, 14, 15)
    assert (row.budget, row.verdicts) == (0, (FINE,))


def train() -> Json:
    pod = made(startupProbe=None)
    pod["spec"]["restartPolicy"] = "Never"
    return pod


def test_how_and_on_which_nodes_runs_end() -> None:
    ends = (("OOMKilled", 12), ("Completed", 21), ("Evicted", 7))
    row = only([train()], recorded(train(), ends=ends, memory=31 << 30, node_type="T4\x1b"))
    assert row.starts == 40
    assert row.verdicts == (
        "12 of 40 runs ended OOMKilled at 31 GiB (T4\\x1b 12): raise the memory limit",
        "Evicted 7 times since 2027-01-15 (T4\\x1b 7), and mlchassis.dev/checkpoint names no checkpoint: "
        "write checkpoints and name them",
    )
    assert row.as_json()["endsByNodeType"]["OOMKilled"] == {"T4\x1b": 12}


def test_the_node_type_with_most_ends_is_named_first() -> None:
    ends = Ends(count=4, first=0, last=0, nodes={"A100": 1, "T4": 3})
    assert _node_types(ends) == " (T4 3, A100 1)"


def test_the_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    pod = injected(made())
    found = rows([pod], [], recorded(pod, *[300] * 5), CONFIG, NoCluster())
    _print(found, "text")
    title, line = capsys.readouterr().out.splitlines()
    assert title.split()[:4] == ["NAMESPACE", "WORKLOAD", "CONTAINER", "BUDGET"]
    assert line.split("  ")[-2:] == ["a hung start would last 10 h", f"annotation {ANNOTATION}: 300s"]
    _print(found, "json")
    [row] = json.loads(capsys.readouterr().out)
    assert row["observed"] == {"starts": 5, "p50": 300, "p99": 300, "max": 300}
    assert row["annotation"] == {ANNOTATION: "300s"}
    _print(found, "yaml")
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [patch_of(found[0])]
    _print([], "text")
    assert "No container" in capsys.readouterr().out
    _print([], "yaml")
    assert capsys.readouterr().out == ""


def test_recorded_workloads_without_a_pod_are_named() -> None:
    record = recorded(injected(made()), *[300] * 5)
    record.namespaces["other"] = dict(record.namespaces["ml"])
    assert _without_pods(record, "ml", []) == ["ml Deployment/llm"]
    assert _without_pods(record, "", [only([made()])]) == ["other Deployment/llm"]


async def test_without_the_right_to_read_the_record_pods_are_enough(
    fake: FakeApiServer, api: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await fake.put("/api/v1/namespaces/ml/pods", injected(made()))
    await fake.forbid("/api/v1/namespaces/mlchassis-system")
    pods, events, record = await _read(api, "ml")
    assert (len(pods), events, record.namespaces) == (1, [], {})
    assert "may not read ConfigMap mlchassis-system/mlchassis-observed" in capsys.readouterr().err


def author(budget: int) -> Json:
    get = {"path": "/health", "port": 8000}
    return made(startupProbe={"httpGet": get, "periodSeconds": 5, "failureThreshold": budget // 5})


def test_every_output_has_the_proposal_for_a_probe_of_the_author(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows([author(30)], [], recorded(author(30), *[25] * 6), CONFIG, NoCluster())
    assert found[0].verdicts == ("the slowest start took 25 s of 30 s",)
    _print(found, "text")
    assert capsys.readouterr().out.splitlines()[1].endswith("  startupProbe.failureThreshold: 120")
    _print(found, "json")
    [row] = json.loads(capsys.readouterr().out)
    assert (row["annotation"], row["failureThreshold"]) == (None, 120)
    _print(found, "yaml")
    [patch] = yaml.safe_load_all(capsys.readouterr().out)
    [changed] = patch["spec"]["template"]["spec"]["containers"]
    assert changed["startupProbe"]["failureThreshold"] == 120, "600 s is the least proposal"


def test_the_author_ends_the_start_although_the_liveness_probe_is_injected() -> None:
    pod = author(30)
    changed = "policy x\nstandard-probes spec.containers[server].livenessProbe: GET /health"
    pod["metadata"]["annotations"] = {"mlchassis.dev/changed": changed}
    row = only([pod], recorded(pod, *[25] * 6))
    assert (row.injected, row.annotation, row.startup_failures) == (False, None, 120)
