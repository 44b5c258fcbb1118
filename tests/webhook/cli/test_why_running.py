"""`chassis why` about running objects: the pod, the objects above it, and the policy in force."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from policies.core.annotations import CHANGED
from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.webhook.cli.scanned import DEPLOYMENTS, MUTATOR, PODS, SERVER, cluster, deployment, named
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission.engine import mutate
from webhook.cli import main as cli
from webhook.config.load import load
from webhook.kube.offline import Document

SETS = "/apis/apps/v1/namespaces/ml/replicasets"
START = "spec.containers[main].startupProbe"
POLICY = {"standard-probes.yaml": "# ours\nmirror: off\n"}


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with cluster() as server:
        await server.put(MUTATOR, {"metadata": {"name": "mlchassis-policy"}, "data": POLICY})
        yield server


def owned(kind: str, name: str) -> list[Json]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": True}]


async def run(fake: FakeApiServer, tmp_path: Path, capsys: Any, *argv: str) -> tuple[int, str, str]:
    arguments = ["why", "--kubeconfig", str(fake.kubeconfig(tmp_path)), "-n", "ml", *argv]
    status = await asyncio.to_thread(cli.main, arguments)
    return status, *capsys.readouterr()


async def told(fake: FakeApiServer, tmp_path: Path, capsys: Any, *argv: str) -> tuple[Json, dict[str, Json]]:
    status, out, err = await run(fake, tmp_path, capsys, *argv, "-o", "json")
    assert status == 0, err
    [answer] = json.loads(out)
    return answer, {each["path"]: each for each in answer["fields"]}


async def made(fake: FakeApiServer, policy: dict[str, str] | None = None) -> Json:
    """A pod of a ReplicaSet of a Deployment, as admission left it."""
    above = deployment("llm", SERVER)
    above["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    await fake.put(DEPLOYMENTS, above)
    template = above["spec"]["template"]
    await fake.put(SETS, named("llm-1", {"template": template}, ownerReferences=owned("Deployment", "llm")))
    metadata: Json = {"labels": {"app": "llm"}, "ownerReferences": owned("ReplicaSet", "llm-1")}
    pod = {"apiVersion": "v1", "kind": "Pod", **named("llm-1-a", template["spec"], **metadata)}
    config = load(POLICY if policy is None else policy)
    final = mutate(Document("x", 0, pod).request(), config, NoCluster()).object
    fields: Json = {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:startupProbe": {}}}}}
    entry = {"manager": "kube-controller-manager", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields}
    final["metadata"]["managedFields"] = [entry]
    final["spec"]["tolerations"] = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    await fake.put(PODS, final)
    return final


async def test_the_answer_for_a_pod_uses_its_annotation_and_its_owners(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await made(fake)
    answer, fields = await told(fake, tmp_path, capsys, "po/llm-1-a")
    assert answer["writtenIn"] == "Deployment ml/llm"
    assert answer["policy"] == {
        "where": "configmap:mlchassis-system/mlchassis-policy",
        "digest": load(POLICY).digest,
        "then": load(POLICY).digest,
        "changed": False,
    }
    start = fields[START]
    assert (start["by"], start["policy"], start["manager"]) == (
        "mlchassis",
        "standard-probes",
        "kube-controller-manager",
    )
    assert (start["setting"], start["today"]) == ("defaultStart", None)
    assert "deployment.apps llm" in start["commands"]["here"]
    assert '"# ours\\nmirror: off\\ndefaultStart: 1200\\n"' in start["commands"]["everywhere"]
    assert f"--kubeconfig={tmp_path}" in start["commands"]["here"]
    assert fields["spec.terminationGracePeriodSeconds"]["by"] == "user"
    assert fields["spec.tolerations[node.kubernetes.io/not-ready]"]["by"] == "default"
    status, out, _ = await run(fake, tmp_path, capsys, "pods/llm-1-a")
    assert status == 0
    assert out.startswith("Pod ml/llm-1-a, made for Deployment ml/llm\npolicy: configmap:mlchassis-system/")
    assert "  by      standard-probes of ML Chassis\n  why     60 min: three times 20 min" in out
    assert "  by      Kubernetes, by default\n" in out


async def test_a_later_change_of_the_policy_is_shown(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await made(fake, {"standard-probes.yaml": "startupFactor: 2"})
    answer, fields = await told(fake, tmp_path, capsys, "pod/llm-1-a")
    assert answer["policy"]["changed"] is True
    assert fields[START]["why"].startswith("40 min: twice 20 min")
    assert fields[START]["today"].startswith("60 min: three times 20 min")
    _, out, _ = await run(fake, tmp_path, capsys, "pod/llm-1-a")
    assert "changed since this pod was made" in out
    assert "  today   60 min: three times" in out


async def test_without_the_annotation_the_present_policy_decides(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    final = await made(fake)
    del final["metadata"]["annotations"][CHANGED]
    await fake.put(PODS, final)
    _, fields = await told(fake, tmp_path, capsys, "pod/llm-1-a")
    assert fields[START]["by"] == "mlchassis"


async def test_a_bare_pod_and_a_workload(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    final = await made(fake)
    del final["metadata"]["ownerReferences"]
    await fake.put(PODS, final)
    answer, fields = await told(fake, tmp_path, capsys, "pod/llm-1-a")
    assert answer["writtenIn"] == "Pod ml/llm-1-a"
    assert fields[START]["by"] == "mlchassis"
    assert fields[START]["today"] is None
    assert fields[START]["commands"]["here"].startswith(
        "before Pod llm-1-a is created again, under metadata."
    )
    answer, fields = await told(fake, tmp_path, capsys, "deploy/llm")
    assert answer["writtenIn"] == answer["title"] == "Deployment ml/llm"
    assert fields[f"spec.template.{START}"]["by"] == "mlchassis"
    assert fields["spec.template.spec.terminationGracePeriodSeconds"]["by"] == "user"


async def test_an_unanswerable_question_is_reported(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argument, said in (
        ("pod/none", "there is no Pod none in namespace ml"),
        ("llm", "'llm': write KIND/NAME, such as pod/llm"),
        ("services/x", "'services' is no kind of this cluster with pods"),
    ):
        status, _, err = await run(fake, tmp_path, capsys, argument)
        assert status == 2
        assert said in err
