"""Unread parts are named and counted in every output, and in the exit status on request."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.webhook.cli.test_formats import junit_schema, of_sarif
from webhook.cli import main as cli
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.output import policyreport
from webhook.cli.output.review import Review, review_documents
from webhook.config.load import load
from webhook.kube.offline import ManifestCluster, read

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
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("all.yaml").write_text(UNREAD)
    return "all.yaml"


def reviewed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = cli.main(["review", *words])
    return status, capsys.readouterr().out


def reviews(manifests: str) -> list[Review]:
    documents = read([manifests])
    return list(review_documents(documents, load({}), ManifestCluster([])))


def test_text_names_and_counts_it(capsys: pytest.CaptureFixture[str], manifests: str) -> None:
    status, text = reviewed(capsys, manifests)
    assert status == OK
    assert "NOT REVIEWED Odd unknown" in text
    assert f"! not reviewed: {ODD}" in text
    assert "NOT REVIEWED Rollout elsewhere" in text
    assert "PARTLY REVIEWED Server partly" in text
    assert "admitted Odd" not in text
    assert "Service" not in text
    last = text.splitlines()[-1]
    assert last.startswith("5 objects (1 reviewed, 1 partly reviewed, 2 not reviewed, 1 without pods)")


def test_where_everything_was_read_nothing_is_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(UNREAD.partition("---")[0])
    _, text = reviewed(capsys, str(tmp_path))
    assert text.splitlines()[-1].startswith("1 object, ")


@pytest.mark.parametrize(("choice", "status"), [("warn", OK), ("error", DENIED), ("ignore", OK)])
def test_unknown_kinds_and_the_exit_status(
    capsys: pytest.CaptureFixture[str], manifests: str, choice: str, status: int
) -> None:
    got, text = reviewed(capsys, manifests, f"--unknown-kinds={choice}")
    assert got == status
    assert (ODD in text) is (choice != "ignore")
    assert "2 not reviewed" in text, "it is counted in any case"


def test_a_known_kind_that_is_partly_read_is_not_unknown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rest.yaml").write_text("---\n".join(UNREAD.split("---\n")[3:]))
    assert reviewed(capsys, str(tmp_path), "--unknown-kinds=error")[0] == OK


def test_json_has_how_much_was_read(capsys: pytest.CaptureFixture[str], manifests: str) -> None:
    _, text = reviewed(capsys, manifests, "-o", "json")
    found = json.loads(text)
    assert [each["reading"] for each in found] == [
        "reviewed",
        "has no pods",
        "not reviewed",
        "not reviewed",
        "partly reviewed",
    ]
    assert [each["path"] for each in found[4]["unread"]] == ["spec.serverConfig"]
    assert found[2]["foundByShape"] == []


def test_sarif_has_a_notification(capsys: pytest.CaptureFixture[str], manifests: str) -> None:
    _, text = reviewed(capsys, manifests, "-o", "sarif")
    of_sarif(text)
    (invocation,) = json.loads(text)["runs"][0]["invocations"]
    said = [each["message"]["text"] for each in invocation["toolExecutionNotifications"]]
    assert len(said) == 3
    assert any(ODD in each for each in said)
    assert {each["level"] for each in invocation["toolExecutionNotifications"]} == {"warning"}


def test_junit_skips_it(capsys: pytest.CaptureFixture[str], manifests: str) -> None:
    _, text = reviewed(capsys, manifests, "-o", "junit")
    junit_schema().validate(text.partition("?>")[2])
    assert 'skipped="2"' in text
    assert f'message="not reviewed: {ODD}' in text
    assert "partly reviewed: kind Server of group mlops.seldon.io" in text


def test_html_does_not_call_it_clean(capsys: pytest.CaptureFixture[str], manifests: str) -> None:
    _, text = reviewed(capsys, manifests, "-o", "html")
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


def test_a_policy_report_skips_it(manifests: str) -> None:
    results = [each for review in reviews(manifests) for each in policyreport.results_of(review)]
    skipped = [each for each in results if each["policy"] == policyreport.COVERAGE]
    assert [each["result"] for each in skipped] == ["skip"] * 3
    assert any(ODD in each["message"] for each in skipped)


def test_an_excluded_namespace_is_not_reviewed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pod = UNREAD.partition("---")[0].replace("name: read", "name: read, namespace: kube-system")
    (tmp_path / "pod.yaml").write_text(pod)
    status, text = reviewed(capsys, str(tmp_path), "--unknown-kinds=error")
    assert status == OK
    assert "not reviewed: kind Pod of group core (the policy leaves namespace kube-system alone)" in " ".join(
        text.split()
    )
