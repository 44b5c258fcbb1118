"""`chassis scan` against a small API server: what it reads, what it may not, what goes wrong."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from policies import registry
from tests.webhook.apiserver import FakeApiServer, running
from webhook import cli, cluster, engine, policy_reports, scan
from webhook.cluster import ApiError, ApiServer

Json = dict[str, Any]

RULE = "liveness-external-dependency"
DEPLOYMENTS = "/apis/apps/v1/namespaces/ml/deployments"
PODS = "/api/v1/namespaces/ml/pods"
POLICY = "/api/v1/namespaces/mlchassis-system/configmaps"
REPORTS = "/apis/wgpolicyk8s.io/v1alpha2/namespaces/ml/policyreports"
SERVED = {
    "/api/v1": {"Pod": "pods", "ConfigMap": "configmaps"},
    "/apis/apps/v1": {"Deployment": "deployments", "ReplicaSet": "replicasets"},
    "/apis/batch/v1": {"Job": "jobs", "CronJob": "cronjobs"},
    "/apis/serving.kserve.io/v1beta1": {"InferenceService": "inferenceservices"},
    "/apis/serving.kserve.io/v1alpha1": {"ServingRuntime": "servingruntimes"},
    "/apis/wgpolicyk8s.io/v1alpha2": {
        "PolicyReport": "policyreports",
        "ClusterPolicyReport": "clusterpolicyreports",
    },
}
HAZARD: Json = {
    "name": "main",
    "image": "registry.example/recommender:7",
    "livenessProbe": {"exec": {"command": ["curl", "http://payments/health"]}, "timeoutSeconds": 5},
}
SERVER: Json = {"name": "main", "image": "vllm/vllm-openai:v0.11.0", "ports": [{"containerPort": 8000}]}
"""One that gets probes."""


class Answer(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def found(self) -> list[str]:
        """Kind and name of each object that was judged, in order."""
        return [f"{each['kind']} {each['name']}" for each in json.loads(self.out)]


Scan = Callable[..., Awaitable[Answer]]


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setattr(cluster, "RETRY_SECONDS", 0.001)
    async with running() as server:
        serve(server, SERVED)
        await server.put("/api/v1/namespaces", {"metadata": {"name": "ml"}})
        yield server


def serve(fake: FakeApiServer, served: dict[str, dict[str, str]]) -> None:
    """Discovery, as the API server answers it."""
    groups: dict[str, list[Json]] = {}
    for path, kinds in served.items():
        resources = [
            {"kind": kind, "name": name, "namespaced": not kind.startswith("Cluster"), "verbs": ["list"]}
            for kind, name in kinds.items()
        ]
        status = {"kind": "Pod", "name": "pods/status", "namespaced": True, "verbs": ["get"]}
        fake.objects[path] = {"metadata": {}, "resources": [status, *resources]}
        group, _, version = path.removeprefix("/apis/").partition("/")
        groups.setdefault(group, []).append({"groupVersion": f"{group}/{version}"})
    for group, versions in groups.items():
        fake.objects[f"/apis/{group}"] = {
            "metadata": {},
            "preferredVersion": versions[0],
            "versions": versions,
        }


@pytest.fixture
def chassis(fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Scan:
    kubeconfig = fake.kubeconfig(tmp_path)

    async def run(*argv: str) -> Answer:
        arguments = ["scan", "--kubeconfig", str(kubeconfig), *argv]
        status = await asyncio.to_thread(cli.main, arguments)
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture
async def api(fake: FakeApiServer, tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer.connect(fake.kubeconfig(tmp_path)) as connected:
        yield connected


def named(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", **metadata},
        "spec": spec or {},
    }


def deployment(name: str, container: Json = HAZARD, **metadata: Any) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return named(name, {"selector": {"matchLabels": labels}, "template": template}, **metadata)


def pod(name: str, container: Json = HAZARD, **metadata: Any) -> Json:
    return named(name, {"containers": [container]}, **metadata)


def owned_by(api_version: str, kind: str) -> list[Json]:
    return [{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": True}]


# --- what is judged ------------------------------------------------------------------------------------


async def test_only_what_runs_and_is_not_judged_elsewhere(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad"))
    await fake.put(
        "/apis/apps/v1/namespaces/ml/replicasets",
        deployment("bad-1", ownerReferences=owned_by("apps/v1", "Deployment")),
    )
    jobs = "/apis/batch/v1/namespaces/ml/jobs"
    spec = {"template": {"spec": {"containers": [HAZARD], "restartPolicy": "Never"}}}
    for condition in ("Suspended", "Complete", "Failed"):
        status = {"conditions": [{"type": condition, "status": "True"}]}
        await fake.put(jobs, {**named(condition.lower(), spec), "status": status})
    for item in (
        pod("of-replicaset", ownerReferences=owned_by("apps/v1", "ReplicaSet")),
        pod("of-statefulset", ownerReferences=owned_by("apps/v1", "StatefulSet")),  # which is not served here
        pod("of-stranger", ownerReferences=owned_by("example.com/v1", "Deployment")),
        pod("alone", ownerReferences=[{**owned_by("apps/v1", "ReplicaSet")[0], "controller": False}]),
        pod("mirror", annotations={"kubernetes.io/config.mirror": "x"}),
        pod("dying", deletionTimestamp="2026-01-01T00:00:00Z"),
        {**pod("done"), "status": {"phase": "Succeeded"}},
    ):
        await fake.put(PODS, item)
    answer = await chassis("-n", "ml", "-o", "json")
    assert set(answer.found) == {
        "Deployment bad",
        "Job suspended",
        "Pod of-statefulset",
        "Pod of-stranger",
        "Pod alone",
    }
    allowed = {each["name"]: each["allowed"] for each in json.loads(answer.out)}
    assert allowed["of-stranger"], "what has a controller is never refused"
    assert not allowed["alone"]


async def test_of_a_running_object_what_it_lacks_is_told(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("alone", SERVER))
    await fake.put(DEPLOYMENTS, deployment("server", SERVER))
    text = (await chassis("-n", "ml")).out
    assert "standard-probes would add spec.containers[main].{readinessProbe" in text
    assert " added " not in text
    assert " to the pods " not in text, "what is enforced there is there, or comes with the next pod"
    observed = (await chassis("-n", "ml", "--profile", "observe")).out
    assert observed.splitlines()[-1] == "2 objects, 0 warnings, 0 denied"


async def test_kinds_are_read_in_a_version_that_has_them(fake: FakeApiServer, chassis: Scan) -> None:
    root = "/apis/serving.kserve.io"
    runtimes = f"{root}/v1alpha1/namespaces/ml/servingruntimes"
    await fake.put(runtimes, named("runtime", {"containers": [HAZARD]}))
    predictor = {"predictor": {"containers": [HAZARD]}}
    await fake.put(f"{root}/v1beta1/namespaces/ml/inferenceservices", named("model", predictor))
    answer = await chassis("-n", "ml", "-o", "json")
    assert answer.found == ["InferenceService model", "ServingRuntime runtime"]


async def test_labelled_config_maps_alone_are_read(fake: FakeApiServer, chassis: Scan) -> None:
    for name, label in (("models", "model-config"), ("policy", "policy"), ("other", "other")):
        item = {**named(name, labels={f"mlchassis.dev/{label}": "true"}), "data": {"models.json": "["}}
        await fake.put("/api/v1/namespaces/ml/configmaps", item)
    answer = await chassis("-n", "ml", "-o", "json")
    assert set(answer.found) == {"ConfigMap models", "ConfigMap policy"}
    assert answer.status == 1


async def test_namespaces_and_their_labels_count_as_in_admission(
    fake: FakeApiServer, chassis: Scan, tmp_path: Path
) -> None:
    for name, labels in (("ml", {"tier": "test"}), ("prod", {}), ("off", {scan.ADMISSION: "disabled"})):
        await fake.put("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    await fake.put("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
    for namespace in ("ml", "prod", "off", "kube-system"):
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        item = deployment(f"in-{namespace}")
        item["metadata"]["namespace"] = namespace
        await fake.put(path, item)
    policy = tmp_path / "policy"
    policy.mkdir()
    override = {"namespaceSelector": {"matchLabels": {"tier": "test"}}, "modes": {RULE: "warn"}}
    (policy / "webhook.yaml").write_text(yaml.safe_dump({"overrides": [override]}))
    answer = await chassis("-A", "-o", "json", "--policy", str(policy))
    allowed = {each["name"]: each["allowed"] for each in json.loads(answer.out)}
    assert allowed == {"in-ml": True, "in-prod": False}
    assert "leaves namespace kube-system alone" in (await chassis("-n", "kube-system")).err


# --- what is printed -----------------------------------------------------------------------------------


async def test_the_other_formats(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad", managedFields=[{"manager": "x"}]))
    await fake.put(DEPLOYMENTS, deployment("good", SERVER))
    rendered = (await chassis("-n", "ml", "-o", "yaml")).out
    assert rendered.startswith(f"# denied: {RULE}\n# apiVersion: apps/v1\n# kind: Deployment\n")
    (good,) = yaml.safe_load_all(rendered)
    assert (good["apiVersion"], good["kind"], good["metadata"]["name"]) == ("apps/v1", "Deployment", "good")
    suite = ET.fromstring((await chassis("-n", "ml", "-o", "junit")).out)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (sarif,) = json.loads((await chassis("-n", "ml", "-o", "sarif")).out)["runs"]
    place = sarif["results"][0]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "test"
    assert place["logicalLocations"][0]["fullyQualifiedName"].startswith("Deployment ml/bad: spec.")
    diff = (await chassis("-n", "ml", "-o", "diff")).out
    assert "--- test Deployment ml/good\n+++ test Deployment ml/good (reviewed)\n" in diff
    assert "managedFields" not in diff


async def test_exit_status(fake: FakeApiServer, chassis: Scan) -> None:
    assert (await chassis("-n", "ml"))[:2] == (0, "0 objects, 0 changed, 0 warnings, 0 denied\n")
    assert (await chassis("-n", "ml", "-o", "json"))[:2] == (0, "[]\n")
    await fake.put(PODS, pod("alone", ownerReferences=owned_by("example.com/v1", "Deployment")))
    assert (await chassis("-n", "ml")).status == 0
    assert (await chassis("-n", "ml", "--warnings-as-errors")).status == 1
    await fake.put(PODS, pod("alone"))
    assert (await chassis("-n", "ml")).status == 1
    assert (await chassis("-n", "ml", "--profile", "observe", "--warnings-as-errors")).status == 0


# --- the policy ----------------------------------------------------------------------------------------


async def test_the_policy_of_the_cluster_is_taken_if_there_is_one(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("alone"))
    builtin = await chassis("-n", "ml")
    assert builtin.status == 1
    assert (
        "the policy is the built-in one: there is no ConfigMap mlchassis-system/mlchassis-policy"
        in builtin.err
    )
    installed = {"metadata": {"name": "mlchassis-policy"}, "data": {"rules.yaml": f"modes: {{{RULE}: warn}}"}}
    await fake.put(POLICY, installed)
    answer = await chassis("-n", "ml")
    assert answer.status == 0
    assert "the policy is the ConfigMap mlchassis-system/mlchassis-policy" in answer.err
    await fake.put(POLICY, {**installed, "data": {"rules.yaml": "profile: stern"}})
    broken = await chassis("-n", "ml")
    assert (broken.status, broken.out) == (2, "")
    assert "rules.yaml: profile: " in broken.err
    await fake.forbid(POLICY)
    hidden = await chassis("-n", "ml")
    assert hidden.status == 1
    assert "the policy is the built-in one: you may not read the ConfigMap" in hidden.err


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("configmap:ml/none", "there is no ConfigMap ml/none"),
        ("configmap:ml", "must be configmap:NAMESPACE/NAME"),
        ("/nowhere", "/nowhere: No such file or directory"),
    ],
)
async def test_a_policy_that_is_asked_for_must_be_there(chassis: Scan, policy: str, sentence: str) -> None:
    answer = await chassis("-n", "ml", "--policy", policy)
    assert (answer.status, answer.out) == (2, "")
    assert sentence in answer.err


# --- clusters that are not as they should be -----------------------------------------------------------


async def test_a_list_goes_on_where_it_expired(fake: FakeApiServer, chassis: Scan) -> None:
    for name in "abcde":
        await fake.put(PODS, pod(name))
    fake.page_size, fake.expiring = 2, 1
    assert (await chassis("-n", "ml", "-o", "json")).found == [f"Pod {name}" for name in "abcde"]
    assert fake.expiring == 0


async def test_a_list_that_must_be_of_one_moment_does_not_go_on(fake: FakeApiServer, api: ApiServer) -> None:
    for name in "abc":
        await fake.put(PODS, pod(name))
    fake.page_size, fake.expiring = 2, 1
    with pytest.raises(ApiError) as raised:
        [page async for page in api.pages(PODS, {})]
    assert raised.value.status == 410


async def test_objects_are_read_page_by_page(
    fake: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcdef":
        await fake.put(PODS, pod(name))
    fake.page_size = 2
    seen: list[int] = []
    decide = engine.decide

    def counted(*arguments: Any) -> Any:
        seen.append(sum(path == PODS for _, path in fake.requests))
        return decide(*arguments)

    monkeypatch.setattr(scan, "decide", counted)
    await asyncio.to_thread(
        cli.main, ["scan", "--kubeconfig", str(fake.kubeconfig(tmp_path)), "-n", "ml", "-o", "json"]
    )
    assert seen == [2, 2, 3, 3, 4, 4], "one request to see whether it may, then one a page"


async def test_what_is_put_off_is_asked_again(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("alone"))
    fake.putting_off = scan.RETRIES
    assert (await chassis("-n", "ml", "-o", "json")).found == ["Pod alone"]
    fake.putting_off = 1000
    answer = await chassis("-n", "ml")
    assert (answer.status, answer.out) == (2, "")
    assert "the cluster can't be read: 429" in answer.err


async def test_forbidden_kinds_are_told_in_one_sentence(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("made", ownerReferences=owned_by("apps/v1", "Deployment")))
    await fake.put(DEPLOYMENTS, deployment("bad"))
    await fake.forbid(DEPLOYMENTS, "/apis/batch/v1/namespaces/ml/jobs", "/api/v1/nodes")
    answer = await chassis("-n", "ml", "-o", "json")
    assert answer.found == ["Pod made"], "its owner can't be judged"
    unscanned, unknown = (line for line in answer.err.splitlines() if "since" in line)
    assert unscanned.endswith("in namespace ml: Deployment.apps, Job.batch")
    assert unknown.endswith(": Deployment, Node")


async def test_a_cluster_that_fails_half_way_is_not_reported(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad"))
    await fake.put(PODS, pod("alone"))
    decide = engine.decide

    def failing(*arguments: Any) -> Any:
        fake.putting_off = 1000
        return decide(*arguments)

    monkeypatch.setattr(scan, "decide", failing)
    answer = await chassis("-n", "ml", "--report")
    assert answer.status == 2
    assert "the cluster can't be read: 429" in answer.err
    assert not any(path.startswith(REPORTS) for path in fake.objects)


@pytest.mark.parametrize(
    ("content", "argv", "sentence"),
    [
        (None, [], "kubeconfig: there is no such kubeconfig"),
        ("a: [", [], "kubeconfig can't be used: while parsing"),
        ("", [], "kubeconfig can't be used: "),
        ("{}", [], "kubeconfig can't be used: Invalid kube-config file. Expected key current-context"),
        (
            "good",
            ["--context", "other"],
            "can't be used: Invalid kube-config file. Expected object with name other",
        ),
    ],
)
def test_a_kubeconfig_that_can_t_be_used_gets_a_sentence(
    content: str | None,
    argv: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "kubeconfig"
    if content == "good":
        FakeApiServer().kubeconfig(tmp_path)
    elif content is not None:
        path.write_text(content)
    assert cli.main(["scan", "--kubeconfig", str(path), *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), sentence in err) == ("", 1, True), err


def test_without_any_kubeconfig_the_pod_s_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert cli.main(["scan"]) == 2
    assert (
        capsys.readouterr().err == "chassis: no cluster to scan: there is no kubeconfig, and this is no pod\n"
    )


def test_a_cluster_that_is_away_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = FakeApiServer()
    gone.url = "http://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{gone.kubeconfig(tmp_path)}")
    assert cli.main(["scan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "the cluster can't be read: GET " in err


# --- reports -------------------------------------------------------------------------------------------


def reported(fake: FakeApiServer, name: str = policy_reports.NAME) -> Json:
    return fake.objects[f"{REPORTS}/{name}"]


async def test_results_say_what_was_decided(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = registry.rules()[RULE]
    await fake.put(PODS, pod("refused"))
    await fake.put(PODS, pod("warned", ownerReferences=owned_by("example.com/v1", "Deployment")))
    await fake.put(PODS, pod("exempted", annotations={"mlchassis.dev/exempt": f"{RULE}=known"}))
    await chassis("-n", "ml", "--report")
    by_name = {r["resources"][0]["name"]: r for r in reported(fake)["results"] if r["rule"] == RULE}
    said = {name: (r["result"], r["severity"], r["scored"]) for name, r in by_name.items()}
    assert said == {
        "refused": ("fail", "high", True),
        "warned": ("warn", "medium", False),
        "exempted": ("skip", "high", False),
    }
    refused = by_name["refused"]
    assert refused["resources"] == [
        {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "refused", "uid": "uid-refused"}
    ]
    assert (refused["source"], refused["policy"], refused["category"]) == ("mlchassis", RULE, rule.family)
    assert "payments" in refused["message"]
    assert refused["properties"] == {
        "path": "spec.containers[0].livenessProbe.exec.command",
        "mode": "enforce",
    }
    assert by_name["exempted"]["properties"]["exempted"] == "known"
    assert reported(fake)["metadata"]["labels"] == policy_reports.OWN
    await chassis("-n", "ml", "--report", "--profile", "observe")
    audited = [r for r in reported(fake)["results"] if r["rule"] == RULE and r["result"] != "skip"]
    assert {(r["result"], r["severity"]) for r in audited} == {("warn", "low")}


async def test_a_change_that_a_running_object_lacks_and_a_crash_are_results(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.put(PODS, pod("alone", SERVER))
    await fake.put(DEPLOYMENTS, deployment("server", SERVER))

    def fails(*_: object) -> Any:
        raise RuntimeError("oh")

    rules = registry.rules()
    broken = {**rules, RULE: replace(rules[RULE], check=fails)}
    monkeypatch.setattr(registry, "rules", lambda: broken)
    await chassis("-n", "ml", "--report")
    found = {(r["resources"][0]["name"], r["policy"], r["result"]): r for r in reported(fake)["results"]}
    lacking = found["alone", "standard-probes", "warn"]
    assert lacking["message"].startswith("standard-probes would add spec.containers[main].{")
    assert ("server", "standard-probes", "warn") not in found
    assert found["alone", RULE, "error"]["message"] == "It failed on this object: RuntimeError: oh"


async def test_reports_are_kept_rewritten_and_removed(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {**named("other", labels={"app.kubernetes.io/managed-by": "kyverno"}), "results": []}
    await fake.put(REPORTS, foreign)
    await fake.put(PODS, pod("a"))
    assert "1 written, 0 unchanged, 0 removed" in (await chassis("-n", "ml", "--report")).err
    first = reported(fake)
    fake.objects[f"{REPORTS}/mlchassis"]["metadata"]["annotations"] = {"mine": "stays"}
    monkeypatch.setattr(ApiServer, "now", lambda _: 4_000_000_000.0)
    assert "0 written, 1 unchanged, 0 removed" in (await chassis("-n", "ml", "--report")).err
    await fake.put(PODS, pod("b"))
    assert "1 written, 0 unchanged, 0 removed" in (await chassis("-n", "ml", "--report")).err
    times = {r["resources"][0]["name"]: r["timestamp"]["seconds"] for r in reported(fake)["results"]}
    assert times == {"a": first["results"][0]["timestamp"]["seconds"], "b": 4_000_000_000}
    assert reported(fake)["metadata"]["annotations"] == {"mine": "stays"}
    for name in "ab":
        await fake.delete(f"{PODS}/{name}")
    assert "0 written, 0 unchanged, 1 removed" in (await chassis("-A", "--report")).err
    assert [path for path in fake.objects if path.startswith(REPORTS)] == [f"{REPORTS}/other"]


async def test_a_namespace_with_much_to_say_gets_several_reports(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_reports, "MOST_RESULTS", 2)
    for name in "abcde":
        await fake.put(PODS, pod(name))
    assert "3 written" in (await chassis("-n", "ml", "--report")).err
    names = ("mlchassis", "mlchassis-2", "mlchassis-3")
    assert [len(reported(fake, name)["results"]) for name in names] == [2, 2, 1]
    assert sum(reported(fake, name)["summary"]["fail"] for name in names) == 5
    for name in "bcde":
        await fake.delete(f"{PODS}/{name}")
    assert "1 written, 0 unchanged, 2 removed" in (await chassis("-n", "ml", "--report")).err


async def test_two_scans_at_once_leave_what_the_last_one_found(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("a"))
    other = {**named("mlchassis", labels=policy_reports.OWN), "results": []}

    async def overtake() -> None:
        await fake.put(REPORTS, other)

    for _ in ("created meanwhile", "replaced meanwhile"):
        fake.before_write = overtake
        assert "1 written" in (await chassis("-n", "ml", "--report")).err
        assert [r["resources"][0]["name"] for r in reported(fake)["results"]] == ["a"]
        await fake.put(PODS, pod("a", uid="another"))
    await fake.delete(f"{PODS}/a")
    fake.before_write = overtake
    assert "1 removed" in (await chassis("-n", "ml", "--report")).err
    assert f"{REPORTS}/mlchassis" not in fake.objects


async def test_a_report_of_another_s_is_not_overwritten(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("a"))
    theirs = await fake.put(REPORTS, named("mlchassis"))
    answer = await chassis("-n", "ml", "--report")
    assert answer.status == 2
    assert f"{REPORTS}/mlchassis is another's, or written by others meanwhile" in answer.err
    assert reported(fake) == theirs


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "unable to create new content in namespace ml because it is being terminated"),
        (404, 'namespaces "ml" not found'),
    ],
)
async def test_a_namespace_that_goes_away_meanwhile_is_passed_over(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    async def gone(*_: object) -> bool:
        raise ApiError(status, "", message)

    monkeypatch.setattr(ApiServer, "unless_conflict", gone)
    await fake.put(PODS, pod("a"))
    answer = await chassis("-n", "ml", "--report")
    assert answer.status == 1
    assert "PolicyReports: 0 written, 0 unchanged, 0 removed" in answer.err


async def test_reports_that_can_t_be_written_are_told(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("a"))
    await fake.forbid(REPORTS)
    forbidden = await chassis("-n", "ml", "--report")
    assert forbidden.status == 2
    assert "DENIED Pod ml/a" in forbidden.out
    assert "--report: the PolicyReports can't be written: 403 Forbidden" in forbidden.err
    del fake.objects["/apis/wgpolicyk8s.io/v1alpha2"]
    missing = await chassis("-n", "ml", "--report")
    assert (missing.status, missing.out) == (2, "")
    assert "--report: the cluster has no PolicyReports (wgpolicyk8s.io/v1alpha2)" in missing.err
