"""Manifests as documents and as cluster facts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.core.resources import Resource
from policies.kube.group_kinds import CLAIM, CONFIG_MAP, GroupKind
from policies.kube.group_kinds import SERVICE as SERVICES
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.errors import UserError
from webhook.manifests import nearest as module
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read, read_all

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: ml}\n"


def write(directory: Path, **files: str) -> None:
    """Files by name, with `__` for a slash and `_` for a dot."""
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def test_files_directories_and_standard_input(tmp_path: Path) -> None:
    write(tmp_path, b_yaml=f"---\n{POD}---\n{SERVICE}---\n", values_yaml="replicas: 3\n", notes_txt="nothing")
    pod = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}'
    write(tmp_path, _hidden_yaml="a: [", deep__c_json=pod)
    found = read([str(tmp_path), "-"], stdin=lambda: POD)
    assert [(Path(d.source).name, d.index, d.name) for d in found] == [
        ("b.yaml", 0, "a"),
        ("b.yaml", 1, "s"),
        ("c.json", 0, "c"),
        ("standard input", 0, "a"),
    ]


def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    template = 'kind: Pod\nmetadata:\n  {{- include "labels" . }}\n'
    write(
        tmp_path,
        a_yaml=POD,
        chart__b_yaml=template,
        chart__values_yaml="image: x\nimage: y\n",
        z_yaml=SERVICE,
    )
    absent = str(tmp_path / "absent.yaml")
    found, problems = read_all([str(tmp_path), absent, "-"], stdin=lambda: "a: [")
    assert [d.name for d in found] == ["a", "s"]
    assert [str(problem).removeprefix(f"{tmp_path}/").partition(" (")[0] for problem in problems] == [
        "chart/b.yaml: line 3: a key must be text",
        "absent.yaml: No such file or directory",
        "standard input: line 2: did not find expected node content",
    ]
    with pytest.raises(UserError, match=r"b\.yaml: line 3"):
        read([str(tmp_path)])


def test_each_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, a_yaml="a: [", b_yaml=POD, c_yaml="c: {")
    with pytest.raises(UserError) as raised:
        read([str(tmp_path)])
    assert [Path(str(each).partition(":")[0]).name for each in raised.value.problems] == ["a.yaml", "c.yaml"]


def test_a_key_that_appears_twice_is_noted_and_its_last_value_counts(tmp_path: Path) -> None:
    file = tmp_path / "chart.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {app: x, app: y}\n"
        "spec:\n  nodeName: m\n  nodeName: n\n"
        f"---\n{SERVICE}"
    )
    pod, service = read([str(file)])
    assert pod.obj["metadata"]["labels"] == {"app": "y"}
    assert pod.obj["spec"] == {"nodeName": "n"}
    assert pod.duplicate_keys == (
        "line 5: the key 'app' appears twice",
        "line 8: the key 'nodeName' appears twice",
    )
    lines = pod.lines("spec.nodeName")
    assert lines is not None
    assert lines.first == 8, "the line of the value that counts"
    assert service.duplicate_keys == ()


def test_a_list_counts_as_its_items() -> None:
    item = "{apiVersion: v1, kind: Pod, metadata: {name: x}}"
    text = f"apiVersion: v1\nkind: PodList\nitems:\n- {item}\n---\n{POD}"
    assert [d.name for d in read(["-"], stdin=lambda: text)] == ["x", "a"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "it contains no object"),
        ("# nothing\n", "it contains no object"),
        ("a: 1\n", "document 1 isn't a Kubernetes object"),
        ("- 1\n", "document 1 isn't a Kubernetes object"),
        ("a: [", "line 2"),
        (b"\xff\xfe\x00", "it isn't UTF-8 text"),
    ],
)
def test_a_named_file_must_hold_objects(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        read([str(file)])
    assert sentence in str(caught.value)
    assert str(file) in str(caught.value)


def test_an_object_without_its_kind_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    rest = "metadata: {name: x}\nspec: {replicas: 1}\n"
    (tmp_path / "objects.yaml").write_text(f"apiVersion: apps/v1\n{rest}---\n{POD}")
    (tmp_path / "lower.yaml").write_text(f"apiversion: apps/v1\nkind: Deployment\n{rest}")
    (tmp_path / "values.yaml").write_text("kind: Deployment\nspec: {replicas: 1}\n")
    (tmp_path / "pipeline.yaml").write_text("kind: pipeline\nname: test\nsteps: []\n")
    documents, problems = read_all([str(tmp_path)])
    assert [document.name for document in documents] == ["a"]
    assert sorted(str(each).rpartition("/")[2] for each in problems) == [
        "lower.yaml: document 1 isn't a Kubernetes object: apiVersion or kind is missing",
        "objects.yaml: document 1 isn't a Kubernetes object: apiVersion or kind is missing",
    ]


def test_absent_resources_are_unknown() -> None:
    cluster = ManifestCluster([d.obj for d in read(["-"], stdin=lambda: f"{POD}---\n{SERVICE}")])
    assert cluster.listing(Resource.NODES) is None
    services = cluster.listing(Resource.SERVICES, "ml")
    assert services is not None
    assert [service["metadata"]["name"] for service in services] == ["s"]
    assert list(cluster.listing(Resource.SERVICES, "default") or ()) == []
    assert cluster.listing(Resource.SERVICES, "ml") is services, "what is derived must be remembered"


def test_what_a_kustomization_leaves_out_does_not_limit_its_result() -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {}}}
    files = ["app/kustomization.yaml", "app/quota.yaml", "app/backend.yaml", "quota.yaml"]
    objects = [{**quota, "metadata": {"name": file}} for file in files]
    cluster = ManifestCluster(objects, sources=files)

    def quotas(source: str) -> list[str]:
        found = cluster.near(source).listing(Resource.QUOTAS, "default") or ()
        return [each["metadata"]["name"] for each in found]

    assert quotas("app/kustomization.yaml") == ["app/kustomization.yaml", "quota.yaml"]
    assert quotas("app/backend.yaml") == files


@pytest.mark.parametrize(("group", "kind"), [("networking", "Ingress"), ("gateway.networking", "HTTPRoute")])
def test_the_nearest_version_of_a_route_counts(group: str, kind: str) -> None:
    def route(host: str) -> Json:
        spec = {"rules": [{"host": host}]}
        return {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "metadata": {"name": "r"}, "spec": spec}

    files = ["apps/chat/ingress.yaml", "exported/chat/ingress.yaml"]
    cluster = ManifestCluster([route(file) for file in files], sources=files)
    for file in files:
        [found] = cluster.near(f"{file[:-12]}deployment.yaml").every(GroupKind(f"{group}.k8s.io", kind), None)
        assert found["spec"]["rules"][0]["host"] == file


def test_templates_of_nodes_are_unknown() -> None:
    """A script makes any number of Nodes from such a template, so it doesn't show what the cluster has."""

    def node(name: str) -> Json:
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}

    assert ManifestCluster([node("${node_name}")]).listing(Resource.NODES) is None
    found = ManifestCluster([node("${node_name}"), node("gpu-1")]).listing(Resource.NODES)
    assert [each["metadata"]["name"] for each in found or ()] == ["gpu-1"]


