"""Unread parts are named and counted in every output, and in the exit status on request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.webhook.cli.scanned import Chassis
from tests.webhook.cli.test_formats import junit_schema, of_sarif
from webhook.cli.output import policyreport
from webhook.cli.reviewed import review_documents
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

UNREAD = """\
apiVersion: v1
kind: Pod
metadata: {name: read}
spec: {containers: [{name: a, image: example.org/a:1}]}
---
apiVersion: v1
kind: Service
metadata: {name: no-pods}
spec: {ports: [{port: 80}]}
---
apiVersion: example.org/v1
kind: Odd
metadata: {name: unknown}
spec: {size: 2}
---
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: elsewhere}
spec: {workloadRef: {apiVersion: apps/v1, kind: Deployment, name: other}}
---
apiVersion: mlops.seldon.io/v1alpha1
kind: Server
metadata: {name: partly}
spec:
  serverConfig: mlserver
  podSpec: {containers: [{name: a, image: example.org/a:1}]}
"""
ODD = "kind Odd of group example.org"


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    file = tmp_path / "all.yaml"
    file.write_text(UNREAD)
    return file


def test_text(chassis: Chassis, manifests: Path) -> None:
    status, text, _ = chassis("review", manifests)
    assert status == 0
    assert "NOT REVIEWED Odd unknown" in text
    assert f"! not reviewed: {ODD}" in text
    assert "NOT REVIEWED Rollout elsewhere" in text
    assert "PARTLY REVIEWED Server partly" in text
    assert "admitted Odd" not in text
    assert "Service" not in text
    last = text.splitlines()[-1]
    assert last.startswith("5 objects (1 reviewed, 1 partly reviewed, 2 not reviewed, 1 without pods)")
    manifests.write_text(UNREAD.partition("---")[0])
    assert chassis("review", manifests).out.splitlines()[-1].startswith("1 object, ")


def test_an_object_with_a_value_of_the_wrong_type_cannot_be_read(chassis: Chassis, tmp_path: Path) -> None:
    file = tmp_path / "api.yaml"
    pod = "{metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a:1}]}}"
    file.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\n"
        f"spec: {{replicas: '2', selector: {{matchLabels: {{a: b}}}}, template: {pod}}}\n"
    )
    answer = chassis("review", file)
    assert answer.status == 2, "the API server refuses it, and no rule has read it"
    assert "spec.replicas (line 4): a whole number is expected, not text." in answer.out


@pytest.mark.parametrize(("choice", "status"), [("warn", 0), ("error", 1)])
def test_unknown_kinds_and_the_exit_status(
    chassis: Chassis, manifests: Path, choice: str, status: int
) -> None:
    answer = chassis("review", manifests, f"--unknown-kinds={choice}")
    assert answer.status == status
    assert ODD in answer.out


def test_json(chassis: Chassis, manifests: Path) -> None:
    found = chassis("review", manifests, "-o", "json").json
    readings = ["reviewed", "has no pods", "not reviewed", "not reviewed", "partly reviewed"]
    assert [each["reading"] for each in found] == readings
    assert [each["path"] for each in found[4]["unread"]] == ["spec.serverConfig"]
    assert found[2]["foundByShape"] == []


def test_sarif_has_a_notification(chassis: Chassis, manifests: Path) -> None:
    answer = chassis("review", manifests, "-o", "sarif")
    of_sarif(answer.out)
    (invocation,) = answer.json["runs"][0]["invocations"]
    notifications = invocation["toolExecutionNotifications"]
    assert [each["level"] for each in notifications] == ["warning"] * 3
    assert any(ODD in each["message"]["text"] for each in notifications)


def test_junit_skips_it(chassis: Chassis, manifests: Path) -> None:
    text = chassis("review", manifests, "-o", "junit").out
    junit_schema().validate(text.partition("?>")[2])
    assert 'skipped="2"' in text
    assert f'message="not reviewed: {ODD}' in text
    assert "partly reviewed: kind Server of group mlops.seldon.io" in text


def test_html_does_not_call_it_clean(chassis: Chassis, manifests: Path) -> None:
    text = chassis("review", manifests, "-o", "html").out
    assert text.count('data-s="unread"') == 3
    panel = text.partition('id="not-read"')[2].partition("</section>")[0]
    cells = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in panel.split("<tr>")[2:]]
    assert [row[:4] for row in cells] == [
        ["Odd", "example.org", "1", "0"],
        ["Rollout", "argoproj.io", "1", "0"],
        ["Server", "mlops.seldon.io", "0", "1"],
    ]
    assert "spec.serverConfig" in panel
    assert text.count('data-s="podless"') == 1
    assert ODD in text


def test_a_policy_report_skips_it(manifests: Path) -> None:
    reviews = review_documents(read([str(manifests)]), load({}), ManifestCluster([]))
    results = [each for review in reviews for each in policyreport.results_of(review)]
    skipped = [each for each in results if each["policy"] == policyreport.COVERAGE]
    assert [each["result"] for each in skipped] == ["skip"] * 3
    assert any(ODD in each["message"] for each in skipped)


def test_excluded_namespaces_and_partly_read_kinds_are_not_unknown(chassis: Chassis, manifests: Path) -> None:
    manifests.write_text("---\n".join(UNREAD.split("---\n")[3:]))
    assert chassis("review", manifests, "--unknown-kinds=error").status == 0
    pod = UNREAD.partition("---")[0].replace("name: read", "name: read, namespace: kube-system")
    manifests.write_text(pod)
    status, text, _ = chassis("review", manifests, "--unknown-kinds=error")
    assert status == 0
    reason = "not reviewed: kind Pod of group core (the policy excludes namespace kube-system)"
    assert reason in " ".join(text.split())


def test_a_field_that_does_not_exist_has_a_note_with_its_line(chassis: Chassis, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(UNREAD.partition("---")[0].replace("containers:", "hostNetwrk: true, containers:"))
    status, text, _ = chassis("review", file)
    assert status == 0
    said = " ".join(text.split())
    assert "! spec.hostNetwrk (line 4): Kubernetes 1.37 has no such field" in said
    assert said.count("did you mean hostNetwork? ") == 1


def test_a_missing_runtime_is_named_with_the_way_to_add_it(chassis: Chassis, manifests: Path) -> None:
    said = " ".join(chassis("review", manifests).out.split())
    assert "it is completed by Deployment other, which isn't in the input: add its file, or use" in said


HASTY = """\
apiVersion: v1
kind: Pod
metadata: {name: hasty}
spec:
  containers:
    - {name: a, image: example.org/a:1, livenessProbe: {httpGet: {port: absent}}}
