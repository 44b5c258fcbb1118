"""`chassis scan` against a small API server: readable and forbidden kinds, and failures."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.core.annotations import ADMISSION
from policies.core.facts import NoCluster
from policies.core.finding import Finding
from policies.core.mode import Mode
from tests.webhook.cli.scanned import (
    DEPLOYMENTS,
    HAZARD,
    MUTATOR,
    PODS,
    REPORTS,
    RULE,
    SERVER,
    Scan,
    deployment,
    named,
    owned_by,
    pod,
)
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission import engine
from webhook.admission.decision import Decision, Result
from webhook.cli import cluster_reviews, connection
from webhook.cli import main as cli
from webhook.cli.output import sarif
from webhook.cli.output.review import Review, Subject
from webhook.config.load import load
from webhook.kube import api as api_server
from webhook.kube.api import ApiServer
from webhook.kube.errors import ApiError
from webhook.kube.offline import Document


@pytest.fixture
async def api(fake: FakeApiServer, tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer.connect(fake.kubeconfig(tmp_path)) as connected:
        yield connected


# --- the judged objects --------------------------------------------------------------------------------


async def test_only_running_objects_that_are_not_judged_elsewhere(fake: FakeApiServer, chassis: Scan) -> None:
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


async def test_a_service_is_read_with_the_runtime_of_its_cluster(fake: FakeApiServer, chassis: Scan) -> None:
    services = "/apis/serving.kserve.io/v1beta1/namespaces/ml/inferenceservices"
    runtimes = "/apis/serving.kserve.io/v1alpha1/namespaces/ml/servingruntimes"
    for name, runtime in (("merged", "own"), ("alone", "gone")):
        model = {"modelFormat": {"name": "x"}, "runtime": runtime, "args": ["--a"]}
        await fake.put(services, named(name, {"predictor": {"model": model}}))
    container = {"name": "kserve-container", "image": "example.org/server:1"}
    await fake.put(runtimes, named("own", {"containers": [container]}))
    answer = await chassis("-n", "ml", "-o", "json")
    readings = {each["name"]: each["reading"] for each in json.loads(answer.out)}
    assert readings == {"merged": "reviewed", "alone": "partly reviewed", "own": "reviewed"}
    await fake.forbid(runtimes)
    answer = await chassis("-n", "ml", "-o", "json")
    readings = {each["name"]: each["reading"] for each in json.loads(answer.out)}
    assert readings == {"merged": "partly reviewed", "alone": "partly reviewed"}


async def test_a_running_objects_missing_fields_are_listed(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(PODS, pod("alone", SERVER))
    await fake.put(DEPLOYMENTS, deployment("server", SERVER))
    text = (await chassis("-n", "ml")).out
    assert "standard-probes would add\n" in text
    assert "    spec.containers[main].readinessProbe: GET " in text
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


async def test_only_labelled_config_maps_are_read(fake: FakeApiServer, chassis: Scan) -> None:
    for name, label in (("models", "model-config"), ("policy", "policy"), ("other", "other")):
        item = {**named(name, labels={f"mlchassis.dev/{label}": "true"}), "data": {"models.json": "["}}
        await fake.put("/api/v1/namespaces/ml/configmaps", item)
    answer = await chassis("-n", "ml", "-o", "json")
    assert set(answer.found) == {"ConfigMap models", "ConfigMap policy"}
    assert answer.status == 1


async def test_namespaces_and_their_labels_count_as_in_admission(
    fake: FakeApiServer, chassis: Scan, tmp_path: Path
) -> None:
    for name, labels in (("ml", {"tier": "test"}), ("prod", {}), ("off", {ADMISSION: "disabled"})):
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


# --- the output ----------------------------------------------------------------------------------------


async def test_the_other_formats(fake: FakeApiServer, chassis: Scan) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad", managedFields=[{"manager": "x"}]))
    await fake.put(DEPLOYMENTS, deployment("good", SERVER))
    rendered = (await chassis("-n", "ml", "-o", "yaml")).out
    assert rendered.startswith(f"# denied: {RULE}\n# apiVersion: apps/v1\n# kind: Deployment\n")
    assert "managedFields" not in rendered
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


def test_a_context_s_name_is_an_address_in_sarif() -> None:
    obj = pod("a")
    result = Result(RULE, Finding("spec", "why", "how"), Mode.ENFORCE)
    document = Document("my cluster", None, obj)
    review = Review(document, Decision(obj, results=(result,)), document.request())
    (result,) = json.loads("".join(sarif.pieces([review], Subject("", "", load({}), NoCluster(), 0))))[
        "runs"
    ][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my%20cluster"


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
    await fake.put(MUTATOR, installed)
    answer = await chassis("-n", "ml")
    assert answer.status == 0
    assert "the policy is the ConfigMap mlchassis-system/mlchassis-policy" in answer.err
    await fake.put(MUTATOR, {**installed, "data": {"rules.yaml": "profile: stern"}})
    broken = await chassis("-n", "ml")
    assert (broken.status, broken.out) == (2, "")
    assert "rules.yaml: profile: " in broken.err
    await fake.forbid(MUTATOR)
    hidden = await chassis("-n", "ml")
    assert hidden.status == 1
    assert "the policy is the built-in one: you may not read the ConfigMap" in hidden.err


async def test_a_policy_that_can_t_be_looked_for_ends_the_scan(fake: FakeApiServer, chassis: Scan) -> None:
    fake.token = "another"
    answer = await chassis("-n", "ml")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "chassis: the cluster can't be read: 401 Unauthorized: who are you?\n"


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


def test_a_ca_that_is_none_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = FakeApiServer()
    away.url = "https://127.0.0.1:1"
    path = away.kubeconfig(tmp_path)
    config = json.loads(path.read_text())
    config["clusters"][0]["cluster"]["certificate-authority-data"] = "Z2FyYmFnZQ=="
    path.write_text(json.dumps(config))
    assert cli.main(["scan", "--kubeconfig", str(path)]) == 2
    assert f"chassis: {path} can't be used: [X509" in capsys.readouterr().err


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

    monkeypatch.setattr(cluster_reviews, "decide", counted)
    await asyncio.to_thread(
        cli.main, ["scan", "--kubeconfig", str(fake.kubeconfig(tmp_path)), "-n", "ml", "-o", "json"]
    )
    assert seen == [2, 2, 3, 3, 4, 4], "one request to see whether it may, then one a page"


async def test_a_delayed_request_is_asked_again(
    fake: FakeApiServer, chassis: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "RETRY_SECONDS", 0.001)
    await fake.put(PODS, pod("alone"))
    fake.putting_off = connection.RETRIES
    assert (await chassis("-n", "ml", "-o", "json")).found == ["Pod alone"]
    fake.putting_off = 1000
    answer = await chassis("-n", "ml")
    assert (answer.status, answer.out) == (2, "")
    assert "the cluster can't be read: 429" in answer.err


async def test_forbidden_kinds_are_named_in_one_sentence(fake: FakeApiServer, chassis: Scan) -> None:
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

    monkeypatch.setattr(cluster_reviews, "decide", failing)
    monkeypatch.setattr(api_server, "RETRY_SECONDS", 0.001)
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
        capsys.readouterr().err
        == "chassis: no cluster to read: there is no kubeconfig, and this command does not run in a pod\n"
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--missed -o html", "--missed goes with -o text or json"),
        ("--missed --ask", "--missed does not go with --ask"),
        ("--missed --view servers", "--missed does not go with --view"),
        ("--view servers -o sarif", "--view servers goes with -o text, json or html"),
        ("--view models --report", "--view models does not go with --report"),
        ("--view servers -o html --split-by-namespace x", "does not go with --split-by-namespace"),
        ("--repair", "--repair and --yes go with --missed"),
        ("--missed --yes", "--yes goes with --repair"),
        ("--ask", "--ask goes with --view servers"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], flags: str, said: str
) -> None:
    assert cli.main(["scan", *flags.split()]) == 2
    assert said in capsys.readouterr().err
