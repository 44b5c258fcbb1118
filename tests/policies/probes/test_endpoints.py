"""The ports, paths and schemes of recognised servers. The golden cases have a container for each preset."""

import pytest

from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube.json import Json
from policies.kube.pods import Container, containers
from policies.probes.endpoints import declared_http_port, doubt_about, preset_health, server_port
from policies.probes.health import known_health
from policies.probes.serving import recognised
from policies.probes.standard_probes_settings import StandardProbes
from tests.tables import table

TRITON = {"image": "nvcr.io/nvidia/tritonserver:25.06-py3", "args": ["tritonserver", "--model-repository=/m"]}
MLSERVER = {"image": "seldonio/mlserver:1.7.1"}
VLLM = {"image": "vllm/vllm-openai", "args": ["m"]}
OLLAMA = {"image": "ollama/ollama"}
CONFIGURED = {"image": "vllm/vllm-openai", "args": ["m", "--config=/c.yaml"]}
TGI = {"image": "registry.example.com/own:1", "command": ["text-generation-launcher"]}
FROM_ELSEWHERE = {"envFrom": [{"configMapRef": {"name": "c"}}]}


def script(text: str) -> Json:
    return {"image": "vllm/vllm-openai", "command": ["bash", "-c", text]}


HIDDEN = script('ARGS=(--tp 8 --port 9000)\nvllm serve m "${ARGS[@]}"')


OWN_CODE: Json = {
    "image": "registry.example/api:1",
    "command": ["uvicorn", "app:app", "--host", "0.0.0.0"],
}


def asked(by: int | str) -> Json:
    """A readinessProbe of a port or with a script, as a field of a container."""
    exec_ = {"exec": {"command": ["sh", "-c", by]}}
    return {"readinessProbe": exec_ if isinstance(by, str) else {"httpGet": {"path": "/", "port": by}}}


def container(spec: Json, **ports: int) -> Container:
    """A container; a port whose name begins with `_` has none."""
    declared = [
        {"containerPort": n} if name[0] == "_" else {"name": name, "containerPort": n}
        for name, n in ports.items()
    ]
    pod = {"spec": {"containers": [{"name": "m", **spec, "ports": declared}]}}
    return next(iter(containers(pod)))


@table(
    ("spec", "ports", "port"),
    [
        (TRITON, {}, 8000),
        (TRITON, {"grpc": 8001, "metrics": 8002}, 8000),
        (TRITON, {"http": 8080, "grpc": 8001}, None),
        (TRITON, {"_1": 8000, "_2": 8001}, 8000),
        (TRITON, {"_1": 8001}, None),
        (TRITON, {"triton": 8000, "http": 9000}, 8000),
        (TRITON, {"metrics": 8000, "http": 9000}, None),
        (OLLAMA, {"ollama": 11434, "web": 8080}, 11434),
        (OLLAMA | {"env": [{"name": "OLLAMA_HOST", "value": "0.0.0.0"}]}, {}, 11434),
        (OLLAMA | {"env": [{"name": "OLLAMA_HOST", "value": "http://0.0.0.0"}]}, {}, None),  # 80, as in URLs
        (CONFIGURED, {"_1": 8000, "http": 9000}, 9000),
        (HIDDEN, {}, None),
        (HIDDEN, {"_1": 9000}, 9000),
        (script("if big; then ARGS='--port 9000'; fi\nvllm serve m $ARGS"), {}, None),
        (script("ARGS='--port 9000'; vllm serve m $ARGS"), {}, 9000),
        (script("vllm serve m $ARGS"), {}, 8000),
        (script('ARGS=(--tp 8)\nvllm serve m "${ARGS[@]}"'), {}, 8000),
        (script("gateway --port 9000 & vllm serve m"), {}, 8000),
        (script("ray start --head --port=6379; vllm serve $MODEL"), {}, 8000),
        (script("vllm serve $MODEL --port 9000"), {}, 9000),
        (TRITON, {"inference": 9000}, None),
        (VLLM, {"_1": 9000}, None),
        (VLLM, {"http": 9000}, None),
        (CONFIGURED, {"_1": 9000}, 9000),
        (CONFIGURED, {"_1": 9000, "_2": 9001}, None),
        (CONFIGURED, {"metrics": 9000}, None),
        (CONFIGURED, {}, None),
        (MLSERVER | FROM_ELSEWHERE, {}, None),
        (MLSERVER | FROM_ELSEWHERE, {"_1": 8080}, 8080),
        (MLSERVER | FROM_ELSEWHERE, {"_1": 9000}, 9000),
        (VLLM | FROM_ELSEWHERE, {}, 8000),
        (TGI, {}, None),
        (TGI, {"_1": 3000}, 3000),
        (OWN_CODE | asked(8000), {}, 8000),
        (OWN_CODE | asked(8080), {}, None),  # UVICORN_PORT of its image
        (OWN_CODE | asked(8080), {"_1": 8000}, 8000),
        (OWN_CODE | asked("curl -f http://localhost:8080/health"), {}, None),
        (OWN_CODE | asked("curl -f http://127.0.0.1:8000/health"), {}, 8000),
        (OWN_CODE | {"args": ["--port", "8000"]} | asked(8080), {}, 8000),
        (OWN_CODE | {"readinessProbe": {"tcpSocket": {"port": 8080, "host": "db"}}}, {}, 8000),
        (script("nginx; uvicorn app:app --host 0.0.0.0") | asked(80), {}, 8000),
        (VLLM | asked(9000), {}, 8000),  # no variable moves it
    ],
)
def test_server_port(spec: Json, ports: Json, port: int | None) -> None:
    of = container(spec, **ports)
    server = recognised(of, Facts())
    assert server is not None
    assert server_port(of, server) == port


