"""`chassis scan` against the real API server: what it judges, what it may not read, what it reports."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e.api import JSON
from tests.e2e.binaries import module_source
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import UNKNOWN, container, job, pod, workload
from tests.manifests import manifest
from webhook.cli import main as cli
from webhook.kube import api as cluster

pytestmark = pytest.mark.e2e

OPEN_REPORTS = (
    "github.com/openreports/reports-api",
    "v0.2.1",
    "h1:g9KS3yle9Y1elmww4TK9EkD1rl6inIaiIJPX6e+u680=",
)
CRDS = Path(__file__).parent / "scan_crds.yaml"
RIGHTS = Path(__file__).parents[2] / "manifests" / "components" / "scan" / "rbac.yaml"
RULE = "liveness-external-dependency"
ASKS_PAYMENTS = {"exec": {"command": ["curl", "-f", "http://payments/health"]}, "timeoutSeconds": 5}
HAZARD = container(UNKNOWN, livenessProbe=ASKS_PAYMENTS)
GOOD = container(
    UNKNOWN,
    startupProbe={"httpGet": {"path": "/live", "port": 8000}, "timeoutSeconds": 5, "failureThreshold": 30},
    livenessProbe={"httpGet": {"path": "/live", "port": 8000}, "timeoutSeconds": 5, "failureThreshold": 6},
    readinessProbe={"httpGet": {"path": "/ready", "port": 8000}, "timeoutSeconds": 5},
)
EXEMPT = {"mlchassis.dev/exempt": f"{RULE}=it is the pod's own proxy"}
LEFT_ALONE = "mlchassis.dev/admission"


@dataclass
class Answer:
    """The output of one `chassis scan`, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def records(self) -> dict[tuple[str, str], JSON]:
        """By kind and name, which are unique in one namespace only."""
        return {(each["kind"], each["name"]): each for each in json.loads(self.out)}

    @property
    def denied(self) -> set[tuple[str, str]]:
        return {key for key, record in self.records.items() if not record["allowed"]}


Scan = Callable[..., Answer]


@pytest.fixture
def scan(control_plane: ControlPlane, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Scan:
    """Scan with the built-in policy, as the administrator unless another kubeconfig is given."""

    def run(*argv: str, kubeconfig: Path | None = None, policy: str | None = None) -> Answer:
        arguments = ["--kubeconfig", str(kubeconfig or control_plane.kubeconfig)]
        (tmp_path / "rules.yaml").touch()
        arguments += ["--policy", policy or str(tmp_path)]
        status = cli.main(["scan", *arguments, *argv])
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def crds(control_plane: ControlPlane) -> Iterator[None]:
    control_plane.apply(CRDS.read_text())
    names = control_plane.kubectl("get", "-f", "-", "-o", "name", stdin=CRDS.read_text()).stdout.split()
    control_plane.kubectl("wait", "--for=condition=Established", *names)
    yield
    control_plane.kubectl("delete", "--wait=true", *names)


@pytest.fixture
def team(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace with objects of every sort, let in while admission did not look at it."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    control_plane.create_namespace(name, {LEFT_ALONE: "disabled"})
    api = control_plane.api
    exempted = workload("Deployment", "exempted", HAZARD, replicas=2)
    exempted["metadata"]["annotations"] = EXEMPT
    for item in (
        workload("Deployment", "good", GOOD, replicas=2),
        workload("Deployment", "bad", HAZARD, replicas=2),
        exempted,
        pod("alone", HAZARD),
        job("done", container(UNKNOWN, livenessProbe=ASKS_PAYMENTS)),
        budget("stuck"),
        labelled("models", {"models.json": "["}),
    ):
        api.create(item, name)
    api.create({**labelled("other", {}), "metadata": {"name": "other"}}, name)
    api.wait_for("pods", lambda pods: len(pods) == 2, namespace=name, labels="app=bad")
    api.wait("jobs", "done", lambda it: bool(it["status"].get("completionTime")), namespace=name)
    api.patch("namespaces", name, {"metadata": {"labels": {LEFT_ALONE: None}}})
    yield name
    api.delete("namespaces", name)


def budget(name: str) -> JSON:
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "bad"}}}
    return manifest("PodDisruptionBudget", name, spec)


