"""Every kind of the table: the same hazard in each place where it keeps pods is found at its exact path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from policies.core.pod_templates import pod_templates
from policies.core.target import Target
from policies.core.workloads import Composed, Shape, Workload, is_builtin, known_without_pods, known_workloads
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, replaced
from tests.manifests import manifest
from tests.policies.core.reviews import HAZARD, STRICT, TABLE, coverage_of, decided, hazards
from tests.tables import table
from webhook.admission.coverage import Reading

CONTAINER: Json = {"name": "api", "image": "example.org/api:1", "livenessProbe": HAZARD}
POD: Json = {"containers": [CONTAINER]}


def steps(path: str) -> list[str | int]:
    """One way along a path with wildcards."""
    spelled = path.replace("[*]", ".0").replace(".*", ".one")
    return [int(each) if each.isdigit() else each for each in spelled.split(".") if each != "."]


def api_version(workload: Workload) -> str:
    version = workload.versions[0]
    return f"{workload.api_group}/{version}" if workload.api_group else version


def made(workload: Workload, path: str, value: Any) -> Json:
    obj: Json = {"apiVersion": api_version(workload), "kind": workload.kind, "metadata": {"name": "x"}}
    return replaced(obj, steps(path), value)


def cases() -> Iterator[Any]:
    """The kind, the path below which the hazard is put, the hazard, and the path of the finding."""
    for workload in known_workloads():
        for path in workload.templates:
            spec = POD if workload.shape is Shape.SPEC else {"metadata": {}, "spec": POD}
            inside = "" if workload.shape is Shape.SPEC else ".spec"
            yield case(workload, path, spec, f"{inside}.containers[0]")
        for path in workload.specs:
            yield case(workload, path, POD, ".containers[0]")
        for path in workload.containers:
            yield case(workload, path, CONTAINER, "")
        for path in workload.objects:
            inner = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}
            yield case(workload, path, inner, ".spec.template.spec.containers[0]")
        for override in workload.overrides:
            node = replaced({}, override.base.split("."), {"spec": {"containers": [{"name": "api"}]}})
            node = replaced(node, override.patch.split("."), {"spec": POD})
            yield case(workload, override.at, node, f".{override.patch}.spec.containers[0]")
        for entry in workload.composed:
            yield from of_fields(workload, entry)


def of_fields(workload: Workload, entry: Composed) -> Iterator[Any]:
    for path in (*entry.containers, *filter(None, [entry.main])):
        node = replaced({}, steps(path), CONTAINER)
        yield case(workload, entry.at, node, f".{field_path(steps(path))}")
    probe = entry.fields.get("livenessProbe")
    if probe:
        node = replaced({"image": "example.org/api:1"}, probe.split("."), HAZARD)
        yield case(workload, entry.at, node, f".{probe.removesuffix('livenessProbe')}", whole=f".{probe}")


def case(workload: Workload, path: str, value: Any, inside: str, whole: str = "") -> Any:
    at = field_path(steps(path))
    expected = f"{at}{whole}" if whole else f"{at}{inside}.livenessProbe"
    return pytest.param(workload, path, value, expected, id=f"{workload.group_kind} {path}{inside}")


@table(("workload", "path", "value", "expected"), list(cases()))
def test_the_hazard_is_found_at_its_path(workload: Workload, path: str, value: Any, expected: str) -> None:
    obj = made(workload, path, value)
    found = {finding.path for finding in hazards(decided(obj))}
    assert any(each == expected or each.startswith(f"{expected}.") for each in found), found
    assert coverage_of(obj).reading in (Reading.REVIEWED, Reading.PARTLY)


VALUES: Json = {
    "image": "example.org/api:1",
    "env": [{"name": "A", "value": "b"}],
    "resources": {"limits": {"cpu": "1"}},
}


def test_a_field_of_the_kind_s_own_is_read_where_it_is() -> None:
    own = [(each, entry, it) for each in known_workloads() for entry in each.composed for it in entry.fields]
    for workload, entry, field in own:
        value = HAZARD if field.endswith("Probe") else VALUES.get(field, ["a"])
        path = f"{entry.at}.{entry.fields[field]}"
        templates = pod_templates(made(workload, path, value), TABLE)
        (template,) = (
            each
            for each in templates
            if each.origins is not None and each.containers()[0].spec.get(field) == value
        )
        container = template.containers()[0]
        assert template.source_path(template.at(container, field)) == field_path(steps(path)), (
            workload.group_kind
        )
        assert not template.is_exact, workload.group_kind


def test_the_table_names_its_sources() -> None:
    paths = {"templates", "specs", "containers", "composed", "overrides", "objects", "applied", "unread"}
    for workload in known_workloads():
        assert workload.source, workload.group_kind
        assert workload.versions, workload.group_kind
        assert workload.given & paths, f"{workload.group_kind} would never be reviewed"


def test_what_owns_servers_owns_no_pods_that_complete() -> None:
    """Only the owner's kind, without its group, decides whether a pod runs to completion."""
    owners = {workload.owner or workload.kind: workload for workload in TABLE.values() if workload.completes}
    serving = {workload.owner or workload.kind for workload in TABLE.values() if not workload.completes}
    assert serving.isdisjoint(owners)