"""


@pytest.mark.parametrize("output", ["text", "diff"])
def test_audited_findings_are_printed_on_request(chassis: Chassis, tmp_path: Path, output: str) -> None:
    file = tmp_path / "hasty.yaml"
    file.write_text(HASTY)
    arguments = ("review", file, "--profile=observe", f"-o{output}")
    text = chassis(*arguments).out
    assert "livenessProbe.httpGet.port" not in text
    assert ("--audited prints them" in text) is (output == "text")
    text = chassis(*arguments, "--audited").out
    assert "audited probe-port-unknown" in text
    assert f"at spec.containers[0].livenessProbe.httpGet.port ({file}:6)" in text
    assert "--audited prints them" not in text


def test_audited_goes_with_outputs_that_can_leave_findings_out(chassis: Chassis, manifests: Path) -> None:
    answer = chassis("review", manifests, "--audited", "-ojson")
    assert (answer.status, answer.err) == (2, "chassis: --audited can only be used with -o text or diff\n")


def test_findings_of_a_kustomization_are_those_of_its_result(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "kustomization.yaml").write_text("patches: [{path: hasty.yaml}]\n")
    (tmp_path / "app" / "hasty.yaml").write_text(HASTY)
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = kustomize ] && echo '{HASTY.replace('hasty', 'built')}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    status, text, err = chassis("review", tmp_path / "app")
    assert (status, err) == (0, "")
    assert f"admitted Pod built ({tmp_path}/app/kustomization.yaml)" in text
    assert "warning probe-port-unknown" in text
    assert "hasty" not in text
