"""`chassis graph`: its formats and what hostile names do to them."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from policies.core.registry import rules
from tests.manifests import manifest
from tests.webhook.cli.scanned import DEPLOYMENTS, SERVED, Chassis, InCluster, deployment, serialized, serve
from tests.webhook.kube.apiserver import FakeApiServer

MORE = """
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: web
          image: registry.example/web:1
          env: [{name: MODEL_URL, value: "http://model:8080/v1"}]
          livenessProbe: {exec: {command: [curl, -f, "http://model:8080/health"]}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}}
"""
HOSTILE = "\n</script><script>alert(1)</script>\u2028\x1b[31m\"];x-->`'\\"


def test_an_object_that_cannot_be_read_is_named(chassis: Chassis, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: odd, labels: {a: 3}}\nspec: {containers: [{name: a}]}\n"
        + MORE
    )
    answer = chassis("graph", wrong)
    assert answer.status == 2
    assert "Pod odd: " in answer.err
    assert "metadata.labels[a]: expected str, got int" in answer.err
    assert "web" in answer.out


@pytest.fixture
def graph(chassis: Chassis) -> Chassis:
    return partial(chassis, "graph")


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    """Two Deployments that wait for each other, and a third that is restarted without one of them."""
    file = tmp_path / "set.yaml"
    file.write_text(rules()["startup-wait-cycle"].document.bad + MORE)
    return str(file)


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    labels = {"app": HOSTILE}
    wait = {"name": HOSTILE, "command": ["sh", "-c", f"until nc -z {HOSTILE} 80; do sleep 2; done"]}
    env = [{"name": "A_URL", "value": f"http://{HOSTILE}/"}, {"name": "B_HOST", "value": HOSTILE}]
    spec = {"initContainers": [wait], "containers": [{"name": HOSTILE, "image": "x", "env": env}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    obj = manifest("Deployment", HOSTILE, {"template": template}, namespace=HOSTILE)
    service = manifest("Service", HOSTILE, {"selector": labels}, namespace=HOSTILE)
    file = tmp_path / "hostile.json"
    file.write_text(serialized(obj, service))
    return str(file)


def test_text_names_each_dependency_with_its_place(graph: Chassis, manifests: str) -> None:
    status, text, _ = graph(manifests)
    assert status == 1, "there is a cycle"
    assert (
        "Deployment default/gateway\n"
        "  waits for Service default/model  (init container wait-for-model, "
        "spec.template.spec.initContainers[0].command)\n"
    ) in text
    assert "PodDisruptionBudget default/web\n  limits disruptions of Deployment default/web" in text
    cycle = "Deployment default/gateway -> Deployment default/model -> Deployment default/gateway"
    assert f"cycle (certain): {cycle}\n" in text
    assert text.endswith("3 workloads, 7 dependencies, 1 cycle\n")


def test_the_failure_of_one_object(graph: Chassis, manifests: str) -> None:
    text = graph(manifests, "--from", "Deployment/model").out
    assert (
        "if Deployment default/model fails for longer than probes tolerate:\n"
        "  restarted: 3 pods of 1 workload: Deployment default/web after 30 s\n"
    ) in text
    text = graph(manifests, "--from", "Deployment/web").out
    assert "no probe of another workload fails" in text
    assert "PodDisruptionBudget default/web\n" in text, "objects that depend on it are shown"
    assert graph(manifests, "--from", "default/web").out == text
    for name, hint in (
        ("nobody", "\n"),
        ("modle", "; did you mean model?\n"),
        ("default/wbe", "; did you mean default/web?\n"),
    ):
        answer = graph(manifests, "--from", name)
        assert answer.status == 2
        assert answer.err.endswith(f"there is no object named {name}{hint}")


def test_a_set_without_a_cycle_exits_with_0(tmp_path: Path, graph: Chassis) -> None:
    (tmp_path / "good.yaml").write_text(rules()["startup-wait-cycle"].document.good)
    status, text, _ = graph(tmp_path)
    assert status == 0
    assert "0 cycles" in text


def test_from_shows_only_the_cycles_of_the_object(tmp_path: Path, graph: Chassis, manifests: str) -> None:
    aside = tmp_path / "aside.yaml"
    aside.write_text(MORE.replace("name: web", "name: aside").replace("app: web", "app: aside"))
    aside.write_text(aside.read_text().replace("http://model", "http://elsewhere"))
    status, text, _ = graph(tmp_path, "--from", "Deployment/aside")
    assert status == 0, "the cycle of gateway and model is not connected to it"
    assert text.endswith("1 workload, 3 dependencies, 0 cycles\n")
    assert "cycle (" not in text
    assert graph(tmp_path, "--from", "Deployment/aside", "-o", "json").json["cycles"] == []
    assert graph(tmp_path, "--from", "Service/model").status == 1


def test_a_running_pod_has_no_edge_to_the_config_map_of_every_namespace(
    tmp_path: Path, graph: Chassis
) -> None:
    sources = [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]
    own = {"name": "own", "projected": {"sources": [{"configMap": {"name": "settings"}}]}}
    volumes = [{"name": "kube-api-access-x7k2p", "projected": {"sources": sources}}, own]
    pod = manifest("Pod", "alone", {"containers": [{"name": "x", "image": "x"}], "volumes": volumes})
    (tmp_path / "pod.json").write_text(serialized(pod))
    edges = graph(tmp_path, "-o", "json").json["edges"]
    assert [edge["target"] for edge in edges] == ["default/ConfigMap/settings"]


CHAIN = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: LABEL}}
    spec:
      containers:
        - name: NAME
          image: registry.example/NAME:1
          PROBE: {periodSeconds: 5, failureThreshold: 4, exec: {command: [curl, -f, "http://ASKED/health"]}}
---
apiVersion: v1
kind: Service
metadata: {name: LABEL}
spec: {selector: {app: LABEL}, ports: [{port: 80}]}
---
"""