def test_no_kind_is_in_the_table_twice() -> None:
    kinds = [*TABLE, *known_without_pods()]
    assert len(set(kinds)) == len(kinds) == len(known_workloads()) + len(known_without_pods())


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("v1", "Service"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("serving.kserve.io/v1alpha1", "InferenceGraph"),
    ],
)
def test_a_kind_without_pods_is_reported_as_such(api: str, kind: str) -> None:
    coverage = coverage_of({"apiVersion": api, "kind": kind, "metadata": {"name": "x"}})
    assert (coverage.reading, coverage.sentence) == (Reading.NO_PODS, "")


def test_a_group_that_only_ends_like_one_of_kubernetes_is_not_built_in() -> None:
    assert not is_builtin(GroupKind("sparkoperator.k8s.io", "SparkApplication"))
    assert not is_builtin(GroupKind("jobset.x-k8s.io", "JobSet"))


@pytest.mark.parametrize(("kind", "above"), [("Workflow", ()), ("CronWorkflow", ("workflowSpec",))])
def test_pods_of_a_workflow_have_its_pod_fields_and_not_its_own_annotations(
    kind: str, above: tuple[str, ...]
) -> None:
    step = {
        "name": "train",
        "container": {"image": "train:1", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]},
        "metadata": {"labels": {"step": "train"}},
        "nodeSelector": {"pool": "gpus"},
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    spec: Json = {
        "templates": [step],
        "podMetadata": {"labels": {"step": "any", "team": "ml"}},
        "nodeSelector": {"pool": "cpus"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "other", "emptyDir": {}}],
        "activeDeadlineSeconds": 60,
    }
    for name in above:
        spec = {name: spec}
    metadata = {"name": "w", "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}
    obj: Json = {"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    (template,) = pod_templates(obj, TABLE)
    pod = template.typed
    assert pod.metadata.annotations == {}
    assert pod.metadata.labels == {"step": "train", "team": "ml"}
    assert pod.spec.node_selector == {"pool": "gpus"}
    assert [each.key for each in pod.spec.tolerations] == ["team"]
    assert [each.name for each in pod.spec.volumes] == ["shm", "data"]
    assert pod.spec.active_deadline_seconds is None


def test_unread_fields_are_named() -> None:
    for workload in known_workloads():
        for field in workload.unread:
            coverage = coverage_of(made(workload, field.path, {"name": "other"}))
            assert coverage.missing, (workload.group_kind, field.path)
            assert field_path(steps(field.path)) in [each.path for each in coverage.unread], (
                workload.group_kind
            )


def test_a_workload_without_its_template_is_not_reviewed() -> None:
    assert coverage_of(manifest("Deployment", "x")).reading is Reading.NOT


def test_an_embedded_object_of_an_unknown_kind_is_named() -> None:
    inner = {"apiVersion": "example.org/v1", "kind": "Odd", "spec": {"containers": []}}
    obj = made(TABLE[GroupKind("workload.codeflare.dev", "AppWrapper")], "spec.components[*].template", inner)
    coverage = coverage_of(obj)
    assert coverage.reading is Reading.NOT
    assert "spec.components[0].template: kind Odd of group example.org is unknown" in coverage.sentence


def test_objects_in_objects_are_read_a_few_deep_and_no_deeper() -> None:
    obj: Json = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}
    for _ in range(3):
        obj = manifest("AppWrapper", "x", {"components": [{"template": obj}]})
    assert len(pod_templates(obj, TABLE)) == 1
    for _ in range(30):
        obj = {**obj, "spec": {"components": [{"template": obj}]}}
    assert pod_templates(obj, TABLE) == ()


def test_findings_in_composed_pods_never_refuse() -> None:
    task = {"steps": [{"name": "a", "image": "b", "livenessProbe": HAZARD}]}
    obj = made(TABLE[GroupKind("tekton.dev", "Task")], "spec", task)
    decision = decided(obj, config=STRICT)
    assert decision.results
    assert decision.allowed
    assert decision.projected is None


def test_a_step_template_of_tekton_is_under_every_step() -> None:
    task = {"stepTemplate": {"livenessProbe": HAZARD}, "steps": [{"name": "a", "image": "b"}]}
    obj = made(TABLE[GroupKind("tekton.dev", "Task")], "spec", task)
    (template,) = pod_templates(obj, TABLE)
    container = template.containers()[0]
    assert container.spec["livenessProbe"] == HAZARD
    assert template.source_path(template.at(container, "livenessProbe")) == "spec.stepTemplate.livenessProbe"


def test_a_patch_is_merged_by_name_and_removes_null_fields() -> None:
    base = {"spec": {"containers": [{"name": "a", "image": "b", "livenessProbe": HAZARD}, {"name": "c"}]}}
    patch = {"spec": {"containers": [{"name": "a", "livenessProbe": None}, {"name": "d", "image": "e"}]}}
    group = TABLE[GroupKind("workloads.x-k8s.io", "RoleBasedGroup")]
    obj = made(group, "spec.roles[*].leaderWorkerPattern", {"template": base, "leaderTemplatePatch": patch})
    below, patched = pod_templates(obj, TABLE)
    assert not below.is_exact, "what runs is the patched one"
    assert [each.name for each in patched.containers()] == ["a", "c", "d"]
    assert patched.containers()[0].spec == {"name": "a", "image": "b"}
    place = "spec.roles[0].leaderWorkerPattern"
    assert [patched.source_path(patched.at(each)) for each in patched.containers()] == [
        f"{place}.template.spec.containers[0]",
        f"{place}.template.spec.containers[1]",
        f"{place}.leaderTemplatePatch.spec.containers[1]",
    ]


SPARK: Json = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "metadata": {"name": "etl"},
    "spec": {"image": "spark:3.5", "driver": {"cores": 2, "memory": "512m"}, "executor": {"instances": 2}},
}