MLFLOW_OPTIONS = "mlflow server --host 0.0.0.0 --registry-store-uri $URI --gunicorn-opts '--keyfile=/k'"


@pytest.mark.parametrize(
    ("spec", "scheme"),
    [
        (VLLM, None),
        (VLLM | {"args": ["m", "--ssl-keyfile=/k"]}, "HTTPS"),
        (VLLM | {"args": ["m", "--ssl_keyfile", "/k"]}, "HTTPS"),
        (VLLM | {"args": ["m", "--ssl-keyfile=/k", "$MORE"]}, "HTTPS"),
        (VLLM | {"args": ["m", "--ssl-keyfile=/k", "--ssl-cert-reqs=0"]}, "HTTPS"),
        (script(MLFLOW_OPTIONS), "HTTPS"),
    ],
)
def test_tls(spec: Json, scheme: str | None) -> None:
    health = preset_health(container(spec), StandardProbes())
    assert health is not None
    assert health.live is not None
    assert health.live["httpGet"].get("scheme") == scheme


@pytest.mark.parametrize(
    ("annotation", "live", "ready"),
    [("ready-path", "/v2/health/live", "/own"), ("live-path", "/own", "/v2/health/ready")],
)
def test_the_preset_completes_an_annotation(annotation: str, live: str, ready: str) -> None:
    pod = {
        "metadata": {"annotations": {f"mlchassis.dev/{annotation}": "/own"}},
        "spec": {"containers": [{"name": "m", **TRITON}]},
    }
    view = PodView(pod)
    health = known_health(view, view.containers[0], Facts())
    assert health is not None
    assert [each and each["httpGet"]["path"] for each in (health.live, health.ready)] == [live, ready]
    annotated = "live" if annotation == "live-path" else "ready"
    sources = {"live": str(health.live_source), "ready": str(health.ready_source)}
    assert sources == {"live": "preset triton", "ready": "preset triton", annotated: "annotation"}


@table(
    ("spec", "why"),
    [
        (VLLM | {"args": ["m", "--host=127.0.0.1"]}, "loopback"),
        (VLLM | {"args": ["m", "--host", "[::1]"]}, "loopback"),
        ({"command": ["mlflow", "server"]}, "loopback"),
        ({"command": ["gunicorn", "app:app"]}, "loopback unless its configuration sets another address"),
        (VLLM | {"args": ["m", "--ssl_cert_reqs=2", "--ssl-keyfile=/k"]}, "protect it"),
        (
            {
                "command": ["mlflow", "server", "--host=0.0.0.0"],
                "env": [{"name": "MLFLOW_STATIC_PREFIX", "value": "/mlflow"}],
            },
            "move its health endpoint",
        ),
        ({"command": ["sh", "-c", "if leader; then vllm serve m; else ray start; fi"]}, "only in some cases"),
        (VLLM | {"args": ["m", "--grpc"]}, "move its health endpoint"),
        (script("[ $RANK = 0 ] || MORE=--headless\nvllm serve m $MORE"), "move its health endpoint"),
        (script('A=(--ssl-keyfile /k)\nvllm serve m "${A[@]}"'), "move its health endpoint"),
        (VLLM | {"args": ["m", "--port=$PORT"]}, "its port"),
        ({"command": ["tensorflow_model_server", "--rest_api_port=1", "--model_name=$M"]}, "model's name"),
        (
            {"command": ["tritonserver", "--allow-http=false", "--grpc-use-ssl=true"]},
            "gRPC probes don't use TLS",
        ),
    ],
)
def test_doubts(spec: Json, why: str) -> None:
    of = container(spec)
    server = recognised(of, Facts())
    assert server is not None
    assert preset_health(of, StandardProbes()) is None
    doubt = doubt_about(of, server, server_port(of, server))
    assert doubt is not None
    assert why in doubt[0]


@pytest.mark.parametrize(
    ("ports", "number"),
    [
        ({"main": 9000}, 9000),
        ({"grpc": 9000}, None),
        ({"grpc": 9000, "http": 8000}, 8000),
        ({"a": 1, "b": 2}, None),
        ({}, None),
    ],
)
def test_declared_http_port(ports: dict[str, int], number: int | None) -> None:
    assert declared_http_port(container({}, **ports).typed) == number
