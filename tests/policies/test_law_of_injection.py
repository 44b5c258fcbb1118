"""The law of injection: no finding of any mode lies at an injected field, and no injection adds a finding.

`tests.policies.injection` has the check. Here are the golden cases, the cases of the rules, the examples and
the sound specs; `tests/corpus/test_corpora.py` has other projects' manifests.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.core import registry
from policies.core.annotations import POLICY_LABEL
from policies.core.finding import Mode, Profile
from policies.kube.json import Json, mapping
from policies.kube.metadata import labels_of
from policies.probes import copied
from tests.manifests import manifest
from tests.policies import test_golden, test_rules
from tests.policies.injection import objections
from tests.tables import table
from webhook.admission.configuration import Config
from webhook.cli.output.yaml import dump
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

ROOT = Path(__file__).parents[2]
FOLDERS = ("examples", "tests/corpus/sound", "tests/policies")
"""Their files are the objects of one cluster each."""
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.yaml")
    if path.name not in ("modes.yaml", "operator_pods.yaml")
)


POLICY = {"rules.yaml": f"profile: {Profile.STRICT}"}
"""Every rule and policy is at work under it; findings of any mode count."""


@cache
def strict() -> Config:
    return load(POLICY)


def test_no_profile_has_more_rules_at_work() -> None:
    for rule in registry.rules().values():
        assert rule.mode(Profile.STRICT) is not Mode.OFF, rule.id


@table("case", test_golden.CASES)
def test_golden_cases(case: Path) -> None:
    settings = case / "settings.yaml"
    own = settings.exists()
    config = load({f"{case.parent.name}.yaml": settings.read_text(), **POLICY}) if own else strict()
    [obj] = test_golden.documents(case / "input.yaml")
    cluster = ManifestCluster(test_golden.documents(case / "facts.yaml"))
    assert objections(obj, config, cluster) == []


@table("path", test_rules.FILES)
def test_cases_of_rules(path: Path) -> None:
    obj, *rest = objects = test_rules.Case.read(path).objects
    policy = [mapping(other, "data") for other in rest if labels_of(other).get(POLICY_LABEL) == "true"]
    config = load(POLICY | policy[0]) if policy else strict()
    assert objections(obj, config, ManifestCluster(objects, whole=True)) == []


ACTIONS = [
    {"httpGet": {"path": "/health", "port": 8000}},
    {"httpGet": {"path": "/health", "port": "http"}},
    {"httpGet": {"path": "/livez", "port": "web", "scheme": "HTTPS"}},
    {"httpGet": {"path": "/v2/health/live", "port": 8000, "host": "api.ml.svc"}},
    {"httpGet": {"path": "/ready", "port": 8080, "httpHeaders": [{"name": "Host", "value": "a.example"}]}},
    {"tcpSocket": {"port": 8000}},
    {"tcpSocket": {"port": "grpc"}},
    {"tcpSocket": {"port": 9999}},
    {"httpGet": {"path": "/health", "port": 8000, "scheme": "HTTPS"}},
    {"grpc": {"port": 9000}},
    {"grpc": {"port": 9000, "service": "liveness"}},
    {"exec": {"command": ["cat", "/tmp/alive"]}},
    {"exec": {"command": ["sh", "-c", "curl -f http://localhost:8000/health"]}},
    {"exec": {"command": ["bash", "-c", "curl -m 9 -f http://llm.ml.svc/health"]}},
    {"exec": {"command": ["python3", "-c", "import torch"]}},
    {"exec": {"command": ["ollama", "list"]}},
]
SERVERS: list[Json] = [
    {"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "meta-llama/Llama-3.1-8B"]},
    {"image": "vllm/vllm-openai:v0.32.0", "args": ["--model", "meta-llama/Llama-3.1-405B"]},
    {"image": "vllm/vllm-openai:latest", "command": ["sh", "-c", "vllm serve meta-llama/Llama-3.1-8B $ARGS"]},
    {"image": "nvcr.io/nvidia/tritonserver:24.12-py3"},
    {"image": "tensorflow/serving:2.18.0"},
    {"image": "ollama/ollama:0.9.0"},
    {"image": "lmsysorg/sglang:v0.4.9", "command": ["python3", "-m", "sglang.launch_server", "--port=8000"]},
    {"image": "rayproject/ray:2.52.0", "command": ["ray", "start", "--head", "--block"]},
    {"image": "ghcr.io/mlflow/mlflow:v2.14.0", "args": ["mlflow", "server", "--host", "0.0.0.0"]},
    {"image": "ghcr.io/berriai/litellm:v1.70.0", "args": ["--config", "/app/config.yaml"]},
    {"image": "example.org/api:1", "command": ["gunicorn", "--timeout=600", "-b0.0.0.0:8000", "app:app"]},
    {"image": "example.org/api:1", "command": ["python3", "serve.py"]},
    {
        "image": "example.org/api:1",
        "command": ["sh", "-c", "until nc -z db 5432; do sleep 1; done; exec api"],
    },
]
PORTS = [
    [],
    [{"containerPort": 8000}],
    [{"name": "http", "containerPort": 8000}],
    [{"name": "grpc", "containerPort": 9000}, {"name": "metrics", "containerPort": 9090}],
]
LIFECYCLES = [
    {"preStop": {"exec": {"command": ["sleep", "5"]}}},
    {"preStop": {"httpGet": {"path": "/drain", "port": "http"}}},
    {"postStart": {"exec": {"command": ["sh", "-c", "until curl localhost:8000; do sleep 1; done"]}}},
]
OTHERS = [
    {
        "name": "metrics",
        "image": "prom/statsd-exporter:v1",
        "ports": [{"name": "http", "containerPort": 9102}],
    },
    {"name": "cache", "image": "redis:7", "ports": [{"name": "web", "containerPort": 6379}]},
    {"name": "head", "image": "example.org/api:1", "command": ["ray", "start", "--head"]},
    {"name": "api", "image": "example.org/api:1", "ports": [{"containerPort": 8080}]},
]
KINDS = [
    *("Pod", "Deployment", "StatefulSet", "Job", "InferenceService", "LeaderWorkerSet", "RayCluster"),
    *("PyTorchJob", "Rollout"),
]
MORE = {
    "hostNetwork": True,
    "terminationGracePeriodSeconds": 5,
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "nodeSelector": {"disk": "ssd"},
    "shareProcessNamespace": True,
}


@st.composite
def probe(draw: st.DrawFn) -> Json:
    numbers = {
        "initialDelaySeconds": st.sampled_from([0, 5, 120, 900]),
        "periodSeconds": st.sampled_from([1, 5, 30]),
        "timeoutSeconds": st.sampled_from([1, 4, 60]),
        "failureThreshold": st.sampled_from([1, 3, 30, 2000]),
    }
    return {**draw(st.sampled_from(ACTIONS)), **draw(st.fixed_dictionaries({}, optional=numbers))}


@st.composite
def workload(draw: st.DrawFn) -> Json:
    optional = {field: probe() for field in ("livenessProbe", "readinessProbe", "startupProbe")}
    optional["lifecycle"] = st.sampled_from(LIFECYCLES)
    optional["resources"] = st.just({"limits": {"nvidia.com/gpu": "1"}})
    fields = draw(st.fixed_dictionaries({}, optional=optional))
    ports = draw(st.sampled_from(PORTS))
    model = {"name": "model", **draw(st.sampled_from(SERVERS)), "ports": ports, **fields}
    others = draw(st.lists(st.sampled_from(OTHERS), max_size=1))
    more = draw(st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in MORE.items()}))
    spec: Json = {"containers": [*others, model], **more}
    if draw(st.booleans()):
        sidecar = {"name": "side", "image": "example.org/side:1", "restartPolicy": "Always", **draw(probed())}
        spec["initContainers"] = [sidecar]
    annotations = draw(
        st.dictionaries(st.sampled_from(sorted(ANNOTATIONS)), st.none(), max_size=2).map(
            lambda keys: {key: ANNOTATIONS[key] for key in keys}
        )
    )
    kind = draw(st.sampled_from(KINDS))
    if kind == "Pod":
        return manifest("Pod", "llm", spec, namespace="ml", annotations=annotations)
    if kind == "Job":
        template = {"metadata": {"annotations": annotations}, "spec": {**spec, "restartPolicy": "Never"}}
        return manifest("Job", "llm", {"template": template}, namespace="ml")
    labels = {"app": "llm"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    if kind == "InferenceService":
        model["name"] = "kserve-container"
        return manifest(kind, "llm", {"predictor": spec}, namespace="ml", annotations=annotations)
    if kind == "LeaderWorkerSet":
        groups = {"size": 2, draw(st.sampled_from(["workerTemplate", "leaderTemplate"])): template}
        policy = draw(st.sampled_from(["LeaderCreated", "LeaderReady"]))
        spec = {"replicas": 1, "startupPolicy": policy, "leaderWorkerTemplate": groups}
        return manifest(kind, "llm", spec, namespace="ml")
    if kind == "PyTorchJob":
        return manifest(
            kind, "llm", {"pytorchReplicaSpecs": {"Master": {"template": template}}}, namespace="ml"
        )
    if kind == "RayCluster":
        return manifest(kind, "llm", {"headGroupSpec": {"template": template}}, namespace="ml")
    replicas = draw(st.sampled_from([1, 3]))
    selector = {"matchLabels": labels}
    return manifest(
        kind, "llm", {"replicas": replicas, "selector": selector, "template": template}, namespace="ml"
    )


def probed() -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({}, optional={"livenessProbe": probe(), "ports": st.sampled_from(PORTS[1:])})


ANNOTATIONS = {
    "mlchassis.dev/expected-start": "30m",
    "mlchassis.dev/model-size": "200Gi",
    "mlchassis.dev/health-path": "/health",
    "mlchassis.dev/live-path": "/health",
    "mlchassis.dev/liveness": "progress",
    "mlchassis.dev/model-config": "models",
    "mlchassis.dev/progress": "file /checkpoints 45m",
    "sidecar.istio.io/inject": "true",
    "sidecar.istio.io/rewriteAppHTTPProbers": "false",
}


BOUNDS = manifest(
    "LimitRange",
    "bounds",
    {
        "limits": [
            {
                "type": "Container",
                "min": {"cpu": "200m"},
                "max": {"memory": "512Mi"},
                "default": {"cpu": "150m", "memory": "256Mi"},
                "maxLimitRequestRatio": {"memory": "1"},
            }
        ]
    },
    namespace="ml",
)


@given(workload(), st.sampled_from(Profile), st.sampled_from(["recognised", "similar"]), st.booleans())
@settings(max_examples=75)
def test_generated_objects(obj: Json, profile: Profile, mirror: str, bounded: bool) -> None:
    config = load({"rules.yaml": f"profile: {profile}", "standard-probes.yaml": f"mirror: {mirror}"})
    breaches = objections(obj, config, ManifestCluster([obj, BOUNDS] if bounded else [obj]))
    assert not breaches, "\n".join([*breaches, dump(obj)])


def _pod(*containers: Json, **annotations: str) -> Json:
    named = [{"name": f"c{n}", **each} for n, each in enumerate(containers)]
    keys = {f"mlchassis.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"labels": {"app": "llm"}, "annotations": keys},
        "spec": {"containers": named},
    }


def _deployment(template: Json) -> Json:
    spec = {"selector": {"matchLabels": {"app": "llm"}}, "template": template}
    return manifest("Deployment", "llm", spec, namespace="ml")


def _leader(template: Json) -> Json:
    groups = {"size": 4, "leaderTemplate": template}
    spec = {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": groups}
    return manifest("LeaderWorkerSet", "llm", spec, namespace="ml")


def _training(template: Json) -> Json:
    return manifest("PyTorchJob", "llm", {"pytorchReplicaSpecs": {"Master": {"template": template}}})


RAY = {"image": "example.org/ray:1", "command": ["ray", "start", "--head", "--block"]}
SGLANG = {
    "image": "lmsysorg/sglang:v0.5.3",
    "command": ["python3", "-m", "sglang.launch_server", "--port=8000"],
}
OWN = {"image": "example.org/own:1", "ports": [{"containerPort": 8080}]}
GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
LIVENESS = {"httpGet": {"path": "/live", "port": 8080}}
BREACHES = {
    "a delay for the group that another container of the pod leads": _deployment(
        _pod({"image": "qdrant/qdrant:v1.9.0"}, RAY)
    ),
    "an annotation that fits one of two servers": _leader(_pod(OWN, SERVERS[0], health_port="8080")),
    "models make a server first-party": _deployment(
        _pod(
            {"image": "docker.io/acme/own:1", "readinessProbe": {"tcpSocket": {"port": 8080}}},
            model_config="models",
        )
    ),
    "models make a start slow": _deployment(
        _pod({"image": "docker.io/acme/own:1", "livenessProbe": LIVENESS}, model_config="models")
    ),
    "models are the only volume of a training": _training(
        _pod({"image": "example.org/train:1", **GPUS}, model_config="models")
    ),
    "models are the only mount of a server with many GPUs": _deployment(
        _pod({"image": "xprobe/xinference:1.2.3", **GPUS}, model_config="models")
    ),
    "a path that asks providers": _deployment(
        _pod({"image": "ghcr.io/berriai/litellm:v1.70.0"}, health_path="/health")
    ),
    "a path of liveness that asks workers": _deployment(
        _pod({"command": ["python3", "-m", "dynamo.frontend"], **OWN}, live_path="/health")
    ),
    "requests that take longer than liveness": _deployment(
        _pod({**OWN, "command": ["gunicorn", "--timeout=600", "-b0.0.0.0:8080", "a:b"]}, health_path="/h")
    ),
    "a timeout within which no answer arrives": _deployment(
        _pod({**SGLANG, "livenessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}})
    ),
    "a timeout before that of a hasty check": _deployment(
        _pod({**SGLANG, "livenessProbe": {"grpc": {"port": 8000}, "periodSeconds": 1}})
    ),
    "a start that takes longer than the silence of a training": _training(
        _pod({"image": "example.org/train:1"}, model_size="200Gi", progress="file /checkpoints 45m")
    ),
    "a delay in a pod of many containers": _deployment(
        _pod(
            {"image": "tensorflow/serving:2.18.0", "readinessProbe": {"tcpSocket": {"port": 8500}}},
            RAY,
            *[{"image": "busybox:1", "command": ["sleep", "infinity"]}] * 10,
        )
    ),
    "a request that Istio does not rewrite": _deployment(
        _pod({"image": "qdrant/qdrant:v1.9.0"}, model_config="models", model_server="v2")
    ),
    "a startupProbe of the server's endpoint that Istio does not rewrite": _deployment(
        _pod({"image": "vllm/vllm-openai:v0.11.0", "livenessProbe": {"httpGet": {"port": "web"}}})
    ),
    "a copied request that Istio does not rewrite": _deployment(
        _pod({**OWN, "readinessProbe": {"httpGet": {"path": "/livez", "port": 8080}}})
    ),
}


for _name in (name for name in BREACHES if name.endswith("Istio does not rewrite")):
    BREACHES[_name]["spec"]["template"]["metadata"]["annotations"] |= {
        "sidecar.istio.io/inject": "true",
        "sidecar.istio.io/rewriteAppHTTPProbers": "false",
    }
MODELS_OF_OWN = _deployment(_pod(OWN, model_config="models", model_server="v2"))
SERVING = {"image": "predibase/lorax:1", "command": ["lorax-launcher", "--model-id=meta-llama/Llama-3.1-70B"]}
GRACE = _deployment(_pod(OWN))
GRACE["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
BREACHES_WITH: dict[str, tuple[Json, dict[str, str], list[Json]]] = {
    "a sidecar that a LimitRange refuses": (MODELS_OF_OWN, {}, [BOUNDS]),
    "a budget of a day for a guess of days": (
        _deployment(_pod(SERVING)),
        {"standard-probes.yaml": "loadRate: 256Ki"},
        [],
    ),
    "a delay of a day for a guess of days": (
        _deployment(
            {
                "spec": {
                    "initContainers": [
                        {
                            "name": "model",
                            "image": "vllm/vllm-openai:v0.11.0",
                            "args": ["--model", "deepseek-ai/DeepSeek-R1"],
                            "ports": [{"containerPort": 8000}],
                            "restartPolicy": "Always",
                        }
                    ],
                    "containers": [{"name": "side", "image": "example.org/side:1"}],
                }
            }
        ),
        {"standard-probes.yaml": "loadRate: 1Mi"},
        [],
    ),
    "a sleep as long as the default grace period": (
        _deployment(_pod(OWN)),
        {"disruption-guard.yaml": "{preStopSleep: 30, drain: 0}"},
        [],
    ),
    "a sleep as long as the grace period": (GRACE, {"disruption-guard.yaml": "drain: 0"}, []),
}


@pytest.mark.parametrize("name", BREACHES_WITH)
def test_each_breach_with_settings_or_facts(name: str) -> None:
    obj, policy, facts = BREACHES_WITH[name]
    assert objections(obj, load(POLICY | policy), ManifestCluster([obj, *facts])) == []


@pytest.mark.parametrize("mirror", ["recognised", "similar"])
@pytest.mark.parametrize("name", BREACHES)
def test_each_breach_that_was_found(name: str, mirror: str) -> None:
    config = load({**POLICY, "standard-probes.yaml": f"mirror: {mirror}"})
    assert objections(BREACHES[name], config, ManifestCluster([BREACHES[name]])) == []


def test_a_breach_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before checks were copied only if they are known to work."""
    probe = {"httpGet": {"path": "/health", "port": "http"}}
    container = {"name": "llm", "image": "vllm/vllm-openai:v0.11.0", "livenessProbe": probe}
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "llm"}}, "template": template}
    obj = manifest("Deployment", "llm", spec, namespace="ml")
    config, cluster = load({}), ManifestCluster([obj])
    assert objections(obj, config, cluster) == []
    monkeypatch.setattr(copied, "why_not_copied", lambda *_: "")
    found = [breach.partition(":")[0] for breach in objections(obj, config, cluster)]
    assert found == [f"at an injected field, {stage}" for stage in ("admitted", "stored", "fixed")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files(path: Path) -> None:
    objects = [document.obj for document in read([str(path)])]
    config, cluster = strict(), ManifestCluster(objects)
    assert [breach for obj in objects for breach in objections(obj, config, cluster)] == []