def labelled(name: str, data: dict[str, str]) -> JSON:
    labels = {"mlchassis.dev/model-config": "true"}
    return manifest("ConfigMap", name, data=data, labels=labels)


DENIED = {
    ("Deployment", "bad"),
    ("Pod", "alone"),
    ("PodDisruptionBudget", "stuck"),
    ("ConfigMap", "models"),
}
ADMITTED = {("Deployment", "good"), ("Deployment", "exempted")}


# --- before the CRDs are there, so it comes first -------------------------------------------------------


def test_without_its_crds_a_report_is_refused_at_once(scan: Scan, team: str) -> None:
    answer = scan("-n", team, "--report")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert "install their two CRDs" in answer.err


# --- findings ------------------------------------------------------------------------------------------


def test_each_object_is_judged_once_where_it_is_written(scan: Scan, team: str) -> None:
    answer = scan("-n", team, "-o", "json")
    assert answer.status == 1
    assert set(answer.records) == DENIED | ADMITTED, "no ReplicaSet, no pod of one, no finished Job"
    assert answer.denied == DENIED
    bad = answer.records["Deployment", "bad"]
    assert (bad["source"], bad["document"], bad["apiVersion"]) == ("ml-chassis", None, "apps/v1")
    assert RULE in {finding["rule"] for finding in bad["findings"]}
    assert "managedFields" not in bad["object"]["metadata"]
    exempted = answer.records["Deployment", "exempted"]["findings"]
    assert {f["exempted"] for f in exempted if f["rule"] == RULE} == {"it is the pod's own proxy"}


def test_text_names_what_to_mend(scan: Scan, team: str) -> None:
    answer = scan("-n", team)
    assert f"DENIED Deployment {team}/bad (ml-chassis)\n" in answer.out
    assert f"  refused {RULE}\n    at spec.template.spec.containers[0].livenessProbe" in answer.out
    assert "will add" not in answer.out, "what the pods get anyway is no news"
    assert answer.out.splitlines()[-1].startswith("6 objects, ")
    assert answer.out.splitlines()[-1].endswith(", 4 denied")


def test_all_namespaces_but_those_left_alone(scan: Scan, team: str, control_plane: ControlPlane) -> None:
    alone = f"{team}-alone"
    control_plane.create_namespace(alone, {LEFT_ALONE: "disabled"})
    control_plane.api.create(pod("bad", HAZARD), alone)
    found = {(each["namespace"], each["name"]) for each in json.loads(scan("-A", "-o", "json").out)}
    assert (team, "bad") in found
    assert {place for place, _ in found}.isdisjoint({alone, "kube-system", "kube-node-lease"})
    answer = scan("-n", alone)
    assert (answer.status, answer.out) == (0, "0 objects, 0 changed, 0 warnings, 0 denied\n")
    assert f"excludes namespace {alone}" in answer.err
    control_plane.api.delete("namespaces", alone)


def test_the_namespace_of_the_context_is_the_default(
    scan: Scan, team: str, control_plane: ControlPlane, tmp_path: Path
) -> None:
    config = json.loads(control_plane.kubeconfig.read_text())
    config["contexts"].append(
        {"name": "team", "context": {**config["contexts"][0]["context"], "namespace": team}}
    )
    mine = tmp_path / "kubeconfig"
    mine.write_text(json.dumps(config))
    answer = scan("--context", "team", "-o", "json", kubeconfig=mine)
    assert answer.denied == DENIED
    assert {record["source"] for record in answer.records.values()} == {"team"}


