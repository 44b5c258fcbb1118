"""`chassis exemptions` over manifests."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.webhook.cli.scanned import DEPLOYMENTS, RULE, cluster, deployment
from webhook.cli import main as cli

MANIFESTS = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: x
  namespace: ml
  creationTimestamp: "2020-01-01T00:00:00Z"
  annotations:
    mlchassis.dev/exempt: "liveness-external-dependency=asked; tcp-probe=nobody asks"
spec:
  template:
    metadata:
      annotations:
        mlchassis.dev/exempt: "standard-probes=ours until=2020-12-31"
    spec:
      containers:
      - name: a
        image: x:1
        livenessProbe: {exec: {command: [curl, -f, http://payments/health]}}
"""


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    file = tmp_path / "x.yaml"
    file.write_text(MANIFESTS)
    return str(file)


def test_every_exemption_is_listed(
    capsys: pytest.CaptureFixture[str], manifests: str, tmp_path: Path
) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "webhook.yaml").write_text(
        "overrides: [{namespaces: [old-*], profile: observe, until: 2020-01-01}]"
    )
    assert cli.main(["exemptions", manifests, "--policy", str(policy), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["rule"], each["state"], each["used"], each["until"]) for each in found] == [
        ("liveness-external-dependency", "counts", True, None),
        ("tcp-probe", "counts", False, None),
        ("standard-probes", "ended", None, "2020-12-31"),
        ("profile", "ended", None, "2020-01-01"),
    ]
    assert [each["path"] for each in found] == [
        "metadata",
        "metadata",
        "spec.template.metadata",
        "overrides.0",
    ]
    assert found[0]["reason"] == "asked"
    assert found[0]["object"] == "Deployment ml/x"
    assert found[0]["age"] > 2000


def test_a_table_for_people(capsys: pytest.CaptureFixture[str], manifests: str, tmp_path: Path) -> None:
    assert cli.main(["exemptions", manifests]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["OBJECT", "RULE", "STATE", "UNTIL", "AGE", "USED", "REASON"]
    assert first.startswith("Deployment ml/x  liveness-external-dependency  counts")
    assert first.endswith("yes   asked")
    none = tmp_path / "none.yaml"
    none.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")
    assert cli.main(["exemptions", str(none)]) == 0
    assert capsys.readouterr().out == "no exemptions\n"


async def test_a_cluster_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as fake:
        annotations = {"mlchassis.dev/exempt": f"{RULE}=asked"}
        await fake.put(DEPLOYMENTS, deployment("x", annotations=annotations))
        arguments = ["exemptions", "--kubeconfig", str(fake.kubeconfig(tmp_path)), "-n", "ml", "-o", "json"]
        assert await asyncio.to_thread(cli.main, arguments) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["object"], found["rule"], found["used"]) == ("Deployment ml/x", RULE, True)