def test_a_pod_of_spark_has_the_image_of_its_application_and_always_requests() -> None:
    driver, executor = pod_templates(SPARK, TABLE)
    assert [each.containers()[0].image for each in (driver, executor)] == ["spark:3.5", "spark:3.5"]
    assert driver.source_path(driver.at(driver.containers()[0], "image")) == "spec.image"
    assert driver.containers()[0].spec["resources"] == {
        "requests": {"cpu": "2", "memory": "512Mi"},
        "limits": {"memory": "512Mi"},
    }
    assert executor.containers()[0].spec["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ({"coreRequest": "500m", "cores": 2}, {"cpu": "500m", "memory": "1Gi"}),
        ({"memory": "2048"}, {"cpu": "1", "memory": "2048Mi"}),
        ({"memory": "2gb"}, {"cpu": "1", "memory": "2Gi"}),
        ({"memory": "2g", "memoryOverhead": "512m"}, {"cpu": "1", "memory": "2621440Ki"}),
        ({"memory": "2g", "memoryOverhead": "0.2"}, {"cpu": "1", "memory": "2Gi"}),
        ({"memory": "much"}, None),
        ({"memory": "9" * 999}, None),
        ({"memory": "2g", "memoryOverhead": "9" * 999}, {"cpu": "1", "memory": "2Gi"}),
    ],
)
def test_memory_of_spark_is_read_as_a_jvm_does(driver: Json, expected: Json | None) -> None:
    first, *_ = pod_templates(replaced(SPARK, ("spec", "driver"), driver), TABLE)
    resources = first.containers()[0].spec.get("resources")
    assert (resources or {}).get("requests") == expected