def test_only_labelled_config_maps_are_model_configs() -> None:
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {}}
    marked = {**plain, "metadata": {"name": "y", "labels": {"mlchassis.dev/model-config": "true"}}}
    found = ManifestCluster([plain, marked]).listing(Resource.MODEL_CONFIGS, "default")
    assert found is not None
    assert [obj["metadata"]["name"] for obj in found] == ["y"]


def test_the_nearest_version_of_an_object_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def deployment(replicas: int) -> Json:
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}

    patch = {**deployment(0), "spec": {"replicas": 9}}
    files = {
        "app/base/all.yaml": [deployment(1)],
        "app/prod/a.yaml": [deployment(5), deployment(6)],
        "app/prod/b.yaml": [deployment(7), deployment(7)],
        "app/prod/patch.yaml": [patch],
        "other/c.yaml": [],
    }
    objects = [obj for each in files.values() for obj in each]
    sources = [source for source, each in files.items() for _ in each]
    cluster = ManifestCluster(objects, sources=sources)

    def replicas(source: str) -> list[int]:
        return [obj["spec"]["replicas"] for obj in cluster.near(source).listing(Resource.WORKLOADS) or ()]

    assert replicas("app/base/all.yaml") == [1, 9], "a patch is no version"
    assert replicas("app/prod/a.yaml") == [5, 6, 9]
    assert replicas("app/prod/b.yaml") == [7, 7, 9], "the review names what a file holds twice"
    assert replicas("app/prod/c.yaml") == [5, 6, 7, 9], "equal ones count once"
    assert replicas("other/c.yaml") == [1, 5, 6, 7, 9]
    hidden = cluster.near("other/c.yaml").hidden
    assert cluster.near("elsewhere/d.yaml").hidden is hidden, "the same versions are near"
    single = ManifestCluster([deployment(1), patch], sources=["a.yaml", "b.yaml"])
    assert not single.near("b.yaml").hidden.indices
    monkeypatch.setattr(module, "MAX_COMPARED", 4 * 5 - 1)
    many = ManifestCluster(objects, sources=sources)
    assert not many.near("app/base/all.yaml").hidden.indices, "all versions count"


