"""Which containers serve, and on which model server. The golden cases have one for each preset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.pydantic_models import validated
from policies.kube.images import image_matches, repository
from policies.kube.json import Json
from policies.kube.objects.pods import ContainerPort, ContainerSpec
from policies.kube.pods import containers, port_number, tcp_ports
from policies.probes.advice import advise
from policies.probes.serving import recognised, serving_containers
from policies.probes.standard_probes import mutate
from policies.probes.standard_probes_settings import StandardProbes
from tests.manifests import manifest
from tests.tables import table
from webhook.admission.bounds import allowance, bounded


def pod(*specs: Json, init: tuple[Json, ...] = (), annotations: Json | None = None, **spec: object) -> Json:
    mains = [{"name": "m", **each} for each in specs]
    sidecars = [{"name": "s", **each} for each in init]
    inner = {"containers": mains, "initContainers": sidecars, **spec}
    return manifest("Pod", "p", inner, annotations=annotations or {})


PORT: Json = {"ports": [{"containerPort": 8000}]}
READY: Json = {"readinessProbe": {"exec": {"command": ["true"]}}}
NATIVE: Json = {"restartPolicy": "Always"}
HEALTH = {"mlchassis.dev/health-path": "/h"}


@table(
    ("of", "names"),
    [
        pytest.param(pod(PORT), ["m"], id="port"),
        pytest.param(pod(READY), ["m"], id="readiness"),
        pytest.param(pod({"image": "vllm/vllm-openai"}), ["m"], id="image"),
        pytest.param(pod({"command": ["python3", "-m", "mlserver", "start", "."]}), ["m"], id="command"),
        pytest.param(pod({}), [], id="nothing"),
        pytest.param(pod({"ports": [{"containerPort": 8125, "protocol": "UDP"}]}), [], id="udp"),
        pytest.param(
            pod({"image": "vllm/vllm-openai", "command": ["python3", "b.py"]}), [], id="other program"
        ),
        pytest.param(pod({"image": "istio/proxyv2", **PORT}), [], id="proxy's image"),
        pytest.param(pod({"name": "cloud-sql-proxy", **PORT}), [], id="proxy's name"),
        pytest.param(pod({"command": ["/usr/bin/chassis-puller"], **PORT}), [], id="puller"),
        pytest.param(pod(PORT, restartPolicy="Never"), [], id="completes"),
        pytest.param(pod(PORT, restartPolicy="Always"), ["m"], id="is restarted"),
        pytest.param(pod({}, init=({**NATIVE, **READY},)), [], id="native sidecar"),
        pytest.param(pod({}, init=({**NATIVE, **PORT},)), ["s"], id="native sidecar with a port"),
        pytest.param(pod({}, init=(PORT,)), [], id="init container"),
        pytest.param(pod({}, annotations=HEALTH), ["m"], id="annotation"),
        pytest.param(pod({}, {"name": "n"}, annotations=HEALTH), [], id="ambiguous annotation"),
        pytest.param(
            pod({}, {"name": "n"}, annotations={"mlchassis.dev/live-path.n": "/h"}),
            ["n"],
            id="annotated name",
        ),
    ],
)
def test_serving_containers(of: Json, names: list[str]) -> None:
    assert [container.name for container in serving_containers(PodView(of), Facts())] == names


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


RAY_HEAD = ["bash", "-lc", "--", "ulimit -n 65536; ray start --head --block"]


@table(
    ("name", "image", "command"),
    [
        ("vllm", "own", ["vllm", "serve", "m"]),
        ("sglang", "own", ["/usr/bin/env", "A=1", "python3.11", "-u", "-m", "sglang.launch_server"]),
        ("triton", "own", ["sh", "-c", "mkdir -p /x; exec tritonserver --model-repository=/m | tee /log"]),
        ("triton", "own", ["/opt/nvidia/nvidia_entrypoint.sh", "/opt/tritonserver/bin/tritonserver"]),
        ("bentoml", "own", ["uv", "run", "--frozen", "bentoml", "serve", "."]),
        ("ray-node", "own", ["ray", "start", "--address=head:6379"]),
        (None, "own", ["ray", "start", "--head"]),
        ("ray-node", "own", ["bash", "-eu", "/work/multi-node-serving.sh", "worker"]),
        ("torchrun-node", "own", ["torchrun", "--nnodes=2", "--node-rank=1", "-m", "sglang.launch_server"]),
        ("sglang", "own", ["torchrun", "--nproc-per-node=2", "-m", "sglang.launch_server"]),
        (None, "own", ["./entrypoint.sh", "--port", "80"]),
        (None, "own", ["ray", "job", "submit"]),
        (None, "own", ["python", "client.py", "--server", "tritonserver"]),
        (None, "own", ["echo", "vllm serve m"]),
        (None, "own", ["sh", "-c", "until curl http://vllm:8000/health; do sleep 1; done"]),
        ("ray-head", "rayproject/ray:2.47.1-gpu", RAY_HEAD),
        ("ray-worker", "rayproject/ray-llm", ["ray", "start", "--address=h:6379"]),
        (None, "vllm/vllm-openai", RAY_HEAD),
        (None, "rayproject/ray:2.47.1", ["python", "train.py"]),
    ],
)
def test_recognised_by_command(name: str | None, image: str, command: list[str]) -> None:
    [container] = containers(pod({"image": image, "command": command}))
    server = recognised(container, Facts())
    assert (server.name if server else None) == name


@pytest.mark.parametrize(("port", "name"), [("http-triton", "triton"), ("http", None)])
def test_recognised_by_port_name(port: str, name: str | None) -> None:
    [container] = containers(pod({"image": "own", "ports": [{"name": port, "containerPort": 8000}]}))
    server = recognised(container, Facts())
    assert (server.name if server else None) == name


def test_other_settings_have_other_results() -> None:
    [container] = containers(pod({"image": "ollama/ollama"}))
    off = validated(StandardProbes, {"presets": {"ollama": {"enabled": False}}})
    assert recognised(container, Facts()) is not None
    assert off.recogniser.server(container) is None


def test_port_number() -> None:
    named = ContainerPort(name="api", container_port=8000), ContainerPort(name="80", container_port=81)
    spec = ContainerSpec(ports=named)
    assert [port_number(spec, port) for port in ("api", "8000", 8000, "80")] == [8000, 8000, 8000, 81]
    invalid = ("web", "0", 0, 65536, True, None, "99999999", "-1")
    assert {port_number(spec, port) for port in invalid} == {None}


def test_tcp_ports() -> None:
    ports = (
        ContainerPort(name="api", container_port=8000),
        ContainerPort(container_port=81),
        ContainerPort(container_port=53, protocol="UDP"),
        ContainerPort(name="none"),
    )
    assert tcp_ports(ContainerSpec(ports=ports)) == {8000: "api", 81: ""}


PLAIN = st.none() | st.booleans() | st.integers(-1, 70000)
TEXTS = st.sampled_from(["", "http", "vllm", "$(A", "/x", "1"])
KEYS = st.sampled_from(["name", "containerPort", "exec", "httpGet", "host", "value"])
VALUES = st.recursive(
    PLAIN | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=6,
)
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
FIELDS = st.sampled_from(["image", "command", "args", "env", "ports", "name", *PROBES])
ANNOTATIONS = st.sampled_from(
    [f"mlchassis.dev/{name}" for name in ("health-path", "health-port", "model-size")]
)


@given(spec=st.dictionaries(FIELDS, VALUES), annotations=st.dictionaries(ANNOTATIONS, VALUES))
def test_no_shape_of_a_container_raises(spec: Json, annotations: Json) -> None:
    odd = pod({"image": "vllm/vllm-openai", **spec}, annotations=annotations)
    if bounded(odd, {}, allowance()).left_out:
        return  # a value of a wrong type
    settings = StandardProbes()
    after = mutate(odd, settings, Facts())
    list(advise(after, settings, Facts()))
    assert mutate(after, settings, Facts()) is after
