"""The commands that are shown: exact, and without effect until they are edited."""

import json
import shlex
from typing import Any

import jsonpatch
import pytest

from policies.core.pod_templates import pod_templates
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.cli.kubectl import Kubectl, PodMetadata, PolicyText, annotate, configure, exempt, with_setting

TABLE = workloads_by_kind()
KUBECTL = Kubectl(("--context=it's",))
SPEC = {"containers": [{"name": "a"}]}


def obj(api: str, kind: str, spec: Json, **metadata: Any) -> Json:
    return manifest(kind, "llm", spec, version=api, namespace="ml", **metadata)


def place(of: Json, source: str = "") -> PodMetadata:
    return PodMetadata(of, pod_templates(of, TABLE)[0] if of["kind"] != "Pod" else None, source)


def patch_in(command: str) -> Any:
    (patch,) = (word for word in shlex.split(command) if word.startswith("--patch="))
    return json.loads(patch.removeprefix("--patch="))


def test_a_deployment_is_annotated_in_its_template() -> None:
    deployment = obj("apps/v1", "Deployment", {"template": {"spec": SPEC}})
    command = annotate(place(deployment), "a/b", "it's", KUBECTL)
    words = shlex.split(command)
    assert words[:7] == ["kubectl", "--context=it's", "-n", "ml", "patch", "deployment.apps", "llm"]
    assert words[7] == "--type=merge"
    assert patch_in(command) == {"spec": {"template": {"metadata": {"annotations": {"a/b": "it's"}}}}}


@pytest.mark.parametrize(
    "metadata", [{}, {"metadata": {"labels": {}}}, {"metadata": {"annotations": {"x": "y"}}}]
)
def test_a_template_in_a_list_keeps_its_neighbours(metadata: Json) -> None:
    groups = [{"groupName": "g", "template": {**metadata, "spec": SPEC}}, {"groupName": "h"}]
    cluster = obj("ray.io/v1", "RayCluster", {"workerGroupSpecs": groups})
    patched = jsonpatch.apply_patch(cluster, patch_in(annotate(place(cluster), "a/b", "v", KUBECTL)))
    first, second = patched["spec"]["workerGroupSpecs"]
    assert first["template"]["metadata"]["annotations"]["a/b"] == "v"
    assert first["template"]["metadata"].get("labels", {}) == {}
    assert second == {"groupName": "h"}


def test_the_place_of_a_field_that_can_not_be_edited_is_shown() -> None:
    job = obj("batch/v1", "Job", {"template": {"spec": SPEC}})
    assert annotate(place(job), "a/b", "v", KUBECTL) == (
        'before Job llm is created again, under spec.template.metadata.annotations of its manifest: a/b: "v"'
    )
    pod = obj("v1", "Pod", SPEC)
    assert "under metadata.annotations of its manifest" in annotate(place(pod), "a/b", "v", KUBECTL)
    assert annotate(place(job, "job.yaml"), "a/b", "v", KUBECTL) == (
        'in job.yaml, under spec.template.metadata.annotations: a/b: "v"'
    )


def test_an_exemption_keeps_those_that_are_there() -> None:
    template = {"metadata": {"annotations": {"mlchassis.dev/exempt": "tcp-probe=old"}}, "spec": SPEC}
    command = exempt(place(obj("apps/v1", "Deployment", {"template": template})), "gpu-affinity", KUBECTL)
    annotations = patch_in(command)["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"mlchassis.dev/exempt": "tcp-probe=old; gpu-affinity=give a reason"}


@pytest.mark.parametrize(
    ("written", "edited"),
    [
        ("", "timeout: 7\n"),
        ("# ours\nmirror: off  # why\n", "# ours\nmirror: off  # why\ntimeout: 7\n"),
        ("timeout: 5\nmirror: off\n", "timeout: 7\nmirror: off\n"),
        ("timeout: 5s # patience", "timeout: 7"),
        ("{timeout: 5}", None),
        ("timeout:\n  5\n", None),
        ("timeout: [", None),
    ],
)
def test_one_field_of_a_key_is_set(written: str, edited: str | None) -> None:
    assert with_setting(written, "timeout", 7) == edited


def test_a_setting_is_changed_in_the_policy() -> None:
    policy = PolicyText("configmap:sys/pol", override={"standard-probes.yaml": "mirror: off\n"})
    command = configure(policy, "standard-probes", "timeout", 5, KUBECTL)
    assert shlex.split(command)[2:7] == ["-n", "sys", "patch", "configmap", "mlchassis-override"]
    assert patch_in(command) == {"data": {"standard-probes.yaml": "mirror: off\ntimeout: 5\n"}}
    large = configure(policy, "standard-probes", "presets", {"x": "y" * 300}, KUBECTL)
    assert large.endswith("-n sys edit configmap mlchassis-override  # standard-probes.yaml: presets")
    assert configure(PolicyText("dir"), "standard-probes", "timeout", 5, KUBECTL) == (
        "in dir, key standard-probes.yaml: timeout: 5"
    )