def test_small_pages_make_the_same_scan(scan: Scan, team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scan("-n", team, "-o", "json")
    monkeypatch.setattr(cluster, "LIST_PAGE", 1)
    paged = scan("-n", team, "-o", "json")
    assert [r["name"] for r in json.loads(paged.out)] == [r["name"] for r in json.loads(whole.out)]
    assert paged.denied == DENIED


def test_a_fixed_object_has_no_finding_any_more(scan: Scan, team: str, control_plane: ControlPlane) -> None:
    mend(control_plane, team)
    answer = scan("-n", team, "-o", "json")
    assert answer.status == 0
    assert answer.denied == set()
    assert ("Pod", "alone") not in answer.records


def mend(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.api
    for name in ("bad", "exempted"):
        api.patch("deployments", name, {"spec": {"template": {"spec": {"containers": [GOOD]}}}}, namespace)
    api.delete("pods", "alone", namespace, grace=0)
    api.patch("poddisruptionbudgets", "stuck", {"spec": {"maxUnavailable": 1}}, namespace)
    api.delete("configmaps", "models", namespace)


def test_no_object_makes_the_others_unreadable(
    scan: Scan, team: str, control_plane: ControlPlane, chassis: Chassis
) -> None:
    """API servers return the parameters of a claim as they were written; no reader of JSON accepts these."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{team}/resourceclaimtemplates"
    device = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    for name, value in (("deep", b"[" * 3000 + b"]" * 3000), ("half", rb'"\ud800"'), ("bytes", b'"\xff"')):
        opaque = {"driver": "gpu.example.com", "parameters": {"a": "HERE"}}
        spec = {"spec": {"devices": {"requests": [device], "config": [{"opaque": opaque}]}}}
        made = manifest("ResourceClaimTemplate", name, spec)
        body = json.dumps(made).encode().replace(b'"HERE"', value)
        api = control_plane.api
        with api.connection() as connection:
            connection.request("POST", path, body, {**api.headers, "Content-Type": "application/json"})
            assert connection.getresponse().status == 201
    answer = scan("-n", team, "-o", "json")
    assert answer.denied
    chassis.wait_metric("chassis_facts_synced", 1, resource="resourceclaimtemplates")
    assert not [line for line in chassis.log_lines() if "resourceclaimtemplates" in line and "can't" in line]


def test_facts_come_from_the_same_cluster(scan: Scan, namespace: str, control_plane: ControlPlane) -> None:
    """A budget without its workload has no finding; with the Deployment that has one pod it blocks."""
    api = control_plane.api
    whole = budget("all")
    whole["spec"] = {"minAvailable": 2, "selector": {"matchLabels": {"app": "served"}}}
    api.create(whole, namespace)
    assert scan("-n", namespace, "-o", "json").denied == set()
    api.create(workload("Deployment", "served", container(UNKNOWN), replicas=2), namespace)
    assert ("PodDisruptionBudget", "all") in scan("-n", namespace, "-o", "json").denied


@pytest.mark.usefixtures("crds")
def test_what_an_owner_has_made_that_is_read_in_part_is_judged_too(
    scan: Scan, team: str, restricted: Path, control_plane: ControlPlane
) -> None:
    spec = {"predictor": {"containers": [HAZARD]}}
    owner = control_plane.api.create(custom("InferenceService", "v1beta1", "served", spec), team).body
    made = workload("Deployment", "made", HAZARD)
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]
    # As KServe's controller: an installed webhook refuses what a person creates in its name.
    whose = ("--as=system:serviceaccount:kserve:kserve-controller-manager", "--as-group=system:masters")
    control_plane.kubectl("create", "-n", team, "-f", "-", *whose, stdin=json.dumps(made))
    found = scan("-n", team, "-o", "json")
    assert ("InferenceService", "served") in found.records
    assert ("Deployment", "made") in found.records, "an InferenceService does not show all of its pods"
    partly = scan("-n", team, "-o", "json", kubeconfig=restricted).records
    assert partly["Deployment", "made"]["allowed"], "what has a controller is warned about"
    assert RULE in {finding["rule"] for finding in partly["Deployment", "made"]["findings"]}


def custom(kind: str, version: str, name: str, spec: JSON) -> JSON:
    """An object of KServe's; exempted, for a webhook that other tests have installed would refuse it."""
    metadata = {"name": name, "annotations": EXEMPT}
    return {"apiVersion": f"serving.kserve.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


# --- the policy ----------------------------------------------------------------------------------------


def test_the_policy_may_be_a_config_map(scan: Scan, team: str, control_plane: ControlPlane) -> None:
    observing = manifest("ConfigMap", "observing")
    control_plane.api.create({**observing, "data": {"rules.yaml": "profile: observe"}}, team)
    answer = scan("-n", team, "-o", "json", policy=f"configmap:{team}/observing")
    assert answer.status == 0
    assert f"the policy is the ConfigMap {team}/observing" in answer.err
    assert {f["mode"] for record in answer.records.values() for f in record["findings"]} == {"audit"}
    missing = scan("-n", team, policy=f"configmap:{team}/missing")
    assert (missing.status, missing.out) == (2, "")
    assert f"there is no ConfigMap {team}/missing" in missing.err


# --- permissions ---------------------------------------------------------------------------------------


@pytest.fixture
def restricted(control_plane: ControlPlane, team: str) -> Path:
    """An account that may only list Deployments and Services in the namespace."""
    rbac, user = "rbac.authorization.k8s.io", f"reader-of-{team}"
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
    ]
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": "reader"}, "rules": rules}
    control_plane.api.create(role, team)
    bound = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}],
    }
    control_plane.api.create(bound, team)
    return control_plane.user(user)


