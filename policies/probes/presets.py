"""Model servers as data: how each is recognised, where it answers for its health, how long it starts.

Pure data and its model. A preset holds what the server's own documentation or source says; `source`
names the page. Users extend the table, or change single fields of an entry, under `presets` in
`standard-probes.yaml`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from policies.core.settings import Duration, Model


class Protocol(StrEnum):
    """How a server is asked for its health."""

    HTTP = "http"
    GRPC = "grpc"


class Preset(Model):
    """One kind of model server. In the settings every field is optional: what is not said stays."""

    enabled: bool = Field(True, description="false takes this preset out of use")
    images: tuple[str, ...] = Field(
        (),
        description="image repositories without registry, tag and digest, such as `vllm/vllm-openai`: "
        "whole segments at the end of the path, `*` stands for any text inside one; with `:` the tag too",
    )
    excluded_images: tuple[str, ...] = Field(
        (), description="images in which the server stands behind another one that answers differently"
    )
    commands: tuple[str, ...] = Field(
        (),
        description="what the container runs, such as `vllm serve` or the Python module `mlserver`; words "
        "that begin with `-` may stand anywhere among the arguments. Behind interpreters and launchers too",
    )
    commands_need_image: bool = Field(
        False, description="whether the commands count in the preset's own images alone"
    )
    port_names: tuple[str, ...] = Field(
        (), description="container port names that only this server uses, such as `triton-http`"
    )
    unless_flags: tuple[str, ...] = Field(
        (), description="flags with which it answers nowhere, elsewhere or not to everybody"
    )
    unless_env: tuple[str, ...] = Field(
        (), description="environment variables with which it answers nowhere, elsewhere or not to everybody"
    )
    protocol: Protocol = Field(Protocol.HTTP, description="http or grpc")
    live_path: str | None = Field(
        None, description="HTTP path of the liveness check; `{model}` is the model's name"
    )
    ready_path: str | None = Field(
        None, description="HTTP path of the readiness check; `{model}` is the model's name"
    )
    grpc_service: str | None = Field(None, description="service name asked over gRPC; absent: the server")
    port: int = Field(0, ge=0, le=65535, description="the port on which it answers unless told otherwise")
    port_flags: tuple[str, ...] = Field((), description="flags that set the port, such as `--port`")
    port_env: tuple[str, ...] = Field(
        (), description="environment variables that set the port; `host:port` and URLs are understood"
    )
    image_port: bool = Field(
        False,
        description="whether `port` holds in its own images alone: elsewhere it must be told or declared",
    )
    own_port: bool = Field(
        False, description="whether health is answered beside the served ports, on `port` alone"
    )
    config_flags: tuple[str, ...] = Field(
        (), description="flags that name a file which may set the port: then only declared ports count"
    )
    config_env: tuple[str, ...] = Field(
        (), description="environment variables that name a file which may set the port, or hold its text"
    )
    host_flags: tuple[str, ...] = Field((), description="flags that set the address it listens on")
    host_env: tuple[str, ...] = Field((), description="environment variables that set the address")
    loopback: bool = Field(
        False, description="whether it listens on loopback alone unless told otherwise: no probe reaches it"
    )
    image_listens: bool = Field(False, description="whether its own images make it listen on all addresses")
    tls_flags: tuple[str, ...] = Field((), description="flags that make the port speak TLS")
    tls_env: tuple[str, ...] = Field((), description="environment variables that make the port speak TLS")
    model_flags: tuple[str, ...] = Field((), description="flags that name the model for `{model}`")
    model_env: tuple[str, ...] = Field((), description="environment variables that name the model")
    default_model: str | None = Field(None, description="the model's name where none is given")
    repository_api: str | None = Field(
        None, description="how the model puller loads models into it: v2, kserve, triton or tfserving"
    )
    expected_start: Duration | None = Field(
        None, description="seconds from the container's start until a usual model is served"
    )
    timeout: Duration | None = Field(
        None,
        ge=1,
        le=3600,
        description="seconds one check may take, where it takes longer than the settings allow",
    )
    source: str | None = Field(None, description="the documentation that says so")


_TRITON: Final = "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs"
_RAY_IMAGES: Final = ("rayproject/ray", "rayproject/ray-ml", "rayproject/ray-llm")
"""Ray's own images: a Ray installed without its `default` extra, as in vLLM's image, answers on no port."""
_UVICORN_TLS: Final = ("--ssl-keyfile", "--ssl-certfile")
_CLIENT_TLS: Final = ("--ssl-cert-reqs=2", "--ssl_cert_reqs=2")
"""Clients must show a certificate (2 is Python's ssl.CERT_REQUIRED), and the kubelet has none."""

PRESETS: Final[dict[str, Preset]] = {
    "triton-grpc": Preset(
        commands=("tritonserver --allow-http=false", "tritonserver --allow-http=0"),
        unless_flags=("--allow-grpc=false", "--allow-grpc=0", "--grpc-restricted-protocol"),
        protocol=Protocol.GRPC,
        port=8001,
        port_flags=("--grpc-port",),
        host_flags=("--grpc-address",),
        tls_flags=("--grpc-use-ssl", "--grpc-use-ssl-mutual"),
        expected_start=180,
        source=f"{_TRITON}/customization_guide/inference_protocols.html",
    ),
    "triton": Preset(
        images=("tritonserver", "kserve-tritonserver"),
        excluded_images=("tritonserver:*sdk",),
        commands=("tritonserver",),
        port_names=("http-triton", "triton-http"),
        unless_flags=("--allow-http=false", "--allow-http=0", "--http-restricted-api"),
        live_path="/v2/health/live",
        ready_path="/v2/health/ready",
        port=8000,
        port_flags=("--http-port",),
        host_flags=("--http-address",),
        expected_start=180,
        repository_api="triton",
        source=f"{_TRITON}/protocol/README.html",
    ),
    "triton-launcher": Preset(
        images=("tritonserver",),
        commands=("launch_triton_server.py",),
        commands_need_image=True,
        live_path="/v2/health/live",
        ready_path="/v2/health/ready",
        port=8000,
        port_flags=("--http_port",),
        expected_start=600,
        source="https://github.com/triton-inference-server/tensorrtllm_backend/tree/main/scripts",
    ),
    "mlserver": Preset(
        images=("seldonio/mlserver", "seldonio/mlserver-slim"),
        commands=("mlserver start",),
        live_path="/v2/health/live",
        ready_path="/v2/health/ready",
        port=8080,
        port_env=("MLSERVER_HTTP_PORT",),
        host_env=("MLSERVER_HOST",),
        expected_start=120,
        repository_api="v2",
        source="https://docs.seldon.ai/mlserver/reference/settings",
    ),
    "kserve": Preset(
        images=(
            "kserve/sklearnserver",
            "kserve/xgbserver",
            "kserve/lgbserver",
            "kserve/pmmlserver",
            "kserve/paddleserver",
            "kserve/predictiveserver",
            "kserve/autogluonserver",
            "kserve/huggingfaceserver",
        ),
        commands=(
            "sklearnserver",
            "xgbserver",
            "lgbserver",
            "pmmlserver",
            "paddleserver",
            "autogluonserver",
            "huggingfaceserver",
        ),
        live_path="/v2/health/live",
        ready_path="/v2/health/ready",
        port=8080,
        port_flags=("--http_port",),
        expected_start=300,
        repository_api="kserve",
        source="https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol",
    ),
    "tensorflow-model-server": Preset(
        commands=("tensorflow_model_server --rest_api_port",),
        unless_flags=("--rest_api_port=0", "--model_config_file", "--ssl_config_file"),
        live_path="/v1/models/{model}",
        ready_path="/v1/models/{model}",
        port=8501,
        port_flags=("--rest_api_port",),
        model_flags=("--model_name",),
        default_model="default",
        expected_start=120,
        repository_api="tfserving",
        source="https://www.tensorflow.org/tfx/serving/api_rest#model_status_api",
    ),
    "tensorflow-serving": Preset(
        images=("tensorflow/serving",),
        commands=("tensorflow_model_server --rest_api_port",),
        unless_flags=("--rest_api_port=0", "--model_config_file", "--ssl_config_file"),
        live_path="/v1/models/{model}",
        ready_path="/v1/models/{model}",
        port=8501,
        port_flags=("--rest_api_port",),
        model_flags=("--model_name",),
        model_env=("MODEL_NAME",),
        default_model="model",
        expected_start=120,
        repository_api="tfserving",
        source="https://www.tensorflow.org/tfx/serving/docker",
    ),
    "torchserve": Preset(
        images=("pytorch/torchserve", "pytorch/torchserve-nightly"),
        excluded_images=("torchserve-kfs", "torchserve-kfs-nightly", "kserve-torchserve"),
        commands=("torchserve --disable-token-auth",),
        live_path="/ping",
        ready_path="/ping",
        port=8080,
        config_flags=("--ts-config",),
        config_env=("TS_CONFIG_FILE",),
        loopback=True,
        image_listens=True,
        expected_start=180,
        source="https://pytorch.org/serve/inference_api.html#health-check-api",
    ),
    "vllm": Preset(
        images=("vllm-openai", "vllm-openai-rocm", "vllm-cpu-release-repo"),
        commands=("vllm serve", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"),
        unless_flags=("--headless", "--uds", "--grpc", *_CLIENT_TLS),
        live_path="/health",
        ready_path="/health",
        port=8000,
        port_flags=("--port",),
        config_flags=("--config",),
        host_flags=("--host",),
        tls_flags=(*_UVICORN_TLS, "--ssl_keyfile", "--ssl_certfile"),
        expected_start=600,
        source="https://docs.vllm.ai/en/latest/deployment/k8s.html",
    ),
    "sglang": Preset(
        commands=("sglang.launch_server", "sglang serve"),
        unless_flags=("--grpc-mode", "--smg-grpc-mode", "--encoder-only"),
        live_path="/health",
        ready_path="/health",
        port=30000,
        port_flags=("--port",),
        config_flags=("--config",),
        host_flags=("--host",),
        loopback=True,
        tls_flags=_UVICORN_TLS,
        expected_start=600,
        timeout=20,  # /health generates a token and waits up to 20 s for it
        source="https://docs.sglang.ai/advanced_features/server_arguments.html",
    ),
    "tgi": Preset(
        images=("huggingface/text-generation-inference",),
        excluded_images=("text-generation-inference:*trtllm", "text-generation-inference:*llamacpp"),
        commands=("text-generation-launcher",),
        live_path="/health",
        ready_path="/health",
        port=80,
        image_port=True,
        port_flags=("--port", "-p"),
        port_env=("PORT",),
        host_flags=("--hostname",),
        expected_start=600,
        source="https://huggingface.co/docs/text-generation-inference/reference/launcher",
    ),
    "tei": Preset(
        images=("huggingface/text-embeddings-inference",),
        excluded_images=("text-embeddings-inference:*grpc",),
        commands=("text-embeddings-router",),
        live_path="/health",
        ready_path="/health",
        port=80,
        image_port=True,
        port_flags=("--port", "-p"),
        port_env=("PORT",),
        host_flags=("--hostname",),
        expected_start=180,
        source="https://huggingface.co/docs/text-embeddings-inference/cli_arguments",
    ),
    "bentoml": Preset(
        commands=("bentoml serve", "bentoml start-http-server"),
        unless_flags=("--development", *_CLIENT_TLS),
        live_path="/livez",
        ready_path="/readyz",
        port=3000,
        port_flags=("--port", "-p"),
        port_env=("BENTOML_PORT",),
        config_env=("BENTOML_CONFIG", "BENTOML_CONFIG_OPTIONS"),
        host_flags=("--host",),
        host_env=("BENTOML_HOST",),
        tls_flags=_UVICORN_TLS,
        expected_start=180,
        source="https://docs.bentoml.com/en/latest/build-with-bentoml/observability/monitoring-and-data-collection.html",
    ),
    "ray-serve": Preset(
        commands=("serve run", "serve start"),
        live_path="/-/healthz",
        ready_path="/-/healthz",
        port=8000,
        port_flags=("--http-port", "--port", "-p"),
        host_flags=("--http-host", "--host", "-h"),
        loopback=True,
        expected_start=300,
        source="https://docs.ray.io/en/latest/serve/production-guide/kubernetes.html",
    ),
    "ray-head": Preset(
        images=_RAY_IMAGES,
        commands=("ray start --head",),
        commands_need_image=True,
        live_path="/api/local_raylet_healthz",
        ready_path="/api/local_raylet_healthz",
        port=52365,
        port_flags=("--dashboard-agent-listen-port",),
        own_port=True,
        expected_start=120,
        source="https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html",
    ),
    "ray-worker": Preset(
        images=_RAY_IMAGES,
        commands=("ray start",),
        commands_need_image=True,
        live_path="/api/local_raylet_healthz",
        ready_path="/api/local_raylet_healthz",
        port=52365,
        port_flags=("--dashboard-agent-listen-port",),
        own_port=True,
        expected_start=120,
        source="https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html",
    ),
    "mlflow": Preset(
        commands=("mlflow server", "mlflow ui", "mlflow models serve"),
        unless_flags=("--static-prefix", "--app-name"),
        unless_env=("MLFLOW_STATIC_PREFIX",),
        live_path="/health",
        ready_path="/health",
        port=5000,
        port_flags=("--port", "-p"),
        port_env=("MLFLOW_PORT",),
        host_flags=("--host", "-h"),
        host_env=("MLFLOW_HOST",),
        loopback=True,
        tls_flags=("--keyfile", "--certfile", *_UVICORN_TLS),  # inside --gunicorn-opts and --uvicorn-opts
        expected_start=120,
        source="https://mlflow.org/docs/latest/cli.html#mlflow-server",
    ),
    "seldon": Preset(
        images=("seldonio/sklearnserver", "seldonio/xgboostserver", "seldonio/mlflowserver"),
        commands=("seldon-core-microservice",),
        live_path="/health/ping",
        ready_path="/health/ping",  # /health/status asks the model itself: heavy, and not always there
        port=9000,
        port_flags=("--http-port",),
        port_env=("PREDICTIVE_UNIT_HTTP_SERVICE_PORT",),
        expected_start=120,
        source="https://github.com/SeldonIO/seldon-core/blob/v1.18.2/python/seldon_core/wrapper.py",
    ),
    "llama.cpp": Preset(
        images=("llama.cpp:server*",),
        commands=("llama-server",),
        unless_flags=("--api-prefix",),
        unless_env=("LLAMA_ARG_API_PREFIX",),
        live_path="/health",
        ready_path="/health",
        port=8080,
        port_flags=("--port",),
        port_env=("LLAMA_ARG_PORT",),
        host_flags=("--host",),
        host_env=("LLAMA_ARG_HOST",),
        loopback=True,
        image_listens=True,
        tls_flags=("--ssl-key-file",),
        tls_env=("LLAMA_ARG_SSL_KEY_FILE",),
        expected_start=300,
        source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
    ),
    "ollama": Preset(
        images=("ollama/ollama",),
        commands=("ollama serve",),
        live_path="/",
        ready_path="/",
        port=11434,
        port_env=("OLLAMA_HOST",),
        host_env=("OLLAMA_HOST",),
        loopback=True,
        image_listens=True,
        expected_start=60,
        source="https://docs.ollama.com/faq",
    ),
}
"""The servers known out of the box, by name; where two would match, the first one does."""
