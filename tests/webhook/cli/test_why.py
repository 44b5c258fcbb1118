"""`chassis why` over files and over running objects."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from policies.core.annotations import CHANGED
from policies.core.facts import NoCluster
from policies.kube.json import Json
from policies.kube.metadata import LAST_APPLIED
from tests.webhook.cli.scanned import (
    DEPLOYMENTS,
    MUTATOR,
    PODS,
    SERVER,
    Chassis,
    InCluster,
    cluster,
    deployment,
    named,
    owned_by,
)
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission.engine import mutate
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.files import Document

EXAMPLES = Path(__file__).parents[3] / "examples"
SETS = "/apis/apps/v1/namespaces/ml/replicasets"
START = "spec.containers[main].startupProbe"
POLICY = {"standard-probes.yaml": "# ours\nmirror: off\n"}

# --- files ---------------------------------------------------------------------------------------------


def test_the_text_has_the_added_fields_and_reasons(chassis: Chassis) -> None:
    status, out, _ = chassis("why", "-f", EXAMPLES / "triton.yaml")
    assert status == 0
    assert out.startswith("Deployment vision/resnet\npolicy: built in (")
    field = "spec.template.spec.containers[triton].startupProbe"
    assert f"\n{field}\n  by      standard-probes of ML Chassis\n" in out
    assert "  why     44 min: six times the 7.4 min that 26 GB take at 64 MiB/s" in out
    assert "spec.template.metadata.annotations: mlchassis.dev/expected-start.triton: " in out
    assert "key standard-probes.yaml: startupFactor: 3.0" in out
    assert "  by      the author of Deployment vision/resnet\n" in out
    offered = re.findall(r'mlchassis.dev/exempt: "(.*)=give a reason"', out)
    assert offered == ["disruption-guard", "gpu-affinity", "standard-probes"]


def test_the_policy_and_its_modes_count(chassis: Chassis, tmp_path: Path) -> None:
    (tmp_path / "standard-probes.yaml").write_text("mode: warn\nstartupFactor: 2\n")
    (tmp_path / "gpu-affinity.yaml").write_text("mode: 'off'\n")
    status, out, _ = chassis("why", "-f", EXAMPLES / "triton.yaml", "--policy", tmp_path)
    assert status == 0
    assert "  by      nobody: standard-probes of ML Chassis would set it, but its mode is warn\n" in out
    assert f"in {tmp_path}, key standard-probes.yaml: startupFactor: 2.0" in out
    assert "gpu-affinity" not in out


def test_one_object_of_several_can_be_named(chassis: Chassis, tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text(
        "\n---\n".join((EXAMPLES / f"{name}.yaml").read_text() for name in ("triton", "bare-pod"))
    )
    all_titles = [each["title"] for each in chassis("why", "-f", both, "-o", "json").json]
    assert {"Deployment vision/resnet", "Pod playground/ollama"} <= set(all_titles)
    (only,) = chassis("why", "pod/ollama", "-f", both, "-o", "json").json
    assert only["title"] == "Pod playground/ollama"
    missing = chassis("why", "pod/none", "-f", both)
    assert missing.status == 2
    assert "the files contain no pod/none: " in missing.err


def test_an_object_must_be_named(chassis: Chassis) -> None:
    answer = chassis("why")
    assert answer.status == 2
    assert "specify an object" in answer.err


def test_a_value_of_a_wrong_type_is_named(chassis: Chassis, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec:\n  parallelism: many\n"
        "  template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}\n"
    )
    answer = chassis("why", "-f", wrong)
    assert answer.status == 2
    assert "spec.parallelism: expected int, got str" in answer.err


def test_the_answer_for_a_job_covers_it_and_its_pods(chassis: Chassis, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: ml}\nspec:\n  backoffLimit: 2\n"
        "  template:\n    spec:\n      restartPolicy: Never\n"
        "      containers: [{name: main, image: 'train:1'}]\n"
    )
    (answer,) = chassis("why", "-f", job, "-o", "json").json
    assert {each["path"]: each["by"] for each in answer["fields"]} == {
        "spec.template.spec.restartPolicy": "user",
        "spec.backoffLimit": "user",
        "spec.podFailurePolicy": "mlchassis",
        "spec.podReplacementPolicy": "mlchassis",
        "spec.template.spec.containers[main].terminationMessagePolicy": "mlchassis",
    }


# --- running objects -----------------------------------------------------------------------------------

Why = Callable[[str], Awaitable[tuple[Json, dict[str, Json]]]]


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with cluster() as server:
        await server.put(MUTATOR, {"metadata": {"name": "mlchassis-policy"}, "data": POLICY})
        yield server


@pytest.fixture
def why(in_cluster: InCluster) -> Why:
    """The explanation of one object, and its fields by path."""

    async def run(name: str) -> tuple[Json, dict[str, Json]]:
        [answer] = (await in_cluster("why", name, "-n", "ml", "-o", "json")).json
        return answer, {each["path"]: each for each in answer["fields"]}

    return run


async def put_pod(fake: FakeApiServer, policy: dict[str, str]) -> Json:
    """A pod of a ReplicaSet of a Deployment, after admission under a policy."""
    above = deployment("llm", SERVER)
    above["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    await fake.put(DEPLOYMENTS, above)
    template = above["spec"]["template"]
    owners = owned_by("apps/v1", "Deployment", "llm", "uid-llm")
    await fake.put(SETS, named("llm-1", above["spec"], ownerReferences=owners))
    owners = owned_by("apps/v1", "ReplicaSet", "llm-1", "uid-llm-1")
    metadata: Json = {"labels": {"app": "llm"}, "ownerReferences": owners}
    pod = {"apiVersion": "v1", "kind": "Pod", **named("llm-1-a", template["spec"], **metadata)}
    final = mutate(Review(Document("x", 0, pod).request(), load(policy), NoCluster())).object
    fields: Json = {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:startupProbe": {}}}}}
    entry = {"manager": "kube-controller-manager", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields}
    final["metadata"]["managedFields"] = [entry]
    final["spec"]["tolerations"] = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    await fake.put(PODS, final)
    return final


async def test_the_answer_for_a_pod_uses_its_annotation_and_its_owners(
    fake: FakeApiServer, why: Why, in_cluster: InCluster, tmp_path: Path
) -> None:
    await put_pod(fake, POLICY)
    answer, fields = await why("po/llm-1-a")
    assert answer["writtenIn"] == "Deployment ml/llm"
    assert answer["policy"] == {
        "where": "configmap:mlchassis-system/mlchassis-policy",
        "digest": load(POLICY).digest,
        "then": load(POLICY).digest,
        "changed": False,
    }
    start = fields[START]
    expected = {"by": "mlchassis", "policy": "standard-probes", "manager": "kube-controller-manager"}
    assert expected.items() <= start.items()
    assert (start["setting"], start["today"]) == ("defaultStart", None)
    assert "deployment.apps llm" in start["commands"]["here"]
    everywhere = start["commands"]["everywhere"]
    assert "configmap mlchassis-override" in everywhere, "Helm reverts or refuses an edit of the policy"
    assert '{"standard-probes.yaml": "defaultStart: 1200\\n"}' in everywhere
    assert f"--kubeconfig={tmp_path}" in start["commands"]["here"]
    assert fields["spec.terminationGracePeriodSeconds"]["by"] == "user"
    assert fields["spec.tolerations[node.kubernetes.io/not-ready]"]["by"] == "default"
    status, out, _ = await in_cluster("why", "pods/llm-1-a", "-n", "ml")
    assert status == 0
    assert out.startswith(
        "Pod ml/llm-1-a, created for Deployment ml/llm\npolicy: configmap:mlchassis-system/"
    )
    assert "  by      standard-probes of ML Chassis\n  why     60 min: three times 20 min" in out
    assert "  by      Kubernetes, by default\n" in out


async def test_a_later_change_of_the_policy_is_shown(
    fake: FakeApiServer, why: Why, in_cluster: InCluster
) -> None:
    await put_pod(fake, {"standard-probes.yaml": "startupFactor: 2"})
    answer, fields = await why("pod/llm-1-a")
    assert answer["policy"]["changed"] is True
    assert fields[START]["why"].startswith("40 min: twice 20 min")
    assert fields[START]["today"].startswith("60 min: three times 20 min")
    out = (await in_cluster("why", "pod/llm-1-a", "-n", "ml")).out
    assert "changed since this pod was created" in out
    assert "  today   60 min: three times" in out


async def test_without_the_annotation_the_present_policy_decides(fake: FakeApiServer, why: Why) -> None:
    final = await put_pod(fake, POLICY)
    del final["metadata"]["annotations"][CHANGED]
    await fake.put(PODS, final)
    _, fields = await why("pod/llm-1-a")
    assert fields[START]["by"] == "mlchassis"


async def test_a_pod_of_an_outage_has_no_field_by_ml_chassis(
    fake: FakeApiServer, why: Why, in_cluster: InCluster
) -> None:
    final = await put_pod(fake, POLICY)
    del final["metadata"]["annotations"][CHANGED]
    for name in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
        final["spec"]["containers"][0].pop(name, None)
    await fake.put(PODS, final)
    _, fields = await why("pod/llm-1-a")
    assert fields[START]["by"] == "missing"
    assert "mlchassis" not in {fields[path]["by"] for path in fields if "containers[main]" in path}
    out = (await in_cluster("why", "pod/llm-1-a", "-n", "ml")).out
    nobody = "nobody: standard-probes of ML Chassis would add it now, but this pod was created without it"
    assert nobody in " ".join(out.split())


async def test_defaults_of_the_api_server_are_not_the_authors(fake: FakeApiServer, why: Why) -> None:
    await put_pod(fake, POLICY)
    above = fake.objects[f"{DEPLOYMENTS}/llm"]
    above["spec"]["template"]["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}
    await fake.put(DEPLOYMENTS, above)
    _, fields = await why("deploy/llm")
    assert fields["spec.template.spec.restartPolicy"]["by"] == "default"
    spec = {"containers": [SERVER], "terminationGracePeriodSeconds": 30}
    applied = {**above, "spec": {"template": {"spec": spec}}, "metadata": {"name": "llm"}}
    above["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(applied)}
    await fake.put(DEPLOYMENTS, above)
    _, fields = await why("deploy/llm")
    assert fields["spec.template.spec.terminationGracePeriodSeconds"]["by"] == "user"
    assert fields["spec.template.spec.restartPolicy"]["by"] == "default"


async def test_an_edit_for_all_keeps_the_override(fake: FakeApiServer, why: Why) -> None:
    await put_pod(fake, POLICY)
    data = {"standard-probes.yaml": "mode: warn\n"}
    await fake.put(MUTATOR, {"metadata": {"name": "mlchassis-override"}, "data": data})
    _, fields = await why("pod/llm-1-a")
    assert '"mode: warn\\ndefaultStart: 1200\\n"' in fields[START]["commands"]["everywhere"]


async def test_a_bare_pod_and_a_workload(fake: FakeApiServer, why: Why) -> None:
    final = await put_pod(fake, POLICY)
    del final["metadata"]["ownerReferences"]
    await fake.put(PODS, final)
    answer, fields = await why("pod/llm-1-a")
    assert answer["writtenIn"] == "Pod ml/llm-1-a"
    start = fields[START]
    assert (start["by"], start["today"]) == ("mlchassis", None)
    assert start["commands"]["here"].startswith("before Pod llm-1-a is created again, under metadata.")
    del final["metadata"]["annotations"]["mlchassis.dev/changed"]
    await fake.put(PODS, final)
    _, fields = await why("pod/llm-1-a")
    assert fields[START]["by"] == "unrecorded", "anybody may remove the annotation"
    answer, fields = await why("deploy/llm")
    assert answer["writtenIn"] == answer["title"] == "Deployment ml/llm"
    assert fields[f"spec.template.{START}"]["by"] == "mlchassis"
    assert fields["spec.template.spec.terminationGracePeriodSeconds"]["by"] == "user"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pod/none", "there is no Pod none in namespace ml"),
        ("llm", "'llm': use KIND/NAME, such as pod/llm"),
        ("services/x", "'services' isn't a kind of this cluster with pods"),
    ],
)
async def test_an_unknown_object_is_reported(in_cluster: InCluster, name: str, message: str) -> None:
    status, _, err = await in_cluster("why", name, "-n", "ml")
    assert status == 2
    assert message in err