def test_forbidden_kinds_are_named_and_the_rest_is_scanned(scan: Scan, team: str, restricted: Path) -> None:
    answer = scan("-n", team, "-o", "json", kubeconfig=restricted)
    assert answer.status == 1
    assert set(answer.records) == {("Deployment", name) for name in ("good", "bad", "exempted")}
    unscanned = next(
        line for line in answer.err.splitlines() if line.startswith("chassis: not scanned, because")
    )
    assert "Pod," in unscanned
    assert "Deployment" not in unscanned
    unknown = next(line for line in answer.err.splitlines() if "unknown to the rules" in line)
    assert "Node" in unknown
    assert "Service" not in unknown


@pytest.mark.usefixtures("crds")
def test_the_rights_of_the_component_are_enough(scan: Scan, team: str, control_plane: ControlPlane) -> None:
    (role,) = (it for it in yaml.safe_load_all(RIGHTS.read_text()) if it["kind"] == "ClusterRole")
    user, name = f"scanner-of-{team}", role["metadata"]["name"]
    control_plane.apply(role)
    control_plane.kubectl("create", "clusterrolebinding", user, f"--clusterrole={name}", f"--user={user}")
    answer = scan("-A", "--report", "-o", "json", kubeconfig=control_plane.user(user))
    assert answer.status == 1
    # An operator's kind that no table lists needs an extra permission, and so do the names of Secrets.
    extra = ("DisaggregatedSet", "missing Secrets")
    listed = [line for line in answer.err.splitlines() if not any(each in line for each in extra)]
    assert not any("you may not" in line for line in listed)
    assert (team, "bad") in {
        (it["namespace"], it["name"]) for it in json.loads(answer.out) if not it["allowed"]
    }
    mend(control_plane, team)
    assert "PolicyReports: " in scan("-A", "--report", kubeconfig=control_plane.user(user)).err
    assert not control_plane.api.exists("policyreports", "mlchassis", team)


def test_without_any_permission_the_scan_fails(scan: Scan, restricted: Path) -> None:
    for place in (["-A"], ["-n", "default"]):
        answer = scan(*place, kubeconfig=restricted)
        assert (answer.status, answer.out) == (2, "")
        assert "you may not read any" in answer.err


def test_a_missing_namespace_is_reported(scan: Scan) -> None:
    answer = scan("-n", "nowhere")
    assert (answer.status, answer.out) == (2, "")
    assert "there is no namespace nowhere" in answer.err


