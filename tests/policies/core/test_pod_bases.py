"""Pods that another object completes are read as the operator makes them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from policies.core.finding import Certainty
from policies.core.pod_templates import pod_templates
from policies.core.target import PodTemplate
from policies.kube.json import Json, dig, maps, replaced
from tests.policies.core.reviews import HAZARD, STRICT, TABLE, coverage_of, decided, hazards
from webhook.admission.coverage import Reading
from webhook.manifests.cluster import ManifestCluster


def obj(api: str, kind: str, name: str, spec: Json, namespace: str = "ml") -> Json:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def templates(judged: Json, *others: Json) -> tuple[PodTemplate, ...]:
    return pod_templates(judged, TABLE, ManifestCluster([judged, *others]).named, "ml")


# --- KServe ------------------------------------------------------------------------------------------


def runtime(kind: str = "ClusterServingRuntime", **container: Any) -> Json:
    spec = {
        "annotations": {"prometheus.io/port": "8080"},
        "tolerations": [{"key": "of-the-runtime"}],
        "nodeSelector": {"pool": "runtime", "zone": "a"},
        "containers": [
            {
                "name": "kserve-container",
                "image": "example.org/server:1",
                "args": ["--model_name={{.Name}}", "--port=8080"],
                "env": [{"name": "A", "value": "runtime"}, {"name": "B", "value": "runtime"}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
                **container,
            },
            {"name": "exporter", "image": "example.org/exporter:1"},
        ],
    }
    namespace = "ml" if kind == "ServingRuntime" else ""
    return obj("serving.kserve.io/v1alpha1", kind, "own", spec, namespace)


def service(model: Json | None = None, **predictor: Any) -> Json:
    model = {"modelFormat": {"name": "x"}, "runtime": "own", "storageUri": "pvc://a/b", **(model or {})}
    return obj(
        "serving.kserve.io/v1beta1", "InferenceService", "llm", {"predictor": {"model": model, **predictor}}
    )


def test_a_predictor_is_merged_over_its_runtime() -> None:
    judged = service(
        {
            "args": ["--tp=2"],
            "env": [{"name": "B", "value": "service"}, {"name": "C", "value": "service"}],
            "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}},
            "runtimeVersion": "2",
            "livenessProbe": None,
        },
        nodeSelector={"zone": "b"},
        tolerations=[{"key": "of-the-service"}],
        minReplicas=1,
    )
    (template,) = templates(judged, runtime(livenessProbe=HAZARD))
    pod = template.unprojected  # without what Knative gives
    server, exporter = maps(pod, "spec", "containers")
    assert exporter == {"name": "exporter", "image": "example.org/exporter:1"}
    assert server == {
        "name": "kserve-container",
        "image": "example.org/server:2",
        "args": ["--model_name=llm", "--port=8080", "--tp=2"],
        "env": [
            {"name": "A", "value": "runtime"},
            {"name": "B", "value": "service"},
            {"name": "C", "value": "service"},
        ],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "1"}},
        "livenessProbe": HAZARD,
        "volumeMounts": [{"name": "claim-of-uri-a", "mountPath": "/mnt/models"}],
    }
    assert template.spec["nodeSelector"] == {"pool": "runtime", "zone": "b"}
    assert template.spec["tolerations"] == [{"key": "of-the-service"}]
    assert "minReplicas" not in template.spec
    assert pod["metadata"]["annotations"] == {"prometheus.io/port": "8080"}
    assert pod["metadata"]["labels"]["serving.kserve.io/inferenceservice"] == "llm"
    container = template.containers()[0]
    assert {each: template.source_path(template.at(container, *each.split("."))) for each in PLACES} == PLACES


PLACES = {
    "image": "spec.predictor.model.runtimeVersion",
    "args[1]": "@spec.containers[0].args[1]",
    "args[2]": "spec.predictor.model.args[0]",
    "env[0].value": "@spec.containers[0].env[0].value",
    "env[1].value": "spec.predictor.model.env[0].value",
    "env[2]": "spec.predictor.model.env[1]",
    "resources.requests": "@spec.containers[0].resources.requests",
    "resources.limits.cpu": "spec.predictor.model.resources.limits.cpu",
    "livenessProbe.exec": "@spec.containers[0].livenessProbe.exec",
    "readinessProbe": "spec.predictor.model.readinessProbe",
}


def test_the_image_of_a_digest_keeps_it() -> None:
    digest = f"example.org/server@sha256:{'0' * 64}"
    (template,) = templates(service({"runtimeVersion": "2"}), runtime(image=digest))
    assert template.containers()[0].image == digest


def test_a_runtime_of_the_namespace_comes_before_one_of_the_cluster() -> None:
    near = runtime("ServingRuntime", image="example.org/near:1")
    (template,) = templates(service(), runtime(), near)
    assert template.containers()[0].image == "example.org/near:1"
    elsewhere = copy.deepcopy(near)
    elsewhere["metadata"]["namespace"] = "other"
    (template,) = templates(service(), runtime(), elsewhere)
    assert template.containers()[0].image == "example.org/server:1"


def test_a_service_with_its_runtime_is_reviewed() -> None:
    assert coverage_of(service(), runtime()).reading is Reading.REVIEWED


@pytest.mark.parametrize(
    "others",
    [
        [],
        [{**runtime(), "spec": {**runtime()["spec"], "disabled": True}}],
        [{**runtime(), "spec": {"containers": [{"name": "other", "image": "a"}]}}],
    ],
    ids=["absent", "disabled", "without-the-container"],
)
def test_a_service_without_its_runtime_is_partly_reviewed(others: list[Json]) -> None:
    coverage = coverage_of(service({"livenessProbe": HAZARD}), *others)
    assert coverage.reading is Reading.PARTLY
    assert "spec.predictor.model" in coverage.sentence


def test_a_hazard_of_the_service_s_own_is_found_at_its_path() -> None:
    decision = decided(service({"livenessProbe": HAZARD}), runtime())
    (found,) = hazards(decision)
    assert found.path == "spec.predictor.model.livenessProbe.exec.command"
    assert found.certainty is Certainty.UNDECIDED
    assert decision.allowed


def test_a_finding_of_the_runtimes_own_review_is_not_repeated() -> None:
    given = runtime(livenessProbe=HAZARD)
    assert hazards(decided(service(), given)) == []
    assert hazards(decided(given))


def test_a_hazard_of_both_together_is_named_at_the_runtime() -> None:
    """The probe is sound for the runtime, and too impatient for what the service loads."""
    probe = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 5, "failureThreshold": 3}
    given = runtime(
        image="vllm/vllm-openai:v0.11.0", livenessProbe=probe, startupProbe={**probe, "failureThreshold": 30}
    )
    judged = service({"args": ["--model=meta-llama/Llama-3.3-70B-Instruct"]})
    every = [each.finding for each in decided(judged, given).results]
    (found,) = (each for each in every if "startupProbe" in each.message)
    assert found.path == "spec.predictor.model.runtime"
    assert found.message.startswith("ClusterServingRuntime own, spec.containers[0].startupProbe")
    assert found.certainty is Certainty.UNDECIDED


def test_a_worker_is_merged_over_that_of_the_runtime() -> None:
    given = runtime()
    given["spec"]["workerSpec"] = {
        "pipelineParallelSize": 2,
        "containers": [
            {"name": "worker-container", "image": "example.org/worker:1", "livenessProbe": HAZARD}
        ],
    }
    judged = service(workerSpec={"containers": [{"name": "worker-container", "livenessProbe": HAZARD}]})
    head, worker = templates(judged, given)
    assert head.path == "spec.predictor.model"
    container = worker.containers()[0]
    assert container.image == "example.org/worker:1"
    probe = "spec.predictor.workerSpec.containers[0].livenessProbe.exec"
    assert worker.source_path(worker.at(container, "livenessProbe", "exec")) == probe
    assert worker.source_path(worker.at(container, "image")) == "@spec.workerSpec.containers[0].image"
    (alone,) = (each for each in templates(judged, runtime()) if each.path.endswith("workerSpec"))
    assert alone.origins is None, "the runtime has no worker: what the service has is still read"


def test_the_transformer_and_the_others_come_after_the_server() -> None:
    given = runtime()
    base = {"image": "t:1", "args": ["--a"], "env": [{"name": "X", "value": "1"}]}
    given["spec"]["containers"].append({"name": "transformer-container", **base})
    own = [
        {"name": "sidecar", "image": "s:1"},
        {"name": "transformer-container", "image": "t:2", "args": ["--b"]},
    ]
    (template,) = templates(service(containers=own), given)
    names = [(each.name, each.image) for each in template.containers()]
    assert names == [
        ("kserve-container", "example.org/server:1"),
        ("transformer-container", "t:2"),
        ("exporter", "example.org/exporter:1"),
        ("sidecar", "s:1"),
    ]
    transformer, sidecar = template.containers()[1], template.containers()[3]
    assert transformer.spec["args"] == ["--a", "--b"]
    assert template.source_path(template.at(transformer, "image")) == "spec.predictor.containers[1].image"
    assert template.source_path(template.at(transformer, "env")) == "@spec.containers[2].env"
    assert template.source_path(template.at(sidecar)) == "spec.predictor.containers[0]"
    (only,) = templates(service(containers=own[1:]), runtime())
    expected = ["kserve-container", "transformer-container", "exporter"]
    assert [each.name for each in only.containers()] == expected


@pytest.mark.parametrize(
    ("mode", "container", "port"),
    [
        ("Standard", {}, 8080),
        ("RawDeployment", {"ports": [{"containerPort": 9000}, {"containerPort": 8080}]}, 9000),
        ("Standard", {"readinessProbe": {"tcpSocket": {"port": 1}}}, 1),
        ("Knative", {}, None),
        ("Standard", {"name": "other"}, None),
    ],
)
def test_a_serving_container_has_the_readiness_probe_that_kserve_writes(
    mode: str, container: Json, port: int | None
) -> None:
    containers = [{"name": "kserve-container", "image": "example.org/s:1", **container}]
    spec = {"predictor": {"containers": containers}}
    judged = obj("serving.kserve.io/v1beta1", "InferenceService", "llm", spec)
    judged["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": mode}
    before = copy.deepcopy(judged)
    (template,) = templates(judged)
    (made,), (written,) = (each["spec"]["containers"] for each in (template.pod, template.unprojected))
    assert dig(made, "readinessProbe", "tcpSocket", "port") == port
    assert written.get("readinessProbe") == container.get("readinessProbe")
    assert judged == before


# --- Trainer -----------------------------------------------------------------------------------------


def training(kind: str = "ClusterTrainingRuntime", **container: Any) -> Json:
    def job(name: str, step: str, **more: Any) -> Json:
        spec = {"containers": [{"name": name, "image": f"example.org/{name}:1", **more}]}
        labels = {"trainer.kubeflow.org/trainjob-ancestor-step": step}
        template = {"metadata": {"labels": labels}, "spec": {"template": {"spec": spec}}}
        return {"name": name, "template": template}

    jobs = [job("model-initializer", "model-initializer"), job("node", "trainer", **container)]
    namespace = "ml" if kind == "TrainingRuntime" else ""
    spec = {"template": {"spec": {"replicatedJobs": jobs}}}
    return obj("trainer.kubeflow.org/v1alpha1", kind, "torch", spec, namespace)


def train_job(runtime_ref: Json | None = None, **spec: Any) -> Json:
    spec = {"runtimeRef": {"name": "torch", **(runtime_ref or {})}, **spec}
    return obj("trainer.kubeflow.org/v1alpha1", "TrainJob", "fine-tune", spec)


def test_a_train_job_is_merged_over_its_runtime() -> None:
    trainer = {
        "image": "example.org/mine:1",
        "command": ["torchrun"],
        "env": [{"name": "A", "value": "mine"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }
    override = {
        "targetJobs": [{"name": "node"}],
        "metadata": {"labels": {"team": "ml"}},
        "spec": {"nodeSelector": {"pool": "h100"}, "containers": [{"name": "node", "env": [{"name": "B"}]}]},
    }
    given = training(
        args=["run.py"], resources={"requests": {"cpu": 1}}, env=[{"name": "A", "value": "runtime"}]
    )
    initializer, node = templates(train_job(trainer=trainer, podTemplateOverrides=[override]), given)
    assert initializer.containers()[0].image == "example.org/model-initializer:1"
    assert node.spec["nodeSelector"] == {"pool": "h100"}
    assert node.pod["metadata"]["labels"] == {"team": "ml"}
    assert node.pod["metadata"]["ownerReferences"][0]["kind"] == "Job"
    container = node.containers()[0]
    assert container.spec == {
        "name": "node",
        "image": "example.org/mine:1",
        "command": ["torchrun"],
        "args": ["run.py"],
        "env": [{"name": "A", "value": "mine"}, {"name": "B"}],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    at = "@spec.template.spec.replicatedJobs[1].template.spec.template.spec"
    places = {
        "image": "spec.trainer.image",
        "args": f"{at}.containers[0].args",
        "env[0]": f"{at}.containers[0].env[0]",
        "env[0].value": "spec.trainer.env[0].value",
        "env[1]": "spec.podTemplateOverrides[0].spec.containers[0].env[0]",
        "resources.limits": "spec.trainer.resourcesPerNode.limits",
    }
    assert {each: node.source_path(node.at(container, each)) for each in places} == places


def test_patches_of_a_manager_are_merged_over_the_job_that_they_name() -> None:
    template = {
        "spec": {"nodeSelector": {"pool": "h100"}, "containers": [{"name": "node", "env": [{"name": "B"}]}]}
    }
    jobs = [{"name": "node", "template": {"spec": {"template": template}}}]
    patch = {"manager": "kueue", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    judged = train_job(runtimePatches=[{"manager": "other"}, patch])
    initializer, node = templates(judged, training(env=[{"name": "A"}]))
    assert "nodeSelector" not in initializer.spec
    assert node.spec["nodeSelector"] == {"pool": "h100"}
    assert node.containers()[0].spec["env"] == [{"name": "A"}, {"name": "B"}]
    job = "spec.runtimePatches[1].trainingRuntimeSpec.template.spec.replicatedJobs[0]"
    at = f"{job}.template.spec.template.spec"
    assert node.source_path(f"{node.spec_path}.nodeSelector") == f"{at}.nodeSelector"
    assert coverage_of(judged, training()).reading is Reading.REVIEWED


def test_a_train_job_is_reviewed_with_its_runtime_only() -> None:
    assert coverage_of(train_job(), training()).reading is Reading.REVIEWED
    assert coverage_of(train_job()).reading is Reading.NOT


def test_training_is_judged_by_the_pods_that_its_runtime_completes() -> None:
    trainer: Json = {
        "command": ["torchrun", "--nproc-per-node=8", "train.py", "--output-dir=/out"],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }
    rules = ("training-shared-memory", "training-state-not-durable")
    judged = train_job(trainer=trainer)
    found = {each.rule: each.finding.path for each in decided(judged, training()).warnings}
    assert {rule: found.get(rule) for rule in rules} == dict.fromkeys(rules, "spec.runtimeRef")
    unknown = {each.rule for each in decided(judged).warnings}
    assert unknown.isdisjoint(rules), "a runtime that is not known may mount volumes"


def test_the_kind_of_the_runtime_decides_where_it_is_looked_for() -> None:
    near = training("TrainingRuntime")
    assert templates(train_job(), near) == ()
    assert len(templates(train_job({"kind": "TrainingRuntime"}), near)) == 2
    assert templates(train_job({"kind": "Other"}), near, training()) == ()


# --- Argo Rollouts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "kind"), [("apps/v1", "Deployment"), ("apps/v1", "ReplicaSet"), ("v1", "PodTemplate")]
)
def test_a_rollout_has_the_pods_of_the_workload_that_it_names(api: str, kind: str) -> None:
    template = {"spec": {"containers": [{"name": "api", "image": "a:1", "livenessProbe": HAZARD}]}}
    named = obj(api, kind, "web", {"template": template})
    if kind == "PodTemplate":
        named = {**named, "template": template}
    reference = {"apiVersion": api, "kind": kind, "name": "web"}
    rollout = obj("argoproj.io/v1alpha1", "Rollout", "web", {"workloadRef": reference})
    assert coverage_of(rollout, named).reading is Reading.REVIEWED
    assert hazards(decided(rollout, named)) == [], "the review of the other has it"
    assert hazards(decided(named))
    (made,) = templates(rollout, named)
    assert made.pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    assert coverage_of(rollout).reading is Reading.NOT


def test_a_rollout_of_another_kind_is_not_read() -> None:
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"}
    rollout = obj("argoproj.io/v1alpha1", "Rollout", "web", {"workloadRef": reference})
    stateful = obj("apps/v1", "StatefulSet", "web", {"template": {"spec": {"containers": []}}})
    assert templates(rollout, stateful) == ()


def test_a_missing_liveness_is_reported_for_the_service_and_not_for_its_runtime() -> None:
    """The service may write the probe."""
    given = runtime(image="example.org/server:1", ports=[{"containerPort": 8080}])
    missing = [[each.rule for each in decided(obj, given).results] for obj in (given, service())]
    assert ["liveness-missing" in rules for rules in missing] == [False, True]
    written = service({"livenessProbe": {"httpGet": {"path": "/live", "port": 8080}, "failureThreshold": 6}})
    assert "liveness-missing" not in [each.rule for each in decided(written, given).results]


@pytest.mark.parametrize(
    "graph",
    [
        {"implementation": "TRITON_SERVER"},
        {"implementation": "RANDOM_ABTEST", "children": [{"implementation": "TRITON_SERVER"}]},
        {"children": [{"implementation": "TRITON_SERVER"}]},
    ],
)
def test_nothing_is_shown_as_injected_where_seldon_writes_the_server(graph: Json) -> None:
    """Seldon starts Triton on port 9000, the preset knows 8000."""
    container = {"name": "model", "image": "nvcr.io/nvidia/tritonserver:24.12-py3"}
    predictor = {"name": "default", "componentSpecs": [{"spec": {"containers": [container]}}]}
    api = {
        "apiVersion": "machinelearning.seldon.io/v1",
        "kind": "SeldonDeployment",
        "metadata": {"name": "x"},
    }
    own = decided({**api, "spec": {"predictors": [{**predictor, "graph": {"type": "MODEL"}}]}})
    assert "8000" in str(own.changes), "Triton that a person starts"
    assert decided({**api, "spec": {"predictors": [{**predictor, "graph": graph}]}}).changes == ()


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Server", {"serverConfig": "triton", "podSpec": {}}),
        ("SeldonRuntime", {"seldonConfig": "default", "overrides": [{"name": "triton", "podSpec": {}}]}),
    ],
)
def test_nothing_is_shown_as_injected_into_a_part_of_a_pod(kind: str, spec: Json) -> None:
    """Seldon merges it over containers that have probes and ports of their own."""
    pod = {"containers": [{"name": "triton", "image": "nvcr.io/nvidia/tritonserver:24.12-py3"}]}
    path = ("podSpec",) if kind == "Server" else ("overrides", 0, "podSpec")
    obj = {"apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}}
    decision = decided({**obj, "spec": replaced(spec, path, pod)}, config=STRICT)
    assert (decision.changes, decision.results, decision.allowed) == ((), (), True)


def test_a_server_config_is_a_whole_pod() -> None:
    pod = {"containers": [{"name": "triton", "image": "nvcr.io/nvidia/tritonserver:24.12-py3"}]}
    obj = {"apiVersion": "mlops.seldon.io/v1alpha1", "kind": "ServerConfig", "metadata": {"name": "x"}}
    assert "8000" in str(decided({**obj, "spec": {"podSpec": pod}}).changes)


def test_the_claim_of_a_uri_is_a_volume_of_the_pod() -> None:
    """Also of a pod without a known runtime; a finding about the claim is at the URI."""
    for judged, other in ((service(), runtime()), (service({"runtime": ""}), None)):
        template = next(
            each for each in templates(judged, *filter(None, [other])) if each.claims or each.origins
        )
        (volume,) = template.spec["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": "a"}
        at = f"{template.spec_path}.volumes[0].persistentVolumeClaim.claimName"
        assert template.source_path(at) == "spec.predictor.model.storageUri"
    (mounted,) = templates(
        service(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}]), runtime()
    )
    assert [each["name"] for each in mounted.spec["volumes"]] == ["v"], "it is not there twice"
