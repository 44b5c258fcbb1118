import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.facts import Facts
from policies.kube.images import image_matches, repository
from policies.kube.json import Json
from policies.kube.pods import containers, port_number, tcp_ports
from policies.probes.advice import advise
from policies.probes.serving import recognised, serving_containers
from policies.probes.settings import StandardProbes
from policies.probes.standard_probes import mutate
from policies.probes.start import expected_start
from tests.manifests import manifest


def pod(*specs: Json, init: tuple[Json, ...] = (), annotations: Json | None = None, **spec: object) -> Json:
    return manifest(
        "Pod",
        "p",
        {"containers": list(specs), "initContainers": list(init), **spec},
        annotations=annotations or {},
    )


def serving(of: Json) -> list[str]:
    return [container.name for container in serving_containers(of, Facts())]


def server(**spec: object) -> str | None:
    [container] = containers(pod({"name": "m", **spec}))
    found = recognised(container, Facts())
    return found.name if found else None


PORT = [{"containerPort": 8000}]


@pytest.mark.parametrize(
    "spec",
    [
        {"ports": PORT},
        {"readinessProbe": {"exec": {"command": ["true"]}}},
        {"image": "vllm/vllm-openai"},
        {"command": ["python3", "-m", "mlserver", "start", "."]},
    ],
    ids=["port", "readiness", "image", "command"],
)
def test_a_container_serves(spec: Json) -> None:
    assert serving(pod({"name": "m", **spec})) == ["m"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"ports": [{"containerPort": 8125, "protocol": "UDP"}]},
        {"image": "vllm/vllm-openai", "command": ["python3", "bench.py"]},
        {"image": "istio/proxyv2", "ports": PORT},
        {"name": "cloud-sql-proxy", "ports": PORT},
    ],
    ids=["nothing", "udp", "other program", "mesh image", "proxy name"],
)
def test_a_container_does_not_serve(spec: Json) -> None:
    assert serving(pod({"name": "m", **spec})) == []


def test_pods_that_complete_serve_nothing() -> None:
    container = {"name": "m", "ports": PORT}
    assert serving(pod(container, restartPolicy="Never")) == []
    assert serving(pod(container, restartPolicy="Always")) == ["m"]


def test_a_native_sidecar_serves_only_with_a_port() -> None:
    ready = {"readinessProbe": {"tcpSocket": {"port": 1}}}
    sidecar = {"name": "s", "restartPolicy": "Always"}
    assert serving(pod({"name": "m"}, init=({**sidecar, **ready},))) == []
    assert serving(pod({"name": "m"}, init=({**sidecar, "ports": PORT},))) == ["s"]
    assert serving(pod({"name": "m"}, init=({"name": "i", "ports": PORT},))) == []


def test_an_annotation_names_a_server_that_declares_nothing() -> None:
    said = {"mlchassis.dev/health-path": "/h"}
    assert serving(pod({"name": "m"}, annotations=said)) == ["m"]
    assert serving(pod({"name": "m"}, {"name": "n"}, annotations=said)) == []
    assert serving(pod({"name": "m"}, {"name": "n"}, annotations={"mlchassis.dev/live-path.n": "/h"})) == [
        "n"
    ]


@pytest.mark.parametrize(
    ("image", "path"),
    [
        ("nvcr.io/nvidia/tritonserver:25.06-py3", "nvidia/tritonserver"),
        ("localhost:5000/a/b:1", "a/b"),
        ("localhost/b", "b"),
        ("vllm/vllm-openai@sha256:0123", "vllm/vllm-openai"),
        ("reg.example.com:443/ray:1@sha256:0123", "ray"),
        ("ollama", "ollama"),
        ("", ""),
    ],
)
def test_repository(image: str, path: str) -> None:
    assert repository(image) == path