# --- reports -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crds")
def test_reports_are_written_kept_and_removed(scan: Scan, team: str, control_plane: ControlPlane) -> None:
    api = control_plane.api
    api.create(
        manifest("PolicyReport", "another", labels={"app.kubernetes.io/managed-by": "kyverno"}),
        team,
    )
    answer = scan("-n", team, "--report")
    assert answer.status == 1
    assert "PolicyReports: 1 written, 0 unchanged, 0 removed" in answer.err
    report = api.get("policyreports", "mlchassis", team)
    results = {(r["resources"][0]["name"], r["rule"]): r for r in report["results"]}
    bad, exempted = results["bad", RULE], results["exempted", RULE]
    assert (bad["result"], bad["severity"], bad["category"], bad["source"]) == (
        "fail",
        "high",
        "cascade",
        "mlchassis",
    )
    deployment = api.get("deployments", "bad", team)["metadata"]
    assert bad["resources"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "namespace": team,
            "name": "bad",
            "uid": deployment["uid"],
        }
    ]
    assert (exempted["result"], exempted["properties"]["exempted"]) == ("skip", "it is the pod's own proxy")
    assert report["summary"]["fail"] == sum(r["result"] == "fail" for r in report["results"]) >= len(DENIED)
    assert sum(report["summary"].values()) == len(report["results"])

    assert "0 written, 1 unchanged, 0 removed" in scan("-n", team, "--report").err
    assert api.get("policyreports", "mlchassis", team) == report

    api.patch("poddisruptionbudgets", "stuck", {"spec": {"maxUnavailable": 1}}, team)
    assert "1 written, 0 unchanged, 0 removed" in scan("-n", team, "--report").err
    fewer = api.get("policyreports", "mlchassis", team)
    assert {r["resources"][0]["name"] for r in fewer["results"]} == {name for name, _ in results} - {"stuck"}
    assert (
        next(r for r in fewer["results"] if r["resources"][0]["name"] == "bad")["timestamp"]
        == (bad["timestamp"])
    )

    mend(control_plane, team)
    assert "0 written, 0 unchanged, 1 removed" in scan("-n", team, "--report").err
    assert not api.exists("policyreports", "mlchassis", team)
    assert api.exists("policyreports", "another", team)


@pytest.fixture
def open_reports(control_plane: ControlPlane) -> Iterator[None]:
    """The two CRDs of openreports.io, as their authors publish them."""
    directory = module_source(*OPEN_REPORTS) / "config" / "crd"
    manifests = "\n---\n".join(file.read_text() for file in sorted(directory.glob("*.yaml")))
    control_plane.apply(manifests)
    names = control_plane.kubectl("get", "-f", "-", "-o", "name", stdin=manifests).stdout.split()
    control_plane.kubectl("wait", "--for=condition=Established", *names)
    yield
    control_plane.kubectl("delete", "--wait=true", *names)


@pytest.mark.usefixtures("crds", "open_reports")
def test_the_newer_reports_take_the_place_of_the_older(
    scan: Scan, team: str, control_plane: ControlPlane
) -> None:
    api = control_plane.api
    assert "1 written, 0 unchanged, 0 removed" in scan("-n", team, "--report", "wgpolicyk8s.io").err
    before = api.get("policyreports", "mlchassis", team)
    assert "1 written, 0 unchanged, 1 removed" in scan("-n", team, "--report").err
    assert not api.exists("policyreports", "mlchassis", team)
    report = api.get("reports", "mlchassis", team)
    assert report["apiVersion"] == "openreports.io/v1alpha1"
    untimed = [{**result, "timestamp": None} for result in report["results"]]
    assert untimed == [{**result, "timestamp": None} for result in before["results"]], "no field is dropped"
    assert report["summary"] == before["summary"]
    assert "0 written, 1 unchanged, 0 removed" in scan("-n", team, "--report").err


@pytest.mark.usefixtures("crds")
def test_cluster_scoped_kinds_have_a_separate_report(
    scan: Scan, team: str, control_plane: ControlPlane
) -> None:
    api, runtime = control_plane.api, "ClusterServingRuntime"
    api.create(custom(runtime, "v1alpha1", "shared", {"containers": [HAZARD]}))
    assert (runtime, "shared") not in scan("-n", team, "-o", "json").records
    assert (runtime, "shared") in scan("-A", "-o", "json", "--report").records
    results = api.get("clusterpolicyreports", "mlchassis")["results"]
    (shared,) = (result for result in results if result["rule"] == RULE)
    assert (shared["result"], shared["resources"][0]["name"]) == ("skip", "shared")
    assert api.exists("policyreports", "mlchassis", team)
    api.delete("clusterservingruntimes", "shared")
    mend(control_plane, team)
    scan("-A", "--report")
    assert not api.exists("clusterpolicyreports", "mlchassis")
    assert not api.exists("policyreports", "mlchassis", team)


@pytest.mark.usefixtures("crds")
def test_a_missing_permission_to_write_reports_is_reported(scan: Scan, team: str, restricted: Path) -> None:
    answer = scan("-n", team, "--report", kubeconfig=restricted)
    assert answer.status == 2
    assert "DENIED Deployment" in answer.out
    assert "the PolicyReports can't be written: 403 Forbidden" in answer.err