def chained(name: str, probe: str, asked: str, replicas: int = 1, label: str = "") -> str:
    """A Deployment behind a Service, with a probe that asks another one and tolerates 20 s."""
    parts = {"NAME": name, "PROBE": probe, "ASKED": asked, "REPLICAS": str(replicas), "LABEL": label or name}
    text = CHAIN
    for word, part in parts.items():
        text = text.replace(word, part)
    return text


def test_a_failure_spreads_through_probes_and_each_adds_its_time(tmp_path: Path, graph: Chassis) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(
        chained("store", "startupProbe", "nobody")
        + chained("model", "readinessProbe", "store", 2)
        + chained("gateway", "livenessProbe", "model", 3)
        + chained("shop", "livenessProbe", "gateway", 5)
        + chained("batch", "startupProbe", "store")
        + chained("spare", "startupProbe", "nobody", label="pair")
        + chained("other", "livenessProbe", "store", label="pair")
        + chained("buyer", "readinessProbe", "pair")
    )
    text = graph(str(file), "--from", "Deployment/store").out
    assert (
        "if Deployment default/store fails for longer than probes tolerate:\n"
        "  restarted: 9 pods of 3 workloads: Deployment default/other after 20 s, "
        "Deployment default/gateway after 40 s, Deployment default/shop after 60 s\n"
        "  not ready: 1 workload: Deployment default/model after 20 s\n"
    ) in text, "batch has started, and buyer asks a Service with another workload behind it"


def test_json_has_every_node_and_edge(graph: Chassis, manifests: str) -> None:
    found = graph(manifests, "-o", "json", "--from", "default/Service/model").json
    ids = {node["id"] for node in found["nodes"]}
    assert {edge["source"] for edge in found["edges"]} | {edge["target"] for edge in found["edges"]} <= ids
    members = ["default/Deployment/gateway", "default/Deployment/model"]
    assert found["cycles"] == [{"certainty": "certain", "members": members, "limitSeconds": None}]
    failure = {"of": "default/Service/model", "restarted": ["default/Deployment/web"], "podsRestarted": 3}
    failure |= {"notReady": [], "afterSeconds": {"default/Deployment/web": 30}}
    assert found["failures"] == [failure]


def test_the_rest_of_a_directory_is_drawn_if_a_file_cannot_be_read(
    tmp_path: Path, graph: Chassis, manifests: str
) -> None:
    (tmp_path / "template.yaml").write_text("{{ if .Values.ha }}\n")
    answer = graph(tmp_path, "-o", "json")
    assert answer.status == 2
    assert answer.json["edges"]
    assert "template.yaml" in answer.err


@pytest.mark.parametrize("form", ["text", "mermaid", "dot"])
def test_hostile_names_write_no_line_and_end_no_string(graph: Chassis, hostile: str, form: str) -> None:
    text = graph(hostile, "-o", form).out
    assert all(each == "\n" or each.isprintable() for each in text)
    for line in text.splitlines():
        if form == "mermaid" and line != "flowchart LR":
            assert re.fullmatch(r'  n\d+\["[^"`<>\\]*"\]|  n\d+ -- "[a-z ]+" --> n\d+', line), line
        if form == "dot" and "label" in line:
            assert re.fullmatch(
                r'  "(?:[^"\\]|\\.)*"(?: -> "(?:[^"\\]|\\.)*")? \[label="(?:[^"\\]|\\.)*"\];', line
            )


def test_json_of_hostile_names_is_read_back(graph: Chassis, hostile: str) -> None:
    found = graph(hostile, "-o", "json").json
    assert {"Deployment", "Service"} <= {node["kind"] for node in found["nodes"] if node["name"] == HOSTILE}


def test_values_that_are_no_hosts_are_not_called(tmp_path: Path, graph: Chassis) -> None:
    values = {
        "POSTGRESQL_LOG_HOSTNAME": "false",
        "MYSQL_ROOT_HOST": "%",
        "DMLC_NUM_SERVER": "2",
        "REDIS_ADDRESS": "$EXT_REDIS",
        "TRACKING_URI": "{{inputs.parameters.uri}}",
        "ALLOWED_URL": "http://localhost:5001,http://127.0.0.1:5001",
        "PLAIN_SERVER": "PLAINTEXT_HOST",
        "CACHE_HOST": "cache",
        "STORE_URL": "http://store.data.svc:9000",
        "NODE_ADDRESS": "192.168.2.50",
    }
    env = [{"name": name, "value": value} for name, value in values.items()]
    container = {"name": "app", "image": "registry.example/app:1", "env": env}
    text = json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", **deployment("app", container)})
    (tmp_path / "app.json").write_text(text)
    edges = graph(tmp_path, "-o", "json").json["edges"]
    assert [edge["target"] for edge in edges] == [
        "Host/192.168.2.50",
        "Host/cache",
        "Host/store.data.svc",
    ]


async def test_a_cluster_is_read(fake: FakeApiServer, in_cluster: InCluster) -> None:
    serve(fake, {**SERVED, "/api/v1": {**SERVED["/api/v1"], "Service": "services"}})
    await fake.put(DEPLOYMENTS, deployment("x"))
    answer = await in_cluster("graph", "-n", "ml", "-o", "json")
    assert answer.status == 0
    assert [(edge["source"], edge["relation"], edge["target"]) for edge in answer.json["edges"]] == [
        ("ml/Deployment/x", "is restarted without", "Host/payments")
    ]