def test_a_view_knows_its_own_file() -> None:
    files = ("a/kustomization.yaml", "b/kustomization.yaml", "plain.yaml")
    objects: list[Json] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": file[0]}} for file in files
    ]
    cluster = ManifestCluster(objects, sources=files)
    views = [cluster.near(file) for file in files]
    apart = [[view.apart(obj) for obj in objects] for view in views]
    assert apart == [[False, True, False], [True, False, False], [False, False, False]]
    found = [[view.together(CONFIG_MAP, "default", file[0]) is not None for file in files] for view in views]
    assert found == [[not each for each in row] for row in apart]
    assert len({id(view.hidden) for view in views}) == 1, "they share what is hidden"


def test_a_service_belongs_to_the_nearest_workload_that_it_selects() -> None:
    labels = {"app": "web"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"selector": labels}}

    def services(files: dict[str, Json], source: str) -> int:
        cluster = ManifestCluster([*files.values()], sources=[*files])
        return len(cluster.near(source).listing(Resource.SERVICES) or ())

    apart: dict[str, Json] = {"one/a.yaml": service, "one/b.yaml": workload, "two/c.yaml": workload}
    assert services(apart, "one/b.yaml") == 1
    assert services(apart, "two/c.yaml") == 0, "another app with the same label"
    by_kind: dict[str, Json] = {"services/a.yaml": service, "deployments/c.yaml": workload}
    assert services(by_kind, "deployments/c.yaml") == 1, "no other workload has the label"
    other: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}
    together: dict[str, Json] = {"k8s/web.yaml": service, "k8s/other.yaml": other}
    together |= {"k8s/web/web.yaml": workload, "k8s/same-label.yaml": workload}
    assert services(together, "k8s/other.yaml") == 1, "an app of the same directory may call it"
    assert services({**together, "k8s/web.yaml": workload, "k8s/web/a.yaml": service}, "k8s/other.yaml") == 1
    assert services({**together, "apps/b.yaml": other}, "apps/b.yaml") == 0, "another app's directory"


def test_an_object_of_another_app_exists() -> None:
    labels = {"app": "db"}
    db: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "db", "namespace": "ml"},
        "spec": {"template": {"metadata": {"labels": labels}}},
    }
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "db", "namespace": "ml"},
        "spec": {"selector": labels},
    }
    cluster = ManifestCluster(
        [NAMESPACE, db, service, {**db, "metadata": {"name": "api", "namespace": "ml"}}],
        sources=["n.yaml", "db/a.yaml", "db/a.yaml", "api/a.yaml"],
        whole=True,
    )
    near = cluster.near("api/a.yaml")
    assert not near.listing(Resource.SERVICES)
    assert not near.lacks(SERVICES, "ml", "db")
    assert near.lacks(SERVICES, "ml", "database")


def test_a_service_may_select_pods_by_the_label_of_a_queue() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    template = {"template": {"metadata": {"labels": labels}}}
    head = {"apiVersion": "apps/v1", "kind": "Deployment"}
    workload: Json = {**head, "metadata": {"name": "web", "labels": {**labels}}, "spec": template}
    other: Json = {**workload, "metadata": {"name": "web"}}
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"selector": labels},
    }
    cluster = ManifestCluster([service, other, workload], sources=["one/a.yaml", "one/b.yaml", "two/c.yaml"])
    assert len(cluster.near("one/b.yaml").listing(Resource.SERVICES) or ()) == 1
    assert not cluster.near("two/c.yaml").listing(Resource.SERVICES)


def test_a_queue_belongs_to_the_nearest_workload_that_names_it() -> None:
    named = {"metadata": {"name": "a", "labels": {"kueue.x-k8s.io/queue-name": "lq"}}}
    train: Json = {"apiVersion": "batch/v1", "kind": "Job", **named}
    other: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "b"}}
    queue: Json = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "lq"}}

    def queues(files: dict[str, Json], source: str) -> int:
        cluster = ManifestCluster([*files.values()], sources=[*files])
        return len(cluster.near(source).listing(Resource.LOCAL_QUEUES) or ())

    files = {"kueue/queue.yaml": queue, "kueue/job.yaml": train, "ray/job.yaml": other}
    assert queues(files, "kueue/job.yaml") == 1
    assert queues(files, "ray/job.yaml") == 0, "another tutorial"
    del files["kueue/job.yaml"]
    assert queues(files, "ray/job.yaml") == 1, "nobody else names the queue"


def test_autoscalers_of_one_workload_in_two_files_are_alternatives() -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    by_cpu, by_gpu = (
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name},
            "spec": {"scaleTargetRef": target, "maxReplicas": 2},
        }
        for name in ("by-cpu", "by-gpu")
    )

    def autoscalers(sources: list[str], source: str) -> int:
        cluster = ManifestCluster([by_cpu, by_gpu], sources=sources)
        return len(cluster.near(source).listing(Resource.AUTOSCALERS) or ())

    assert autoscalers(["a.yaml", "a.yaml"], "a.yaml") == 2
    assert autoscalers(["a.yaml", "b.yaml"], "a.yaml") == 1
    assert autoscalers(["a.yaml", "b.yaml"], "deployment.yaml") == 2, "either may be the one that is applied"


