"""Unknown fields are found as `kubectl --validate=strict` finds them; the types are those of the client."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes.client
import pytest

import webhook.manifests
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json
from tests.kubernetes_client import created
from tests.manifests import manifest
from webhook.admission.coverage import removed_version
from webhook.manifests.api_fields import field_problems
from webhook.manifests.files import read

FILE = Path(webhook.manifests.__file__).with_name("api_fields.json")
ROOT = Path(__file__).parents[3]
WORKLOADS = workloads_by_kind()


def _type(written: str) -> str:
    if listed := re.fullmatch(r"[Ll]ist\[(.+)\]", written):
        return f"[{_type(listed[1])}]"
    if mapped := re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", written):
        return f"{{{_type(mapped[1])}}}"
    return written


def _kinds() -> dict[str, str]:
    """The type of each stable kind."""
    found = {}
    for path, returned in created():
        version = re.match(r"/apis?/((?:[\w.-]+/)?v\d+)/", path)
        kind = re.fullmatch(r"(?:[A-Z][A-Za-z]*?)??V\d+([A-Z]\w+)", returned)
        if version and kind:
            found[f"{version[1]} {kind[1]}"] = returned
    return dict(sorted(found.items()))


def _types(kinds: dict[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    todo = list(kinds.values())
    while todo:
        name = todo.pop()
        model: Any = getattr(kubernetes.client, name, None)
        if model is not None and name not in found:
            fields = model.attribute_map.items()
            found[name] = {field: _type(model.openapi_types[attribute]) for attribute, field in fields}
            todo += [each.strip("[]{}") for each in found[name].values()]
    return dict(sorted(found.items()))


def test_the_types_are_those_of_the_client(request: pytest.FixtureRequest) -> None:
    kinds = _kinds()
    version = f"1.{kubernetes.client.__version__.partition('.')[0]}"
    tables: Json = {"kubernetes": version, "kinds": kinds, "types": _types(kinds)}
    if request.config.getoption("--update-golden"):
        lines = [f' "kubernetes": {json.dumps(version)}']
        for table in ("kinds", "types"):
            rows = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in tables[table].items()
            )
            lines.append(f' "{table}": {{\n{rows}\n }}')
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(FILE.read_text()) == tables


POD: Json = {"containers": [{"name": "api", "image": "example.org/api:1"}]}


def problems(obj: Json) -> list[tuple[str, str]]:
    return [(each.path, each.problem) for each in field_problems(obj, WORKLOADS)]


WORKER: Json = {"template": {"spec": {"container": []}}}


@pytest.mark.parametrize(
    ("kind", "spec", "path", "said"),
    [
        ("Deployment", WORKER, "spec.template.spec.container", "did you mean containers?"),
        ("Deployment", {"replica": 2}, "spec.replica", "did you mean replicas?"),
        ("Deployment", {"replicas": "two"}, "spec.replicas", "a whole number is expected, not text"),
        ("Deployment", {"replicas": 1e23}, "spec.replicas", "a whole number is expected, not a number"),
        ("Pod", {"containers": {"name": "a"}}, "spec.containers", "a list is expected, not a map"),
        ("Pod", {"hostNetwork": "yes"}, "spec.hostNetwork", "true or false is expected, not text"),
        ("Service", {"selectors": {}}, "spec.selectors", "did you mean selector?"),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Worker": WORKER}},
            "spec.pytorchReplicaSpecs.Worker.template.spec.container",
            "did you mean containers?",
        ),
        (
            "InferenceService",
            {"predictor": {"minReplicas": 1, "containers": [{"name": "a", "livenessprobe": {}}]}},
            "spec.predictor.containers[0].livenessprobe",
            "did you mean livenessProbe?",
        ),
    ],
)
def test_a_problem(kind: str, spec: Json, path: str, said: str) -> None:
    [(found, problem)] = problems(manifest(kind, "x", spec))
    assert found == path
    assert said in problem


@pytest.mark.parametrize(
    "obj",
    [
        manifest("Deployment", "x", {"replicas": None, "template": {"spec": POD}}),
        manifest("Pod", "x", {**POD, "$setElementOrder/containers": [{"name": "api"}]}),
        manifest("ConfigMap", "x") | {"data": {"anything": "1"}},
        manifest("Service", "x", {"ports": [{"port": 80, "targetPort": "http"}]}),
        manifest("InferenceService", "x", {"predictor": {**POD, "minReplicas": 1}}),
        manifest("Secret", "x") | {"stringData": {"a": "ENC[AES256_GCM,data:x]"}, "sops": {"mac": "ENC[x]"}},
        {"apiVersion": "example.org/v1", "kind": "Odd", "spec": {"x": 1}},
    ],
)
def test_no_problem(obj: Json) -> None:
    assert problems(obj) == []


@pytest.mark.parametrize(
    ("api_version", "kind", "use"),
    [
        ("batch/v1beta1", "CronJob", "batch/v1"),
        ("apps/v1beta2", "Deployment", "apps/v1"),
        ("policy/v1beta1", "PodDisruptionBudget", "policy/v1"),
        ("autoscaling/v2beta2", "HorizontalPodAutoscaler", "autoscaling/v2"),
        ("networking.k8s.io/v1beta1", "Ingress", "networking.k8s.io/v1"),
    ],
)
def test_a_removed_version_is_a_problem(api_version: str, kind: str, use: str) -> None:
    (problem,) = field_problems({"apiVersion": api_version, "kind": kind, "spec": {}}, WORKLOADS)
    assert problem.path == "apiVersion"
    assert problem.problem.endswith(f"; use {use}")


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("networking.k8s.io/v1beta1", "IPAddress"), ("storage.k8s.io/v1beta1", "VolumeAttributesClass")],
)
def test_another_kind_of_a_removed_version_is_none(api_version: str, kind: str) -> None:
    assert field_problems({"apiVersion": api_version, "kind": kind}, WORKLOADS) == []


def test_a_patch_of_metadata_may_have_a_removed_version() -> None:
    """As those of older scaffolds of operators."""
    patch = {"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition"}
    assert field_problems({**patch, "metadata": {"name": "x"}}, WORKLOADS) == []
    assert field_problems({**patch, "spec": {}}, WORKLOADS)


def test_no_served_version_counts_as_removed() -> None:
    served = [kind.split(" ") for kind in json.loads(FILE.read_text("utf-8"))["kinds"]]
    assert [each for each in served if removed_version(*each)] == []


def test_there_is_an_end_to_problems() -> None:
    obj = manifest("Deployment", "x", {f"field{number}": number for number in range(100_000)})
    assert len(field_problems(obj, WORKLOADS)) == 20


@pytest.mark.parametrize("folder", ["examples", "manifests", "tests/corpus/sound"])
def test_no_field_of_ours_is_unknown(folder: str) -> None:
    found = {document.place: problems(document.obj) for document in read([str(ROOT / folder)])}
    assert {place: each for place, each in found.items() if each} == {}
