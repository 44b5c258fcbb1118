"""`chassis scan` against a small API server: readable and forbidden kinds, and failures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.core.annotations import ADMISSION
from policies.core.facts import NoCluster
from policies.core.finding import Finding, Mode
from tests.webhook.cli.scanned import (
    DEPLOYMENTS,
    HAZARD,
    MUTATOR,
    PODS,
    REPORTS,
    RULE,
    SERVED,
    SERVER,
    Chassis,
    InCluster,
    deployment,
    named,
    owned_by,
    pod,
    serve,
)
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission import engine
from webhook.admission.decision import Decision, Result
from webhook.cli import cluster_reviews, connection
from webhook.cli.output import sarif
from webhook.cli.reviewed import Reviewed, Subject
from webhook.config.load import load
from webhook.kube import api as api_server
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError
from webhook.manifests.files import Document

# --- the reviewed objects --------------------------------------------------------------------------------


async def test_only_running_objects_that_no_owner_covers(fake: FakeApiServer, scan: InCluster) -> None:
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
    answer = await scan("-o", "json")
    assert set(answer.found) == {
        "Deployment bad",
        "Job suspended",
        "Pod of-statefulset",
        "Pod of-stranger",
        "Pod alone",
    }
    allowed = {each["name"]: each["allowed"] for each in answer.json}
    assert allowed["of-stranger"], "what has a controller is never refused"
    assert not allowed["alone"]


async def test_a_service_is_read_with_the_runtime_of_its_cluster(
    fake: FakeApiServer, scan: InCluster
) -> None:
    services = "/apis/serving.kserve.io/v1beta1/namespaces/ml/inferenceservices"
    runtimes = "/apis/serving.kserve.io/v1alpha1/namespaces/ml/servingruntimes"
    for name, runtime in (("merged", "own"), ("alone", "gone")):
        model = {"modelFormat": {"name": "x"}, "runtime": runtime, "args": ["--a"]}
        await fake.put(services, named(name, {"predictor": {"model": model}}))
    container = {"name": "kserve-container", "image": "example.org/server:1"}
    await fake.put(runtimes, named("own", {"containers": [container]}))
    answer = await scan("-o", "json")
    readings = {each["name"]: each["reading"] for each in answer.json}
    assert readings == {"merged": "reviewed", "alone": "partly reviewed", "own": "reviewed"}
    await fake.forbid(runtimes)
    answer = await scan("-o", "json")
    readings = {each["name"]: each["reading"] for each in answer.json}
    assert readings == {"merged": "partly reviewed", "alone": "partly reviewed"}


async def test_a_running_objects_missing_fields_are_listed(fake: FakeApiServer, scan: InCluster) -> None:
    await fake.put(PODS, pod("alone", SERVER))
    await fake.put(DEPLOYMENTS, deployment("server", SERVER))
    text = (await scan()).out
    assert "standard-probes would add\n" in text
    assert "    spec.containers[main].readinessProbe: GET " in text
    assert " added " not in text
    assert " to the pods " not in text, "what is enforced there is there, or comes with the next pod"
    observed = (await scan("--profile", "observe")).out
    assert observed.splitlines()[-1] == "2 objects, 0 warnings, 0 denied"


async def test_kinds_are_read_in_a_version_that_has_them(fake: FakeApiServer, scan: InCluster) -> None:
    root = "/apis/serving.kserve.io"
    runtimes = f"{root}/v1alpha1/namespaces/ml/servingruntimes"
    await fake.put(runtimes, named("runtime", {"containers": [HAZARD]}))
    predictor = {"predictor": {"containers": [HAZARD]}}
    await fake.put(f"{root}/v1beta1/namespaces/ml/inferenceservices", named("model", predictor))
    answer = await scan("-o", "json")
    assert answer.found == ["InferenceService model", "ServingRuntime runtime"]


async def test_a_cluster_scoped_template_belongs_to_no_namespace(
    fake: FakeApiServer, scan: InCluster, in_cluster: InCluster
) -> None:
    """Its pods read the ConfigMaps of the namespaces that use it, and so does each InferenceService."""
    group = "/apis/serving.kserve.io/v1alpha1"
    served = {"ServingRuntime": "servingruntimes", "ClusterServingRuntime": "clusterservingruntimes"}
    serve(fake, {**SERVED, group: served})
    container = {**HAZARD, "envFrom": [{"configMapRef": {"name": "gone"}}]}
    runtime = {"metadata": {"name": "all", "uid": "uid-all"}, "spec": {"containers": [container]}}
    await fake.put(f"{group}/clusterservingruntimes", runtime)
    await fake.put(f"{group}/namespaces/ml/servingruntimes", named("own", {"containers": [container]}))
    rules = {
        each["name"]: [one["rule"] for one in each["findings"]]
        for each in (await scan("-A", "-o", "json")).json
    }
    assert "dependency-missing" in rules["own"]
    assert "dependency-missing" not in rules["all"]
    text = (await in_cluster("graph", "-A")).out
    assert "\nClusterServingRuntime all\n" in f"\n{text}"
    assert "reads ConfigMap ml/gone" in text
    assert "default" not in text


async def test_only_labelled_config_maps_are_read(fake: FakeApiServer, scan: InCluster) -> None:
    for name, label in (("models", "model-config"), ("policy", "policy"), ("other", "other")):
        item = {**named(name, labels={f"mlchassis.dev/{label}": "true"}), "data": {"models.json": "["}}
        await fake.put("/api/v1/namespaces/ml/configmaps", item)
    answer = await scan("-o", "json")
    assert set(answer.found) == {"ConfigMap models", "ConfigMap policy"}
    assert answer.status == 1


async def test_namespaces_and_their_labels_count_as_in_admission(
    fake: FakeApiServer, scan: InCluster, tmp_path: Path
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
    answer = await scan("-A", "-o", "json", "--policy", str(policy))
    allowed = {each["name"]: each["allowed"] for each in answer.json}
    assert allowed == {"in-ml": True, "in-prod": False}
    assert "excludes namespace kube-system" in (await scan("-n", "kube-system")).err


# --- the output ----------------------------------------------------------------------------------------


async def test_the_other_formats(fake: FakeApiServer, scan: InCluster) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad", managedFields=[{"manager": "x"}]))
    await fake.put(DEPLOYMENTS, deployment("good", SERVER))
    rendered = (await scan("-o", "yaml")).out
    assert rendered.startswith(f"# denied: {RULE}\n# apiVersion: apps/v1\n# kind: Deployment\n")
    assert "managedFields" not in rendered
    (good,) = yaml.safe_load_all(rendered)
    assert (good["apiVersion"], good["kind"], good["metadata"]["name"]) == ("apps/v1", "Deployment", "good")
    assert good["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    suite = ET.fromstring((await scan("-o", "junit")).out)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [failure.get("message") for failure in suite.iter("failure")] == [RULE]
    (sarif,) = (await scan("-o", "sarif")).json["runs"]
    place = sarif["results"][0]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "test"
    assert place["logicalLocations"][0]["fullyQualifiedName"].startswith("Deployment ml/bad: spec.")
    diff = (await scan("-o", "diff")).out
    assert "--- test Deployment ml/good\n+++ test Deployment ml/good (reviewed)\n" in diff


def test_a_context_s_name_is_an_address_in_sarif() -> None:
    obj = pod("a")
    result = Result(RULE, Finding("spec", "why", "how"), Mode.ENFORCE)
    document = Document("my cluster", None, obj)
    review = Reviewed(document, Decision(obj, results=(result,)), document.request())
    log = json.loads("".join(sarif.pieces([review], Subject("", "", load({}), NoCluster(), 0))))
    (place,) = log["runs"][0]["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "my%20cluster"


async def test_exit_status(fake: FakeApiServer, scan: InCluster) -> None:
    assert (await scan())[:2] == (0, "0 objects, 0 changed, 0 warnings, 0 denied\n")
    assert (await scan("-o", "json"))[:2] == (0, "[]\n")
    await fake.put(PODS, pod("alone", ownerReferences=owned_by("example.com/v1", "Deployment")))
    assert (await scan()).status == 0
    assert (await scan("--warnings-as-errors")).status == 1
    await fake.put(PODS, pod("alone"))
    assert (await scan()).status == 1
    assert (await scan("--profile", "observe", "--warnings-as-errors")).status == 0


# --- the policy ----------------------------------------------------------------------------------------


async def test_the_policy_of_the_cluster_is_taken_if_there_is_one(
    fake: FakeApiServer, scan: InCluster
) -> None:
    await fake.put(PODS, pod("alone"))
    builtin = await scan()
    assert builtin.status == 1
    missing = "there is no ConfigMap mlchassis-system/mlchassis-policy"
    assert f"using the built-in policy: {missing}" in builtin.err
    installed = {"metadata": {"name": "mlchassis-policy"}, "data": {"rules.yaml": f"modes: {{{RULE}: warn}}"}}
    await fake.put(MUTATOR, installed)
    answer = await scan()
    assert answer.status == 0
    assert "the policy is the ConfigMap mlchassis-system/mlchassis-policy" in answer.err
    await fake.put(MUTATOR, {**installed, "data": {"rules.yaml": "profile: stern"}})
    broken = await scan()
    assert (broken.status, broken.out) == (2, "")
    assert "rules.yaml: profile: " in broken.err
    await fake.forbid(MUTATOR)
    hidden = await scan()
    assert hidden.status == 1
    assert "using the built-in policy: you may not read the ConfigMap" in hidden.err


async def test_a_policy_that_can_t_be_looked_for_ends_the_scan(fake: FakeApiServer, scan: InCluster) -> None:
    fake.token = "another"
    answer = await scan()
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
async def test_a_policy_that_is_asked_for_must_be_there(scan: InCluster, policy: str, sentence: str) -> None:
    answer = await scan("--policy", policy)
    assert (answer.status, answer.out) == (2, "")
    assert sentence in answer.err


# --- clusters that are not as they should be -----------------------------------------------------------


async def test_a_list_goes_on_where_it_expired(fake: FakeApiServer, scan: InCluster) -> None:
    for name in "abcde":
        await fake.put(PODS, pod(name))
    fake.page_size, fake.expiring = 2, 1
    assert (await scan("-o", "json")).found == [f"Pod {name}" for name in "abcde"]
    assert fake.expiring == 0


async def test_a_list_that_must_be_of_one_moment_does_not_go_on(fake: FakeApiServer, api: ApiServer) -> None:
    for name in "abc":
        await fake.put(PODS, pod(name))
    fake.page_size, fake.expiring = 2, 1
    with pytest.raises(ApiError) as raised:
        [page async for page in api.pages(PODS, {})]
    assert raised.value.status == 410


async def test_objects_are_read_page_by_page(
    fake: FakeApiServer, scan: InCluster, monkeypatch: pytest.MonkeyPatch
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
    await scan("-o", "json")
    assert seen == [2, 2, 3, 3, 4, 4], "one request for the right to list, then one for each page"


async def test_a_delayed_request_is_asked_again(
    fake: FakeApiServer, scan: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "RETRY_SECONDS", 0.001)
    await fake.put(PODS, pod("alone"))
    fake.putting_off = connection.RETRIES
    assert (await scan("-o", "json")).found == ["Pod alone"]
    fake.putting_off = 1000
    answer = await scan()
    assert (answer.status, answer.out) == (2, "")
    assert "the cluster can't be read: 429" in answer.err


async def test_forbidden_kinds_are_named_in_one_sentence(fake: FakeApiServer, scan: InCluster) -> None:
    await fake.put(PODS, pod("made", ownerReferences=owned_by("apps/v1", "Deployment")))
    await fake.put(DEPLOYMENTS, deployment("bad"))
    await fake.forbid(DEPLOYMENTS, "/apis/batch/v1/namespaces/ml/jobs", "/api/v1/nodes")
    answer = await scan("-o", "json")
    assert answer.found == ["Pod made"], "its owner can't be judged"
    unscanned, unknown = (line for line in answer.err.splitlines() if "because" in line)
    assert unscanned.endswith("in namespace ml: Deployment.apps, Job.batch")
    assert unknown.endswith(": Deployment, Node")


async def test_a_cluster_that_fails_half_way_is_not_reported(
    fake: FakeApiServer, scan: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.put(DEPLOYMENTS, deployment("bad"))
    await fake.put(PODS, pod("alone"))
    decide = engine.decide

    def failing(*arguments: Any) -> Any:
        fake.putting_off = 1000
        return decide(*arguments)

    monkeypatch.setattr(cluster_reviews, "decide", failing)
    monkeypatch.setattr(api_server, "RETRY_SECONDS", 0.001)
    answer = await scan("--report")
    assert answer.status == 2
    assert "the cluster can't be read: 429" in answer.err
    assert not any(path.startswith(REPORTS) for path in fake.objects)


BAD_CA = {"certificate-authority-data": "Z2FyYmFnZQ==", "server": "https://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("content", "argv", "sentence"),
    [
        (None, [], "kubeconfig: there is no such kubeconfig"),
        ("a: [", [], "kubeconfig can't be used: while parsing"),
        ("", [], "kubeconfig can't be used: "),
        ("{}", [], "kubeconfig can't be used: Invalid kube-config file. Expected key current-context"),
        (BAD_CA, [], "kubeconfig can't be used: [X509"),
        ({}, ["--context", "other"], "Invalid kube-config file. Expected object with name other"),
    ],
)
def test_an_invalid_kubeconfig_gets_a_sentence(
    content: str | dict[str, str] | None, argv: list[str], sentence: str, tmp_path: Path, chassis: Chassis
) -> None:
    path = tmp_path / "kubeconfig"
    if isinstance(content, dict):
        config = json.loads(FakeApiServer().kubeconfig(tmp_path).read_text())
        config["clusters"][0]["cluster"] |= content
        path.write_text(json.dumps(config))
    elif content is not None:
        path.write_text(content)
    status, out, err = chassis("scan", "--kubeconfig", path, *argv)
    assert (status, out, err.count("\n"), sentence in err) == (2, "", 1, True), err


def test_without_a_kubeconfig_the_pod_s_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chassis: Chassis
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    message = "no cluster to read: there is no kubeconfig, and this command isn't running in a pod"
    assert chassis("scan") == (2, "", f"chassis: {message}\n")


def test_an_unreachable_cluster_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chassis: Chassis
) -> None:
    gone = FakeApiServer()
    gone.url = "http://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{gone.kubeconfig(tmp_path)}")
    status, out, err = chassis("scan")
    assert (status, out) == (2, "")
    assert "the cluster can't be read: GET " in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--missed -o html", "--missed can only be used with -o text or json"),
        ("--missed --report", "--missed can't be used with --report"),
        ("--missed --statistics", "--missed can't be used with --statistics"),
        ("--missed --view servers", "--missed can't be used with --view"),
        ("--view servers -o sarif", "--view servers can only be used with -o text or json"),
        ("--view servers --report", "--view servers can't be used with --report"),
        ("--view servers --statistics", "--view servers can't be used with --statistics"),
        ("--view models -o html", "--view models can only be used with -o text or json"),
        ("--view models --report", "--view models can't be used with --report"),
        ("--view models --statistics", "--view models can't be used with --statistics"),
        ("--repair", "--repair and --yes can only be used with --missed"),
        ("--yes", "--repair and --yes can only be used with --missed"),
        ("--missed --yes", "--yes can only be used with --repair"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(chassis: Chassis, flags: str, message: str) -> None:
    status, _, err = chassis("scan", *flags.split())
    assert status == 2
    assert message in err


async def test_other_webhooks_are_compared_with_each_other(fake: FakeApiServer, scan: InCluster) -> None:
    version = "/apis/admissionregistration.k8s.io/v1"
    serve(fake, {**SERVED, version: {"MutatingWebhookConfiguration": "mutatingwebhookconfigurations"}})
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    for name, seconds in (("a", 10), ("b", 30)):
        entry = {
            "name": f"{name}.example.com",
            "failurePolicy": "Ignore",
            "timeoutSeconds": seconds,
            "rules": [rule],
        }
        item = {"metadata": {"name": name}, "webhooks": [entry]}
        await fake.put(f"{version}/mutatingwebhookconfigurations", item)
    answer = await scan("-A", "-o", "json")
    found = {each["name"]: [finding["rule"] for finding in each["findings"]] for each in answer.json}
    assert found == {"a": [], "b": ["webhook-timeouts-add-up"]}