def test_a_directory_without_manifests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(UserError, match=r"contains no \.yaml, \.yml or \.json file"):
        read([str(tmp_path)])


NAMESPACE: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}


class _Counted(list[Json]):
    """Objects that count how often all of them are iterated."""

    passes = 0

    def __iter__(self) -> Iterator[Json]:
        self.passes += 1
        return super().__iter__()


def test_objects_are_not_iterated_for_each_missing_name() -> None:
    objects = _Counted([NAMESPACE, maker("Role", rules=[{"verbs": ["get"], "resources": ["services"]}])])
    cluster = ManifestCluster(objects, whole=True)
    assert cluster.lacks(SERVICES, "ml", "first")
    passes = objects.passes
    assert all(cluster.lacks(kind, "ml", f"missing-{n}") for kind in (SERVICES, CLAIM) for n in range(100))
    assert objects.passes == passes


def maker(kind: str, **fields: object) -> Json:
    version = "apps/v1" if kind == "StatefulSet" else "rbac.authorization.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "maker", "namespace": "ml"}, **fields}


@pytest.mark.parametrize(
    ("made_by", "kind"),
    [
        (maker("Role", rules=[{"verbs": ["create"], "resources": ["services"]}]), SERVICES),
        (maker("ClusterRole", rules=[{"verbs": ["*"], "resources": ["*"]}]), CLAIM),
        (maker("StatefulSet", spec={"volumeClaimTemplates": [{"metadata": {"name": "a"}}]}), CLAIM),
    ],
)
def test_objects_that_the_set_may_create_are_not_missing(made_by: Json, kind: GroupKind) -> None:
    assert ManifestCluster([NAMESPACE], whole=True).lacks(kind, "ml", "gone")
    assert not ManifestCluster([NAMESPACE, made_by], whole=True).lacks(kind, "ml", "gone")


def test_a_manifest_with_a_wrong_type_is_no_fact() -> None:
    good = manifest("Service", "good", {"selector": {"a": "b"}}, namespace="ml")
    wrong = manifest("Service", "wrong", {"selector": {"a": 1}}, namespace="ml")
    listing = ManifestCluster([good, wrong]).listing(Resource.SERVICES, "ml")
    assert [obj["metadata"]["name"] for obj in listing or ()] == ["good"]


def test_files_of_a_directory_that_are_certainly_no_manifests_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: p}}")
    (tmp_path / "stack.yaml").write_text("Resources:\n  Role: !Ref Other\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a\nformat: !!python/name:pymdownx.superfences.format\n")
    (tmp_path / "events.json").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "weights.json").write_bytes(b"\xff\xfe\x00\x01")
    documents, problems = read_all([str(tmp_path)])
    assert ([document.obj["kind"] for document in documents], problems) == (["Pod"], [])
    (tmp_path / "broken.yaml").write_text("apiVersion: v1\nkind: Pod\n  metadata: {}\n")
    (tmp_path / "powershell.yaml").write_bytes("apiVersion: v1\nkind: Pod\n".encode("utf-16"))
    _, problems = read_all([str(tmp_path)])
    assert [str(problem).removeprefix(f"{tmp_path}/").partition(":")[0] for problem in problems] == [
        "broken.yaml",
        "powershell.yaml",
    ]
    _, problems = read_all([str(tmp_path / "events.json")])
    assert len(problems) == 1, "a file that is named must hold objects"


def test_an_autoscaler_belongs_to_the_nearest_version_of_its_target() -> None:
    spec = {"selector": {"matchLabels": {"app": "web"}}}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    patch = {**workload, "spec": {"replicas": 2}}
    target = {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}}}
    autoscaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", **target}
    scaled_object = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", **target}

    def counts(scales: Json, source: str, **files: Json) -> bool:
        named = {**scales, "metadata": {"name": "web"}}
        sources = {f"{name.replace('_', '/')}/kustomization.yaml": each for name, each in files.items()}
        cluster = ManifestCluster(
            [named, *sources.values()], sources=["one/scaled/kustomization.yaml", *sources]
        )
        return bool(cluster.near(f"{source}/kustomization.yaml").listing(Resource.AUTOSCALERS))

    for each in (autoscaler, scaled_object):
        assert counts(each, "one/scaled", one_scaled=workload, two=workload)
        assert not counts(each, "two", one_scaled=workload, two=workload), "of another exercise"
        assert counts(each, "one", one=workload, two=workload), "the nearest one"
        assert counts(each, "base", base=workload), "the only one"
        assert counts(each, "base", base=workload, one_scaled=patch), "a patch is no version"
