"""What a scan finds, as PolicyReports: results, and what becomes of the reports that are there."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from policies.core import registry
from policies.kube.json import Json
from tests.webhook.cli.scanned import (
    DEPLOYMENTS,
    PODS,
    REPORTS,
    RULE,
    SERVER,
    InCluster,
    deployment,
    named,
    owned_by,
    pod,
    serve,
)
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.cli.output import policyreport
from webhook.config.load import rules
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError


def reported(fake: FakeApiServer, name: str = policyreport.NAME) -> Json:
    return fake.objects[f"{REPORTS}/{name}"]


@pytest.fixture
def report(scan: InCluster) -> InCluster:
    """Runs a scan that writes reports."""
    return partial(scan, "--report")


OPEN_REPORTS = "/apis/openreports.io/v1alpha1/namespaces/ml/reports"


def serve_open_reports(fake: FakeApiServer) -> None:
    serve(fake, {"/apis/openreports.io/v1alpha1": {"Report": "reports", "ClusterReport": "clusterreports"}})


async def test_the_newer_api_is_written_where_both_are_served(fake: FakeApiServer, report: InCluster) -> None:
    await fake.put(PODS, pod("a"))
    await report()
    before = reported(fake)
    serve_open_reports(fake)
    for answer in ("1 written, 0 unchanged, 1 removed", "0 written, 1 unchanged, 0 removed"):
        assert answer in (await report()).err
    newer = fake.objects[f"{OPEN_REPORTS}/mlchassis"]
    assert (newer["apiVersion"], newer["kind"]) == ("openreports.io/v1alpha1", "Report")
    assert [r["rule"] for r in newer["results"]] == [r["rule"] for r in before["results"]]
    assert f"{REPORTS}/mlchassis" not in fake.objects, "nothing is counted twice"


async def test_the_api_may_be_named(fake: FakeApiServer, report: InCluster) -> None:
    await fake.put(PODS, pod("a"))
    missing = await report("openreports.io")
    assert (missing.status, missing.out) == (2, "")
    assert "the cluster has no PolicyReports (openreports.io/v1alpha1)" in missing.err
    serve_open_reports(fake)
    assert "1 written" in (await report("wgpolicyk8s.io")).err
    assert reported(fake)["kind"] == "PolicyReport"
    assert f"{OPEN_REPORTS}/mlchassis" not in fake.objects


async def test_results_have_the_decisions(fake: FakeApiServer, report: InCluster) -> None:
    await fake.put(PODS, pod("refused"))
    await fake.put(PODS, pod("warned", ownerReferences=owned_by("example.com/v1", "Deployment")))
    await fake.put(PODS, pod("exempted", annotations={"mlchassis.dev/exempt": f"{RULE}=known"}))
    await report()
    by_name = {r["resources"][0]["name"]: r for r in reported(fake)["results"] if r["rule"] == RULE}
    assert {name: (r["result"], r["severity"], r["scored"]) for name, r in by_name.items()} == {
        "refused": ("fail", "high", True),
        "warned": ("warn", "medium", False),
        "exempted": ("skip", "high", False),
    }
    refused = by_name["refused"]
    assert refused["resources"] == [
        {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "refused", "uid": "uid-refused"}
    ]
    expected = {"source": "mlchassis", "policy": RULE, "category": rules()[RULE].document.family}
    assert expected.items() <= refused.items()
    assert "payments" in refused["message"]
    path = "spec.containers[0].livenessProbe.exec.command"
    assert refused["properties"] == {"path": path, "mode": "enforce"}
    assert by_name["exempted"]["properties"]["exempted"] == "known"
    assert reported(fake)["metadata"]["labels"] == policyreport.OWN
    await report("--profile", "observe")
    audited = [r for r in reported(fake)["results"] if r["rule"] == RULE and r["result"] != "skip"]
    assert {(r["result"], r["severity"]) for r in audited} == {("warn", "low")}


async def test_a_change_that_a_running_object_lacks_and_a_crash_are_results(
    fake: FakeApiServer, report: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.put(PODS, pod("alone", SERVER))
    await fake.put(DEPLOYMENTS, deployment("server", SERVER))

    def fails(*_: object) -> Any:
        raise RuntimeError("oh")

    known = registry.rules()
    broken = {**known, RULE: replace(known[RULE], check=fails, requires=frozenset())}
    monkeypatch.setattr(registry, "rules", lambda: broken)
    await report()
    found = {(r["resources"][0]["name"], r["policy"], r["result"]): r for r in reported(fake)["results"]}
    lacking = found["alone", "standard-probes", "warn"]
    assert lacking["message"].startswith("standard-probes would add spec.containers[main].{")
    assert ("server", "standard-probes", "warn") not in found
    assert found["alone", RULE, "error"]["message"] == "It failed on this object: RuntimeError: oh"


async def test_reports_are_kept_rewritten_and_removed(
    fake: FakeApiServer, report: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {**named("other", labels={"app.kubernetes.io/managed-by": "kyverno"}), "results": []}
    await fake.put(REPORTS, foreign)
    await fake.put(PODS, pod("a"))
    assert "1 written, 0 unchanged, 0 removed" in (await report()).err
    first = reported(fake)
    fake.objects[f"{REPORTS}/mlchassis"]["metadata"]["annotations"] = {"mine": "stays"}
    monkeypatch.setattr(ApiServer, "now", lambda _: 4_000_000_000.0)
    assert "0 written, 1 unchanged, 0 removed" in (await report()).err
    await fake.put(PODS, pod("b"))
    assert "1 written, 0 unchanged, 0 removed" in (await report()).err
    times = {r["resources"][0]["name"]: r["timestamp"]["seconds"] for r in reported(fake)["results"]}
    assert times == {"a": first["results"][0]["timestamp"]["seconds"], "b": 4_000_000_000}
    assert reported(fake)["metadata"]["annotations"] == {"mine": "stays"}
    for name in "ab":
        await fake.delete(f"{PODS}/{name}")
    assert "0 written, 0 unchanged, 1 removed" in (await report("-A")).err
    assert [path for path in fake.objects if path.startswith(REPORTS)] == [f"{REPORTS}/other"]


async def test_a_namespace_with_many_results_gets_several_reports(
    fake: FakeApiServer, report: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policyreport, "MAX_RESULTS", 2)
    for name in "abcde":
        await fake.put(PODS, pod(name))
    assert "3 written" in (await report()).err
    names = ("mlchassis", "mlchassis-2", "mlchassis-3")
    assert [len(reported(fake, name)["results"]) for name in names] == [2, 2, 1]
    assert sum(reported(fake, name)["summary"]["fail"] for name in names) == 5
    for name in "bcde":
        await fake.delete(f"{PODS}/{name}")
    assert "1 written, 0 unchanged, 2 removed" in (await report()).err


async def test_two_scans_at_once_leave_what_the_last_one_found(
    fake: FakeApiServer, report: InCluster
) -> None:
    await fake.put(PODS, pod("a"))
    other = {**named("mlchassis", labels=policyreport.OWN), "results": []}

    async def overtake() -> None:
        await fake.put(REPORTS, other)

    for _ in ("created meanwhile", "replaced meanwhile"):
        fake.before_write = overtake
        assert "1 written" in (await report()).err
        assert [r["resources"][0]["name"] for r in reported(fake)["results"]] == ["a"]
        await fake.put(PODS, pod("a", uid="another"))
    await fake.delete(f"{PODS}/a")
    fake.before_write = overtake
    assert "1 removed" in (await report()).err
    assert f"{REPORTS}/mlchassis" not in fake.objects


async def test_a_report_that_is_taken_over_is_not_removed(fake: FakeApiServer, report: InCluster) -> None:
    await fake.put(PODS, pod("a"))
    await report()
    await fake.delete(f"{PODS}/a")

    async def take_over() -> None:
        await fake.put(REPORTS, named("mlchassis"))

    fake.before_write = take_over
    assert "0 removed" in (await report()).err
    assert "labels" not in reported(fake)["metadata"]


async def test_a_report_of_another_s_is_not_overwritten(fake: FakeApiServer, report: InCluster) -> None:
    await fake.put(PODS, pod("a"))
    theirs = await fake.put(REPORTS, named("mlchassis"))
    answer = await report()
    assert answer.status == 2
    assert f"{REPORTS}/mlchassis belongs to another program" in answer.err
    assert reported(fake) == theirs


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "unable to create new content in namespace ml because it is being terminated"),
        (404, 'namespaces "ml" not found'),
    ],
)
async def test_a_namespace_that_goes_away_meanwhile_is_passed_over(
    fake: FakeApiServer, report: InCluster, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    async def gone(*_: object) -> bool:
        raise ApiError(status, "", message)

    monkeypatch.setattr(ApiServer, "unless_conflict", gone)
    await fake.put(PODS, pod("a"))
    answer = await report()
    assert answer.status == 1
    assert "PolicyReports: 0 written, 0 unchanged, 0 removed" in answer.err


async def test_reports_that_can_t_be_written_are_named(fake: FakeApiServer, report: InCluster) -> None:
    await fake.put(PODS, pod("a"))
    await fake.forbid(REPORTS)
    forbidden = await report()
    assert forbidden.status == 2
    assert "DENIED Pod ml/a" in forbidden.out
    assert "--report: the PolicyReports can't be written: 403 Forbidden" in forbidden.err
    del fake.objects["/apis/wgpolicyk8s.io/v1alpha2"]
    missing = await report()
    assert (missing.status, missing.out) == (2, "")
    apis = "openreports.io/v1alpha1 or wgpolicyk8s.io/v1alpha2"
    assert f"the cluster has no PolicyReports ({apis})" in missing.err
