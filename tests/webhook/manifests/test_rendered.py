"""Of kustomizations and charts the result is reviewed, never a patch or a template alone."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from webhook.manifests import files as module
from webhook.manifests.files import read_all
from webhook.manifests.rendered import sources

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec: {containers: [{name: api, image: example.org/api:1}]}
"""
PATCH = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec: {template: {spec: {containers: [{name: api, livenessProbe: {httpGet: {host: db, port: 1}}}]}}}
"""


def put(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return put(
        tmp_path / "tree",
        {
            "base/kustomization.yaml": "resources: [api.yaml, ./]\n",
            "base/api.yaml": DEPLOYMENT,
            "production/kustomization.yml": "resources: [../base]\npatches: [{path: patch.yaml}]\n",
            "production/patch.yaml": PATCH,
            "chart/Chart.yaml": "name: api\nversion: 0.1.0\n",
            "chart/values.yaml": "a: 1\n",
            "chart/templates/api.yaml": DEPLOYMENT.replace("name: api}", "name: {{ .Release.Name }}}", 1),
            "chart/charts/inner/Chart.yaml": "name: inner\nversion: 0.1.0\n",
            "chart/charts/inner/templates/plain.yaml": DEPLOYMENT,
            "shared/Chart.yaml": "name: shared\nversion: 0.1.0\ntype: library\n",
            "plain/api.yaml": DEPLOYMENT,
        },
    )


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def names(root: Path, *, build: bool) -> tuple[list[str], list[str]]:
    documents, problems = read_all([str(root)], build=build)
    return [os.path.relpath(each.source, root) for each in documents], [str(each) for each in problems]


def test_results_are_read_instead_of_their_files(tree: Path, tools: Path) -> None:
    program(tools, "kubectl", f'[ "$*" = "kubectl $1" ]; [ "$1" = kustomize ] && echo \'{DEPLOYMENT}\'')
    program(tools, "helm", f"echo '{DEPLOYMENT}'")
    read, problems = names(tree, build=True)
    assert problems == []
    assert read == ["chart/Chart.yaml", "production/kustomization.yml", "plain/api.yaml"]


def test_values_reach_the_chart(tree: Path, tools: Path) -> None:
    program(tools, "helm", f"[ \"$4\" = --values=production.yaml ] && echo '{DEPLOYMENT}'")
    documents, problems = read_all([str(tree / "chart")], build=True, values=["production.yaml"])
    assert ([each.name for each in documents], problems) == (["api"], [])


def test_a_chart_for_a_newer_kubernetes_than_helm_assumes(tree: Path, tools: Path) -> None:
    refuses = "Error: chart requires kubeVersion: >=1.29.0-0 which is incompatible with Kubernetes v1.20.0"
    program(
        tools,
        "helm",
        f"case \"$*\" in *--kube-version*) echo '{DEPLOYMENT}';; *) echo '{refuses}' >&2; exit 1;; esac",
    )
    documents, problems = read_all([str(tree / "chart")], build=True)
    assert ([each.name for each in documents], problems) == (["api"], [])


def test_the_other_program_builds_too(tree: Path, tools: Path) -> None:
    program(tools, "kustomize", f"[ \"$1\" = build ] && echo '{DEPLOYMENT}'")
    read, [problem] = names(tree, build=True)
    assert read == ["production/kustomization.yml", "plain/api.yaml"]
    assert f"(helm is not installed); render it and pipe it: helm template release {tree}/chart" in problem


def test_several_charts_are_releases_of_several_names(tree: Path) -> None:
    put(tree, {"store/Chart.yaml": "name: store\n", "Odd/Chart.yaml": "name: Odd_Name\n"})
    charts = {each.file.parent.name: each.tools[0][2] for each in sources(tree) if each.tools}
    assert charts["store"] == "store"
    assert charts["chart"] == "api"
    assert charts["Odd"] == "release"


@pytest.mark.usefixtures("tools")
def test_what_cannot_be_built_is_named_with_the_command(tree: Path) -> None:
    read, problems = names(tree, build=True)
    assert read == ["plain/api.yaml"], "no patch, no template, and nothing that a patch changes"
    assert len(problems) == 2
    assert f"kubectl kustomize {tree}/production | chassis review -" in problems[1]


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("field", "read"),
    [("namespace: ml", ["a.yaml"]), ("nameSuffix: -v2", []), ("images: [{name: a, newTag: b}]", [])],
)
def test_what_a_kustomization_changes_is_not_judged_as_it_is_written(
    tmp_path: Path, field: str, read: list[str]
) -> None:
    root = put(
        tmp_path / "app", {"kustomization.yaml": f"resources: [a.yaml]\n{field}\n", "a.yaml": DEPLOYMENT}
    )
    assert names(root, build=True)[0] == read


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("*", ["not reviewed, nor the 2 files that it changes (kubectl failed"] * 2),
        ("*two", ["not reviewed (kubectl failed"]),
    ],
)
def test_the_files_that_are_in_no_result_are_counted(
    tmp_path: Path, tools: Path, fails: str, said: list[str]
) -> None:
    program(tools, "kubectl", f"case $2 in {fails}) exit 1;; *) echo '{DEPLOYMENT}';; esac")
    base = {"kustomization.yaml": "resources: [a.yaml, b.yaml]\n", "a.yaml": DEPLOYMENT, "b.yaml": DEPLOYMENT}
    root = tmp_path / "all"
    put(root / "base", base)
    for name in ("one", "two"):
        put(root / name, {"kustomization.yaml": f"resources: [../base]\nnameSuffix: -{name}\n"})
    _, problems = names(root, build=True)
    assert len(problems) == len(said)
    assert all(part in problem for part, problem in zip(said, problems, strict=True))


def test_the_charts_of_a_chart_are_a_part_of_it(tmp_path: Path) -> None:
    chart = "name: a\nversion: 0.1.0\n"
    inside = ("a/charts/b/charts/c", "a/charts/d", "a/x/charts/y")
    outside = ("a", "a-b", "a.b/charts/e", "b/a", "ab", "a/x", "a/x/z")
    put(tmp_path, {f"{folder}/Chart.yaml": chart for folder in (*inside, *outside)})
    found = {str(source.file.parent.relative_to(tmp_path)): source.files for source in sources(tmp_path)}
    assert sorted(found) == sorted(outside)
    assert found["a/x"] == {tmp_path / folder / "Chart.yaml" for folder in ("a/x", "a/x/charts/y")}


def test_kustomizations_that_contain_each_other_are_named(tmp_path: Path, tools: Path) -> None:
    program(tools, "kubectl", "echo 'error: cycle detected' >&2; exit 1")
    patched = "patches: [{path: patch.yaml}]\n"
    files = {
        "a/kustomization.yaml": f"resources: [../b]\n{patched}",
        "b/kustomization.yaml": "resources: [../a]\n",
        "c/kustomization.yaml": f"resources: [.]\n{patched}",
    }
    root = put(tmp_path / "all", {**files, "a/patch.yaml": PATCH, "c/patch.yaml": PATCH, "d.yaml": PATCH})
    read, problems = names(root, build=True)
    assert read == ["d.yaml"]
    assert [each.partition(":")[0].rpartition("all/")[2] for each in problems] == [
        "a/kustomization.yaml",
        "c/kustomization.yaml",
    ]
    assert all("(kubectl failed: error: cycle detected)" in each for each in problems)


def test_there_is_an_end_to_building(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tools, "kubectl", f"echo '{DEPLOYMENT}'")
    monkeypatch.setattr(module, "MOST_BUILDS", 1)
    suffixed = {"kustomization.yaml": "resources: [a.yaml]\nnameSuffix: -b\n", "a.yaml": DEPLOYMENT}
    for name in ("one", "two"):
        put(tmp_path / "all" / name, suffixed)
    read, [problem] = names(tmp_path / "all", build=True)
    assert read == ["one/kustomization.yaml"]
    why = "because one run renders at most 1 results"
    assert f"two/kustomization.yaml: not reviewed, nor the file that it changes, {why}" in problem
    for name in ("three", "four", "zero"):
        put(tmp_path / "all" / name, suffixed)
    read, [problem] = names(tmp_path / "all", build=True)
    assert read == ["four/kustomization.yaml"]
    assert problem.count("kustomization.yaml") == 3
    named = "two/kustomization.yaml and 1 more: not reviewed, nor the 4 files that they change"
    assert f"{named}, {why}" in problem


@pytest.mark.usefixtures("tools")
def test_without_building_only_whole_objects_are_read(tree: Path) -> None:
    assert names(tree, build=False) == (["base/api.yaml", "plain/api.yaml"], [])


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("first\nno such file: base", "no such file: base"),
        (
            "walk.go:75: found symbolic link\nError: chart requires kubeVersion: >= 1.33.0-0\n\n"
            "Use --debug flag to render out invalid YAML",
            "Error: chart requires kubeVersion: >= 1.33.0-0",
        ),
        (
            "Error: values don't meet the specifications of the schema(s):\napi:\n- replicas is required",
            "Error: values don't meet the specifications of the schema(s): api: - replicas is required",
        ),
        (
            'E1129 23:09:21.983671 17894 run.go:72] "command failed" err=<\n\tno chart with config: `\n'
            "\tname: x\n\t`: must be found\n >",
            "no chart with config: ` name: x `: must be found",
        ),
        ("", "it printed no reason"),
    ],
)
def test_the_reason_of_a_failure_is_shown(tree: Path, tools: Path, printed: str, shown: str) -> None:
    program(tools, "kubectl", f"echo {shlex.quote(printed)} >&2; exit 1")
    program(tools, "helm", "true")
    _, [problem] = names(tree, build=True)
    assert f"(kubectl failed: {shown});" in problem


def test_files_outside_of_a_kustomization_are_read_with_another_command(tree: Path, tools: Path) -> None:
    printed = "error: loading KV pairs: security; file '/a/config.yaml' is not in or below '/a/k8s'"
    program(tools, "kubectl", f"echo {shlex.quote(printed)} >&2; exit 1")
    program(tools, "helm", "true")
    _, [problem] = names(tree, build=True)
    command = f"kubectl kustomize {tree / 'production'} --load-restrictor=LoadRestrictionsNone"
    assert problem.endswith(f"; render it and pipe it: {command} | chassis review -")


def test_charts_of_a_kustomization_are_rendered_with_another_command(tree: Path, tools: Path) -> None:
    program(tools, "kubectl", "echo 'Error: trouble configuring x: must specify --enable-helm' >&2; exit 1")
    program(tools, "helm", "true")
    _, [problem] = names(tree, build=True)
    command = f"kubectl kustomize {tree / 'production'} --enable-helm"
    assert problem.endswith(f"; render it and pipe it: {command} | chassis review -")


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("component", "read", "said"),
    [
        ("patches: [{path: patch.yaml}]", ["used.yaml", "whole.yaml"], 0),
        ("resources: [whole.yaml]", ["patch.yaml", "used.yaml", "whole.yaml"], 0),
        ("resources: [whole.yaml]\npatches: [{path: patch.yaml}]", ["used.yaml"], 1),
    ],
)
@pytest.mark.parametrize("build", [True, False])
def test_the_patch_of_an_unused_component_is_no_object(
    tmp_path: Path, component: str, read: list[str], said: int, build: bool
) -> None:
    files = {"kustomization.yaml": f"kind: Component\n{component}\n", "patch.yaml": PATCH}
    root = put(tmp_path / "gpu", {**files, "whole.yaml": DEPLOYMENT, "used.yaml": DEPLOYMENT})
    if not build:
        read, said = sorted({*read, "whole.yaml"}), 0
    found, problems = names(root, build=build)
    assert found == read
    said_of_it = [each for each in problems if "no kustomization here uses this component" in each]
    assert len(said_of_it) == len(problems) == said


@pytest.mark.parametrize("address", ["https://example.org/base.yaml", "github.com/a/b//c?ref=v1"])
def test_nothing_is_downloaded(tmp_path: Path, tools: Path, address: str) -> None:
    program(tools, "kubectl", "touch ran")
    root = put(
        tmp_path / "remote", {"kustomization.yaml": f"resources: ['{address}']\n", "a.yaml": DEPLOYMENT}
    )
    read, [problem] = names(root, build=True)
    assert read == ["a.yaml"]
    assert f"refers to {address}, and `chassis review` downloads nothing" in problem


@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 20_000, "a\\0b", "../" * 3000])
def test_no_name_of_a_target_is_too_strange(tmp_path: Path, name: str) -> None:
    content = f'resources: ["{name}"]\ncomponents: ["{name}"]\npatches: [{{path: "{name}"}}]\n'
    root = put(tmp_path / "app", {"kustomization.yaml": content, "a.yaml": DEPLOYMENT})
    assert names(root, build=False) == (["a.yaml"], [])


def test_every_way_to_name_a_part(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "kustomization.yaml": """
                resources: [api.yaml]
                components: [part]
                patches: [{path: a.yaml}, {patch: "inline: {}"}]
                patchesStrategicMerge: [b.yaml, "inline:\\n  x: 1"]
                patchesJson6902: [{path: c.yaml}]
                replacements: [{path: d.yaml}]
                transformers: [e.yaml]
                configMapGenerator: [{name: x, files: [key=f.yaml]}]
                openapi: {path: g.json}
            """,
            "part/kustomization.yaml": "kind: Component\npatches: [{path: h.yaml}]\n",
        },
    )
    [source] = sources(root)
    parts = {str(part.relative_to(root)) for part in source.parts}
    own = {"kustomization.yaml", "part/kustomization.yaml"}
    assert parts == own | {*(f"{name}.yaml" for name in "abcdef"), "g.json", "part/h.yaml"}
    assert str((root / "api.yaml").relative_to(root)) in {
        str(each.relative_to(root)) for each in source.files
    }


@pytest.mark.parametrize("content", ["[]", "a: {{ b }}", "resources: 1\npatches: x\n", ""])
def test_a_malformed_kustomization_is_an_ordinary_problem(tmp_path: Path, tools: Path, content: str) -> None:
    program(tools, "kubectl", "echo invalid >&2; exit 1")
    root = put(tmp_path / "odd", {"kustomization.yaml": content, "a.yaml": DEPLOYMENT})
    read, [problem] = names(root, build=True)
    assert (read, "invalid" in problem) == (["a.yaml"], True)
