"""An InferenceService whose runtime is not known is also judged with the one that KServe installs."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core.facts import Cluster, NoCluster
from policies.core.finding import Certainty, Finding
from policies.core.kserve import own_runtime
from policies.kube.json import Json
from tests.policies.core.reviews import HAZARD, STRICT, coverage_of, decided, hazards
from webhook.admission.coverage import Reading
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.cli.cluster_facts import ClusterSnapshot
from webhook.manifests.files import Document

LARGE: Json = {"requests": {"cpu": "4", "memory": "8Gi"}}
EQUAL: Json = {**LARGE, "limits": LARGE["requests"]}


def service(field: str = "model", annotations: Json | None = None, **model: Any) -> Json:
    given = {"modelFormat": {"name": "sklearn"}, **model} if field == "model" else model
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", "namespace": "ml", "annotations": annotations or {}},
        "spec": {"predictor": {field: {"storageUri": "gs://models/iris", **given}}},
    }


def serving_runtime(name: str, model_format: str, kind: str = "ServingRuntime", **spec: Any) -> Json:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, **({"namespace": "ml"} if kind == "ServingRuntime" else {})},
        "spec": {
            "supportedModelFormats": [{"name": model_format, "autoSelect": True}],
            "containers": [{"name": "kserve-container", "image": "example.org/server:1"}],
            **spec,
        },
    }


def found(rule: str, obj: Json, *others: Json) -> list[Finding]:
    return [each.finding for each in decided(obj, *others, config=STRICT).results if each.rule == rule]


def test_it_says_that_the_claim_is_about_kserves_own_runtime() -> None:
    judged = service(resources=LARGE)
    (finding,) = found("limit-range-conflict", judged)
    assert finding == Finding(
        "spec.predictor.model.resources",
        "With KServe's own kserve-sklearnserver: Container kserve-container requests 4 cpu, 8Gi memory, "
        "above its limits of 1, 2Gi. The API server refuses every pod.",
        "Set requests and limits of cpu, memory, with limits that are at least the requests.",
        Certainty.DOUBTFUL,
    )
    assert decided(judged, config=STRICT).allowed
    assert coverage_of(judged).reading is Reading.PARTLY, "it may be another one"


@pytest.mark.parametrize(
    "judged",
    [
        service(resources=LARGE, runtime="kserve-sklearnserver"),
        service(resources=LARGE, modelFormat={"name": "triton"}, protocolVersion="v2"),
        service(resources=LARGE, modelFormat={"name": "huggingface"}),
        service(resources=LARGE, modelFormat={"name": "vLLM"}),
        service(resources=LARGE, modelFormat={"name": "onnx"}, runtime="kserve-tritonserver"),
        service(resources={"limits": {"memory": "1Gi"}}),
        service("sklearn", resources=LARGE),
        service("huggingface", resources=LARGE),
    ],
)
def test_limits_of_the_runtime_count(judged: Json) -> None:
    assert found("limit-range-conflict", judged)


OTHERS = [
    [serving_runtime("own", "sklearn")],
    [serving_runtime("own", "sklearn", "ClusterServingRuntime")],
]


@pytest.mark.parametrize(
    ("judged", "others"),
    [
        (service(resources=EQUAL), []),
        (service(resources=LARGE, runtime="of-the-team"), []),
        (service(resources=LARGE, modelFormat={"name": "onnx"}), []),
        (service(resources=LARGE, modelFormat={"name": "tensorflow"}), []),
        (service(resources=LARGE, protocolVersion="v2"), []),
        (service(resources=LARGE, modelFormat={"name": "sklearn", "version": "0"}), []),
        (service(resources=LARGE, annotations={"serving.kserve.io/deploymentMode": "ModelMesh"}), []),
        *((service(resources=LARGE), others) for others in OTHERS),
        (service("sklearn", resources=LARGE), OTHERS[0]),
        (
            service(resources=LARGE, runtime="kserve-sklearnserver"),
            [serving_runtime("kserve-sklearnserver", "x", disabled=True)],
        ),
    ],
)
def test_it_is_silent_if_another_runtime_may_be_used(judged: Json, others: list[Json]) -> None:
    assert found("limit-range-conflict", judged, *others) == []


def test_a_runtime_of_another_format_changes_nothing() -> None:
    assert found("limit-range-conflict", service(resources=LARGE), serving_runtime("own", "pmml"))


def test_a_limit_range_refuses_what_the_runtime_asks_for() -> None:
    limits = [{"type": "Container", "max": {"memory": "1Gi"}}]
    sizes = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "sizes", "namespace": "ml"},
        "spec": {"limits": limits},
    }
    (finding,) = found("limit-range-conflict", service("sklearn"), sizes)
    assert "has a limit of 2Gi memory, and the maximum is 1Gi" in finding.message


def test_the_server_is_known_by_its_runtime() -> None:
    model: Json = {"modelFormat": {"name": "huggingface"}, "args": ["--tensor-parallel-size=4"]}
    resources = {"limits": {"cpu": "4", "memory": "64Gi", "nvidia.com/gpu": "2"}}
    (finding,) = found("parallelism-exceeds-gpus", service(**model, resources=resources))
    assert finding.path == "spec.predictor.model.args"
    own = service(**model, resources=resources, runtime="hugging-face-of-the-team")
    assert found("parallelism-exceeds-gpus", own) == []


def test_the_server_stores_what_it_downloads() -> None:
    model: Json = {
        "modelFormat": {"name": "huggingface"},
        "args": ["--model_id=meta-llama/Llama-3.1-70B-Instruct", "--tensor-parallel-size=4"],
        "resources": {"limits": {"cpu": "8", "memory": "200Gi", "nvidia.com/gpu": "4"}},
    }
    judged = service(**model)
    (finding,) = found("model-cache-lost", judged)
    assert "to /tmp/huggingface, which isn't on a volume" in finding.message
    judged["spec"]["predictor"]["model"]["volumeMounts"] = [{"name": "hub", "mountPath": "/tmp/huggingface"}]
    judged["spec"]["predictor"]["volumes"] = [{"name": "hub", "persistentVolumeClaim": {"claimName": "hub"}}]
    assert found("model-cache-lost", judged) == []


def test_a_claim_of_the_uri_is_mounted_where_models_are() -> None:
    """KServe mounts it at /mnt/models, so a server that stores there keeps its files."""
    nim = serving_runtime("nim", "nim", "ClusterServingRuntime")
    container = nim["spec"]["containers"][0]
    container["image"] = "nvcr.io/nim/meta/llama3-70b-instruct:1.0.0"
    judged = service(modelFormat={"name": "nim"}, runtime="nim", storageUri="pvc://models/")
    (finding,) = found("model-cache-lost", judged, nim)
    assert "the volume for models is mounted at /mnt/models" in finding.message
    container["env"] = [{"name": "NIM_CACHE_PATH", "value": "/mnt/models/cache"}]
    assert found("model-cache-lost", judged, nim) == []


def test_the_same_finding_is_not_repeated() -> None:
    """Without the runtime it was found, too, and says nothing about one."""
    (finding,) = hazards(decided(service(livenessProbe=HAZARD)))
    assert not finding.message.startswith("With")


def test_shared_memory_may_be_given_by_the_runtime() -> None:
    model: Json = {"modelFormat": {"name": "huggingface"}, "args": ["--tensor-parallel-size=2"]}
    resources = {"limits": {"cpu": "4", "memory": "64Gi", "nvidia.com/gpu": "2"}}
    assert found("shared-memory-too-small", service(**model, resources=resources)) == []


def test_without_the_runtimes_of_the_cluster_only_a_named_one_is_known() -> None:
    """The webhook does not watch them, and one of the namespace comes first for a model that names none."""

    def refused(judged: Json, cluster: Cluster | None = None) -> list[str]:
        request = Document("test", 0, judged).request()
        decision = decide(Review(request, STRICT, cluster or NoCluster()))
        return [each.rule for each in decision.results if each.rule == "limit-range-conflict"]

    named = service(resources=LARGE, runtime="kserve-sklearnserver")
    assert refused(service(resources=LARGE)) == []
    assert refused(named)
    assert refused(named, ClusterSnapshot()) == [], "a scan looks for it, and this cluster has none"


def test_it_adds_nothing() -> None:
    assert decided(service(resources=EQUAL)).changes == ()


def test_the_tag_of_the_image_is_not_known() -> None:
    judged = service()
    chosen = own_runtime(judged, "model", [])
    assert chosen is not None
    assert ":" not in chosen.container["image"]