def test_a_gpu_of_spark_is_a_limit_of_its_container() -> None:
    executor = {"gpu": {"name": "nvidia.com/gpu", "quantity": 1}}
    _, second = pod_templates(replaced(SPARK, ("spec", "executor"), executor), TABLE)
    assert second.containers()[0].spec["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(("written", "read"), [("spark", "spark"), ("default", ""), ({"name": "spark"}, "")])
def test_the_account_of_a_driver_is_its_name_only(written: object, read: str) -> None:
    driver, _ = pod_templates(replaced(SPARK, ("spec", "driver"), {"serviceAccount": written}), TABLE)
    assert driver.typed.spec.own_account == read


def test_a_template_of_spark_is_not_doubled() -> None:
    template = {"spec": {"containers": [{"name": "spark-kubernetes-driver", "image": "other:1"}]}}
    found = pod_templates(replaced(SPARK, ("spec", "driver"), {"template": template}), TABLE)
    assert [each.containers()[0].image for each in found] == ["other:1", "spark:3.5"]


NIM: Json = {
    "apiVersion": "apps.nvidia.com/v1alpha1",
    "kind": "NIMService",
    "metadata": {"name": "llama"},
    "spec": {
        "image": {"repository": "nvcr.io/nim/meta/llama-3.1-8b-instruct", "tag": "1.8.0"},
        "storage": {"pvc": {"name": "models"}},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "livenessProbe": {"enabled": False},
        "readinessProbe": {"probe": HAZARD},
    },
}


def test_a_probe_that_the_operator_gives_is_read_unless_it_is_written_or_turned_off() -> None:
    (template,) = pod_templates(NIM, TABLE)
    spec = template.containers()[0].spec
    assert "livenessProbe" not in spec
    assert spec["readinessProbe"] == HAZARD
    assert spec["startupProbe"]["failureThreshold"] == 120
    found = template.source_path(template.at(template.containers()[0], "startupProbe"))
    assert found == "spec.startupProbe.probe", "where its author can write another"


def test_no_probe_is_promised_where_the_operator_gives_one() -> None:
    spec = {
        key: value for key, value in NIM["spec"].items() if key not in ("livenessProbe", "readinessProbe")
    }
    patches = str([change.patch for change in decided({**NIM, "spec": spec}).changes])
    assert "preStop" in patches
    assert "Probe" not in patches
    assert "livenessProbe" in str([change.patch for change in decided(NIM).changes]), "this one is turned off"


@pytest.mark.parametrize(
    ("storage", "claim"),
    [
        ({"pvc": {"name": "models"}}, "models"),
        ({"pvc": {"create": True, "size": "50Gi"}}, ""),
        ({"nimCache": {"name": "llama"}}, ""),
        ({"hostPath": "/models"}, ""),
        ({"emptyDir": {}}, None),
        ({}, None),
    ],
)
def test_a_volume_that_the_operator_mounts_keeps_the_download(storage: Json, claim: str | None) -> None:
    obj = replaced(NIM, ("spec", "storage"), storage)
    obj = replaced(obj, ("spec", "startupProbe"), {"enabled": False})
    (template,) = pod_templates(obj, TABLE)
    names = [
        each.persistent_volume_claim.claim_name
        for each in template.typed.spec.volumes
        if each.persistent_volume_claim is not None
    ]
    assert names == ([] if claim is None else [claim])
    variables = [(each.name, each.value) for each in template.containers()[0].typed.env]
    assert variables == ([] if claim is None else [("NIM_CACHE_PATH", "/model-store")])
    why = str([reason.why for change in decided(obj).changes for reason in change.reasons])
    assert ("no volume keeps the download" in why) is (claim is None)


def test_a_variable_of_the_author_is_not_replaced() -> None:
    obj = replaced(NIM, ("spec", "env"), [{"name": "NIM_CACHE_PATH", "value": "/mine"}])
    (template,) = pod_templates(obj, TABLE)
    assert template.containers()[0].spec["env"] == [{"name": "NIM_CACHE_PATH", "value": "/mine"}]
    assert template.containers()[0].spec["volumeMounts"][0]["mountPath"] == "/model-store"


def sglang(env: Any, *templates: str) -> Json:
    """A group of one SGLang on two nodes."""
    command = ["python3", "-m", "sglang.launch_server", "--nnodes=2", "--node-rank", "$(LWS_WORKER_INDEX)"]
    words = [*command, "--host=0.0.0.0", "--port=40000", "--model-path=/models/m"]
    container = {"name": "sglang", "image": "lmsysorg/sglang:v0.5.3", "command": words, "env": env}
    group = {each: {"spec": {"containers": [container]}} for each in templates}
    return manifest("LeaderWorkerSet", "group", {"leaderWorkerTemplate": {"size": 2, **group}})


@pytest.mark.parametrize(
    ("env", "templates", "probed"),
    [
        ([], ("leaderTemplate", "workerTemplate"), ["leaderTemplate"]),
        ([], ("workerTemplate",), []),
        ([{"name": "LWS_WORKER_INDEX", "value": "1"}], ("leaderTemplate", "workerTemplate"), []),
        ({"LWS_WORKER_INDEX": "0"}, ("leaderTemplate", "workerTemplate"), []),
    ],
    ids=["leader-and-worker", "one-template", "own-rank", "wrong-type"],
)
def test_the_leader_of_a_group_has_the_variables_of_its_operator(
    env: Any, templates: tuple[str, ...], probed: list[str]
) -> None:
    changes = decided(sglang(env, *templates)).changes
    found = [each.template.rpartition(".")[2] for each in changes if "Probe" in str(each.patch)]
    assert found == probed
    assert "LWS_WORKER_INDEX" not in str([each.patch for each in changes]), "the operator sets it"


def test_rules_take_every_template_of_every_kind() -> None:
    """None raises on a pod that is put together from fields."""
    for workload in known_workloads():
        for entry in workload.composed:
            for path in entry.containers:
                obj = made(workload, f"{entry.at}.{path}", CONTAINER)
                target = Target(obj, kind_of(obj), pod_templates(obj, TABLE))
                assert target.templates
                assert not decided(obj).crashes


@table(
    ("component", "path"),
    [
        ({"predictor": {"containers": [{"name": "kserve-container"}]}}, "spec.predictor"),
        ({"predictor": {"model": {"image": "server"}}}, "spec.predictor.model"),
        ({"transformer": {"containers": [{"name": "kserve-container"}]}}, "spec.transformer"),
    ],
)
def test_a_component_of_kserve_has_labels_and_annotations_of_its_own(component: Json, path: str) -> None:
    metadata = {"name": "it", "labels": {"a": "service", "b": "service"}, "annotations": {"c": "service"}}
    ((name, spec),) = component.items()
    given = {**spec, "labels": {"a": "component"}, "annotations": {"d": "component"}}
    obj = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {name: given},
    }
    wrapped = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "around"},
        "spec": {"components": [{"template": obj}]},
    }
    for outer, at in ((obj, path), (wrapped, f"spec.components[0].template.{path}")):
        (template,) = (each for each in pod_templates(outer, TABLE) if each.path == at)
        of_pod = template.typed.metadata
        assert of_pod.labels == {"a": "component", "b": "service"}
        assert of_pod.annotations == {"c": "service", "d": "component"}