@pytest.mark.parametrize(
    ("image", "glob", "matches"),
    [
        ("acme/ray:2", "ray", True),
        ("acme/my-ray-tools", "ray", False),
        ("mirror.corp/hub/pytorch/torchserve:1", "pytorch/torchserve", True),
        ("my-pytorch/torchserve", "pytorch/torchserve", False),
        ("pytorch/torchserve-kfs", "pytorch/torchserve", False),
        ("bitnami/redis-exporter:1", "*-exporter", True),
        ("ggml/llama.cpp:server-cuda", "llama.cpp:server*", True),
        ("ggml/llama.cpp:full", "llama.cpp:server*", False),
        ("a/llamaxcpp:server", "llama.cpp:server*", False),
    ],
)
def test_image_matches(image: str, glob: str, matches: bool) -> None:
    assert image_matches(image, (glob,)) is matches


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["vllm", "serve", "m"], "vllm"),
        (["/usr/bin/env", "PYTHONUNBUFFERED=1", "python3.11", "-u", "-m", "sglang.launch_server"], "sglang"),
        (["sh", "-c", "mkdir -p /tmp/x; exec tritonserver --model-repository=/m | tee /log"], "triton"),
        (["/opt/nvidia/nvidia_entrypoint.sh", "/opt/tritonserver/bin/tritonserver"], "triton"),
        (["uv", "run", "--frozen", "bentoml", "serve", "."], "bentoml"),
        (["ray", "start", "--address=head:6379"], "ray-node"),
        (["ray", "start", "--head"], None),
        (["bash", "-eu", "/work/multi-node-serving.sh", "worker"], "ray-node"),
        (["torchrun", "--nnodes=2", "--node-rank=1", "-m", "sglang.launch_server"], "torchrun-node"),
        (["torchrun", "--nproc-per-node=2", "-m", "sglang.launch_server"], "sglang"),
        (["./entrypoint.sh", "--port", "80"], None),
        (["ray", "job", "submit"], None),
        (["python", "client.py", "--server", "tritonserver"], None),
        (["echo", "vllm serve m"], None),
        (["sh", "-c", "until curl http://vllm:8000/health; do sleep 1; done"], None),
    ],
)
def test_recognised_by_command(command: list[str], name: str | None) -> None:
    assert server(image="registry.example.com/own:1", command=command) == name


def test_ray_is_recognised_in_its_own_images() -> None:
    start = ["bash", "-lc", "--", "ulimit -n 65536; ray start --head --block"]
    assert server(image="rayproject/ray:2.47.1-gpu", command=start) == "ray-head"
    assert server(image="rayproject/ray-llm", command=["ray", "start", "--address=h:6379"]) == "ray-worker"
    assert server(image="vllm/vllm-openai", command=start) is None
    assert server(image="rayproject/ray:2.47.1", command=["python", "train.py"]) is None


def test_recognised_by_port_name() -> None:
    assert server(image="own", ports=[{"name": "http-triton", "containerPort": 8000}]) == "triton"
    assert server(image="own", ports=[{"name": "http", "containerPort": 8000}]) is None


def test_the_same_container_is_recognised_alike_under_changed_settings() -> None:
    [container] = containers(pod({"name": "m", "image": "ollama/ollama"}))
    off = StandardProbes.model_validate_json('{"presets": {"ollama": {"enabled": false}}}')
    assert recognised(container, Facts()) is not None
    assert off.recogniser.server(container) is None


def test_port_number() -> None:
    spec = {"ports": [{"name": "api", "containerPort": 8000}, {"name": "80", "containerPort": 81}]}
    assert [port_number(spec, port) for port in ("api", "8000", 8000, "80")] == [8000, 8000, 8000, 81]
    assert [port_number(spec, port) for port in ("web", "0", 0, 65536, True, None, "99999999", "-1")] == [
        None
    ] * 8


def test_tcp_ports_of_odd_shapes() -> None:
    assert tcp_ports({"ports": [{"containerPort": "8000"}, {"containerPort": True}, None, {}]}) == {}
    assert tcp_ports({"ports": {"containerPort": 1}}) == {}


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 70000)
    | st.sampled_from(["", "http", "vllm", "$(A", "/x", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containerPort", "exec", "httpGet", "host", "value"]), inner
        )
    ),
    max_leaves=6,
)
FIELDS = [
    "image",
    "command",
    "args",
    "env",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "name",
]


@given(
    spec=st.dictionaries(st.sampled_from(FIELDS), json),
    annotations=st.dictionaries(
        st.sampled_from([f"mlchassis.dev/{name}" for name in ("health-path", "health-port", "model-size")]),
        json,
    ),
)
def test_no_shape_of_a_container_raises(spec: Json, annotations: Json) -> None:
    odd = pod({"image": "vllm/vllm-openai", **spec}, annotations=annotations)
    settings = StandardProbes()
    after = mutate(odd, settings, Facts())
    list(advise(after, settings, Facts()))
    assert mutate(after, settings, Facts()) is after


def test_the_models_size_does_not_concern_a_proxy_next_to_them() -> None:
    beside = pod(
        {"name": "model", "image": "vllm/vllm-openai"},
        {"name": "istio-proxy", "ports": PORT},
        {"name": "sync", "command": ["/usr/bin/chassis-puller"], "ports": PORT},
        annotations={"mlchassis.dev/model-size": "140Gi"},
    )
    assert [expected_start(beside, container, Facts()) for container in containers(beside)] == [
        60 + 140 * 1024 // 64,
        None,
        None,
    ]
    assert serving(beside) == ["model"]
