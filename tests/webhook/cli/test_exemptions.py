"""`chassis exemptions` over manifests and a cluster."""

from pathlib import Path

import pytest

from tests.webhook.cli.scanned import DEPLOYMENTS, RULE, Chassis, InCluster, deployment
from tests.webhook.kube.apiserver import FakeApiServer

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
def manifests(tmp_path: Path) -> Path:
    file = tmp_path / "x.yaml"
    file.write_text(MANIFESTS)
    return file


def test_every_exemption_is_listed(chassis: Chassis, manifests: Path, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    override = "overrides: [{namespaces: [old-*], profile: observe, until: 2020-01-01}]"
    (tmp_path / "policy" / "webhook.yaml").write_text(override)
    answer = chassis("exemptions", manifests, "--policy", tmp_path / "policy", "-o", "json")
    assert answer.status == 0
    keys = ("rule", "path", "state", "used", "until")
    assert [tuple(each[key] for key in keys) for each in answer.json] == [
        (RULE, "metadata", "counts", True, None),
        ("tcp-probe", "metadata", "counts", False, None),
        ("standard-probes", "spec.template.metadata", "ended", None, "2020-12-31"),
        ("profile", "overrides.0", "ended", None, "2020-01-01"),
    ]
    first = answer.json[0]
    assert (first["reason"], first["object"]) == ("asked", "Deployment ml/x")
    assert first["age"] > 2000


def test_the_table(chassis: Chassis, manifests: Path, tmp_path: Path) -> None:
    head, first, *_ = chassis("exemptions", manifests).out.splitlines()
    assert head.split() == ["OBJECT", "RULE", "STATE", "UNTIL", "AGE", "USED", "REASON"]
    assert first.startswith(f"Deployment ml/x  {RULE}  counts")
    assert first.endswith("yes   asked")
    none = tmp_path / "none.yaml"
    none.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")
    assert chassis("exemptions", none) == (0, "no exemptions\n", "")


async def test_a_cluster_is_read(fake: FakeApiServer, in_cluster: InCluster) -> None:
    await fake.put(DEPLOYMENTS, deployment("x", annotations={"mlchassis.dev/exempt": f"{RULE}=asked"}))
    answer = await in_cluster("exemptions", "-n", "ml", "-o", "json")
    [found] = answer.json
    assert (found["object"], found["rule"], found["used"]) == ("Deployment ml/x", RULE, True)
    assert answer.status == 0
