"""Whole objects in other objects are judged by the rules of their kinds, and only warn."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from policies.core.facts import NoCluster
from policies.core.finding import Mode
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.core.workloads import known_workloads
from policies.kube.json import Json
from tests.manifests import manifest
from tests.policies.core.reviews import HAZARD, RULE, STRICT, coverage_of, decided
from webhook.admission.coverage import Reading
from webhook.admission.decision import Result
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.config.load import rules
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

LONG = "a" * 60
"""A name with more characters than KubeRay accepts."""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: example.org/train:1
          livenessProbe: {exec: {command: [curl, -f, http://payments.shop/health]}, timeoutSeconds: 5}
"""
MANIFEST = "spec.templates[0].resource.manifest"


def cluster(name: str = LONG) -> Json:
    head = {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.9.0"}]}
    return manifest("RayCluster", name, {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": head}}})


def wrapped(inner: Json, **metadata: Any) -> Json:
    return manifest("AppWrapper", "x", {"components": [{"template": inner}]}, **metadata)


def workflow(text: Any, action: str = "create", **metadata: Any) -> Json:
    template = {"name": "a", "resource": {"action": action, "manifest": text}}
    return manifest("Workflow", "x", {"entrypoint": "a", "templates": [template]}, **metadata)


def found(obj: Json, rule: str = RULE) -> list[Result]:
    return [each for each in decided(obj, config=STRICT).results if each.rule == rule]


def test_an_object_in_a_wrapper_is_judged_by_the_rules_of_its_kind() -> None:
    (each,) = found(wrapped(cluster()), "name-refused")
    assert each.finding.path == "spec.components[0].template.metadata.name"
    assert each.mode is Mode.WARN
    assert not found(wrapped(cluster("short")), "name-refused")


def test_what_the_wrapper_s_own_review_reports_is_reported_once() -> None:
    job = {"template": {"spec": {"containers": [{"name": "a", "image": "b", "livenessProbe": HAZARD}]}}}
    assert len(found(wrapped(manifest("Job", "x", job)))) == 1


def test_the_gang_of_a_wrapper_is_that_of_the_wrapper() -> None:
    job = cluster("short")
    container = {"name": "w", "image": "b", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    job["spec"]["workerGroupSpecs"] = [
        {"groupName": "w", "replicas": 4, "template": {"spec": {"containers": [container]}}}
    ]
    assert found(job, "gang-without-queue")
    assert not found(wrapped(job), "gang-without-queue")


def test_an_object_in_a_text_is_judged_at_the_field_of_the_text() -> None:
    obj = workflow(JOB)
    (each,) = found(obj)
    assert each.finding.path == MANIFEST
    assert each.finding.message.startswith("Job train, spec.template.spec.containers[0].livenessProbe")
    assert decided(obj, config=STRICT).allowed
    assert MANIFEST not in [unread.path for unread in coverage_of(obj).unread]


@pytest.mark.parametrize("action", ["get", "delete", "patch"])
def test_a_text_that_is_no_whole_object_is_not_read(action: str) -> None:
    obj = workflow(JOB, action)
    assert not found(obj)
    assert MANIFEST in [unread.path for unread in coverage_of(obj).unread]


@pytest.mark.parametrize(
    "text",
    [
        JOB.replace("train:1", "train:{{inputs.parameters.tag}}"),
        JOB.replace("name: train", "name: {{inputs.parameters.name}}"),
        JOB.replace("spec:\n  template", "spec:\n  parallelism: {{workflow.parameters.n}}\n  template"),
        JOB.replace(
            "{name: train}\nspec:", "{name: {{name}}}\nspec:\n  backoffLimit: {{n}}\n  completions: {{m}}"
        ),
    ],
)
def test_placeholders_are_values_that_nobody_knows(text: str) -> None:
    obj = workflow(text)
    (each,) = found(obj)
    assert "unknown" not in each.finding.message
    coverage = coverage_of(obj)
    assert coverage.reading is Reading.PARTLY
    assert [unread.why for unread in coverage.unread if unread.path == MANIFEST] == [
        "its placeholders have values that nobody knows yet"
    ]


def test_a_title_has_the_placeholder_of_the_name() -> None:
    (each,) = found(workflow(JOB.replace("name: train", "name: 'train-{{workflow.uid}}'")))
    assert each.finding.message.startswith("Job train-{{workflow.uid}}, spec.template")


@pytest.mark.parametrize(
    "text",
    [
        JOB.replace("http://payments.shop/health", "'{{url}}'"),  # it may be localhost
        JOB.replace("timeoutSeconds: 5", "timeoutSeconds: {{t}}, '{{key}}': 1").replace("exec", "'{{how}}'"),
        JOB.replace("spec:\n  template", "spec:\n  suspend: {{suspended}}\n  template"),  # no number or text
        JOB.replace("      containers", "{{=sprig.indent(6, {{a}})}}\n      containers"),  # no YAML
        "",
        None,
        [],
        "a: *b",
        "- a",
        "[" * 20_000,
        "{" * 20_000,
        "{{" * 10_000,
        "a: [" + "1," * 15_000 + "]",
        "{{a}}" * 6_000,
        "a: &a [x]\nb: [*a, *a]\n",
        JOB + "#" * 40_000,
        "\n".join(f"a{number}: {{{{a{number}}}}}" for number in range(1000)),
        "apiVersion: batch/v1\nkind: Job\nspec: []",
    ],
)
def test_what_is_not_certain_is_silent(text: Any) -> None:
    start = time.process_time()
    obj = workflow(text)
    assert not found(obj)
    assert time.process_time() - start < 5
    if text:
        assert MANIFEST in [unread.path for unread in coverage_of(obj).unread]


def test_the_number_of_objects_is_limited() -> None:
    assert 1 <= len(found(workflow("---\n".join([JOB] * 40)))) <= 8


def test_an_exemption_of_either_object_counts() -> None:
    reason = {"mlchassis.dev/exempt": f"{RULE}=reviewed"}
    metadata = f"annotations: {{mlchassis.dev/exempt: {RULE}=known}}"
    inner = JOB.replace("{name: train}", f"{{name: train, {metadata}}}")
    assert [each.exempted for each in found(workflow(JOB, annotations=reason))] == ["reviewed"]
    assert [each.exempted for each in found(workflow(inner))] == ["known"]


def work(inner: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "kubernetes.crossplane.io/v1alpha2",
        "kind": "Object",
        "metadata": {"name": "x"},
        "spec": {"forProvider": {"manifest": inner}, **spec},
    }


def reported(obj: Json, *others: Json) -> set[str]:
    cluster = ManifestCluster([obj, *others], whole=True)
    review = Review(Document("test", 0, obj).request(), STRICT, cluster)
    return {each.rule for each in decide(review).results}


class Asked(NoCluster):
    """A cluster that notes which resources are asked for."""

    def __init__(self) -> None:
        self.resources: set[Resource] = set()

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        self.resources.add(resource)
        return None


def asked(obj: Json) -> set[Resource]:
    cluster = Asked()
    decide(Review(Document("test", 0, obj).request(), STRICT, cluster))
    return cluster.resources


def test_an_earlier_step_may_create_what_a_text_needs() -> None:
    """So only namespaces are asked for."""
    assert asked(yaml.safe_load(JOB)) - {Resource.NAMESPACES}
    assert asked(workflow(JOB)) - asked(workflow("")) <= {Resource.NAMESPACES}


def test_the_labels_of_a_namespace_stay() -> None:
    mesh = manifest("Namespace", "default")
    mesh["metadata"]["labels"] = {"istio-injection": "enabled"}
    assert "mesh-job-never-ends" in reported(workflow(JOB), mesh)
    assert "mesh-job-never-ends" not in reported(workflow(JOB))


def test_objects_for_other_clusters_are_read() -> None:
    obj = work(cluster())
    (each,) = found(obj, "name-refused")
    assert each.finding.path == "spec.forProvider.manifest.metadata.name"
    assert coverage_of(obj).reading is Reading.REVIEWED
    assert not found(work(cluster(), managementPolicies=["Observe"]), "name-refused")
    assert coverage_of(work(cluster(), references=[{}])).reading is Reading.NOT


def test_the_table_names_known_rules() -> None:
    named = {each for workload in known_workloads() for how in workload.applied for each in how.without}
    assert named <= {*rules()}


@pytest.mark.parametrize(
    "further",
    [
        "a: 1",
        "apiVersion: example.org/v1\nkind: Unknown\nmetadata: {name: a}",
        "apiVersion: v1\nkind: List\nitems: []",
        JOB.replace("[curl, -f, http://payments.shop/health]", "5"),
        "---\n".join([JOB] * 8),
    ],
)
def test_a_text_of_which_an_object_is_unread_is_not_reviewed_as_a_whole(further: str) -> None:
    obj = workflow(f"{JOB}---\n{further}")
    assert found(obj)
    assert MANIFEST in [unread.path for unread in coverage_of(obj).unread]
    assert coverage_of(obj).reading is Reading.PARTLY


def test_objects_beyond_the_limit_are_named() -> None:
    components = [{"template": cluster(f"c{number}")} for number in range(9)]
    read = coverage_of(manifest("AppWrapper", "x", {"components": components[:8]}))
    assert read.reading is Reading.REVIEWED
    beyond = coverage_of(manifest("AppWrapper", "x", {"components": components}))
    assert [unread.path for unread in beyond.unread] == ["spec.components[8].template"]
