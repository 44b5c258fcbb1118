"""`chassis fix`: the text that it writes, and the files that it does not change."""

from __future__ import annotations

import difflib
import os
import shutil
import textwrap
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.webhook.cli.scanned import Chassis
from webhook.cli import fix
from webhook.cli.reviewed import review_documents
from webhook.config.load import load, rules
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

EXAMPLES = Path(__file__).parents[3] / "examples"
NODE = """
---
apiVersion: v1
kind: Node
metadata: {name: n}
status: {nodeInfo: {kubeletVersion: v1.36.1}}
"""
HAND_WRITTEN = """\
# The API of the shop.
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shop}   # in one line
spec:
  replicas: 3
  selector: {matchLabels: {app: api}}
  template:
    metadata:
      labels: {app: api}
    spec:
      containers:
        # the server
        - name: "server"
          image: vllm/vllm-openai:v0.11.0
          args: ["--model", meta-llama/Llama-3.1-8B]
          ports: [{containerPort: 8000}]
          livenessProbe:
            httpGet: {path: /health, port: 8000}
            failureThreshold: 1     # too eager
            timeoutSeconds: 30

      # where models are kept
      volumes:
        - {name: cache, emptyDir: {}}
      tolerations: [{key: team, operator: Exists}]
---
# another one
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {selector: {app: api}, ports: [{port: 80}]}
"""


@pytest.fixture
def run(chassis: Chassis) -> Chassis:
    return partial(chassis, "fix")


@pytest.fixture
def api(tmp_path: Path) -> Path:
    """A manifest with fields to add and a finding to fix."""
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    return file


def left_in(*paths: Path) -> list[str]:
    """The policies that would still add fields, except to pods that KubeRay makes from templates which must
    stay as they are, and the findings with a fix."""
    documents = read([str(path) for path in paths])
    cluster = ManifestCluster([document.obj for document in documents])
    config = fix._without_annotation(load({}))
    return [
        name
        for review in review_documents(documents, config, cluster)
        for name in (*review.mutations, *(each.rule for each in review.decision.results))
        if name in fix.FIXES or (name in review.mutations and not review.kind.startswith("Ray"))
    ]


def test_comments_order_and_every_other_line_stay(run: Chassis, api: Path) -> None:
    assert left_in(api)
    status, out, err = run(api)
    assert (status, err) == (0, "")
    assert out.startswith(f"{api}: fixed: ")
    after = api.read_text().splitlines()
    changes = difflib.ndiff(HAND_WRITTEN.splitlines(), after)
    gone = [line for line in changes if line.startswith("- ")]
    assert gone == ["-             failureThreshold: 1     # too eager"]
    assert "            failureThreshold: 6     # too eager" in after
    assert "            periodSeconds: 30" in after
    assert "            periodSeconds: 2" not in after, "the readinessProbe of a hasty livenessProbe"
    comment = after.index("      # where models are kept")
    assert after[comment + 1] == "      volumes:", "new fields do not separate a comment from its field"
    assert left_in(api) == []


def test_every_example_can_be_fixed(run: Chassis, tmp_path: Path) -> None:
    for file in EXAMPLES.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    status, out, err = run(tmp_path)
    assert (status, err) == (0, "")
    assert len(out.splitlines()) > 10
    for file in EXAMPLES.glob("*.yaml"):
        kept = iter((tmp_path / file.name).read_text().splitlines())
        assert all(line in kept for line in file.read_text().splitlines()), file
    assert left_in(tmp_path) == []
    assert run(tmp_path) == (0, "", "")


def test_the_bad_case_of_each_fix_is_fixed(run: Chassis, tmp_path: Path) -> None:
    for name in fix.FIXES:
        file = tmp_path / f"{name}.yaml"
        file.write_text(rules()[name].document.bad)
        assert name in left_in(file)
        run("--only", name, file)
        assert name not in left_in(file), file.read_text()


SERVED: Final = """\
containers:
  - image: vllm/vllm-openai:v0.16.0
    args: [--model, Qwen/Qwen2.5-7B-Instruct]
    ports: [{containerPort: 8000}]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize(
    ("head", "refused"),
    [
        ("apiVersion: serving.knative.dev/v1\nkind: Service\n", True),
        ("apiVersion: apps/v1\nkind: Deployment\n", False),
    ],
)
def test_it_writes_no_field_that_the_kind_refuses(
    run: Chassis, tmp_path: Path, head: str, *, refused: bool
) -> None:
    file = tmp_path / "served.yaml"
    spec = textwrap.indent(SERVED, " " * 6)
    file.write_text(f"{head}metadata: {{name: llm}}\nspec:\n  template:\n    spec:\n{spec}")
    run(file)
    after = file.read_text()
    assert "readinessProbe:" in after
    assert ("lifecycle:" not in after, "tolerations:" not in after) == (refused, refused)


def test_a_value_that_the_file_sets_stays(run: Chassis, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: etl}\nspec:\n  template:\n    spec:\n"
        "      restartPolicy: Never\n      containers:\n"
        "        - {name: a, image: r/etl:1, terminationMessagePolicy: File}\n"
        "        - {name: b, image: r/etl:1}\n"
    )
    run(file)
    after = file.read_text()
    assert "terminationMessagePolicy: File" in after
    assert after.count("FallbackToLogsOnError") == 1
    assert "podFailurePolicy:" in after


def test_a_grace_period_that_the_file_sets_stays(run: Chassis, tmp_path: Path) -> None:
    """30 s, which is the API server's default; TGI finishes requests for 90 s."""
    file = tmp_path / "tgi.yaml"
    image = "ghcr.io/huggingface/text-generation-inference:3.0"
    spec = f"terminationGracePeriodSeconds: 30\ncontainers:\n- {{name: tgi, image: {image}}}"
    file.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: tgi}\nspec:\n"
        "  selector: {matchLabels: {app: tgi}}\n  template:\n    metadata: {labels: {app: tgi}}\n"
        f"    spec:\n{textwrap.indent(spec, ' ' * 6)}\n{NODE}"
    )
    run(file)
    after = file.read_text()
    assert "terminationGracePeriodSeconds: 30" in after
    assert "livenessProbe:" in after
    assert "preStop:" not in after


def test_it_writes_no_value_that_another_rule_reports(run: Chassis, tmp_path: Path) -> None:
    """6 * 5 s are not longer than readiness: liveness-as-strict-as-readiness."""
    file = tmp_path / "api.yaml"
    check = "exec: {command: [curl, -f, localhost:8080/health]}, timeoutSeconds: 5"
    file.write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\nspec:\n"
        "  selector: {matchLabels: {app: api}}\n  template:\n    metadata: {labels: {app: api}}\n"
        "    spec:\n      containers:\n        - name: api\n          image: r/api:1\n"
        f"          livenessProbe: {{{check}, periodSeconds: 5, failureThreshold: 1}}\n"
        f"          readinessProbe: {{{check}}}\n"
    )
    run(file)
    assert "failureThreshold: 1}" in file.read_text()


def test_the_templates_of_a_chart_are_named(run: Chassis, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: api\nversion: 0.1.0\n")
    (tmp_path / "templates" / "api.yaml").write_text("{{ if .Values.on }}\n" + HAND_WRITTEN + "{{ end }}\n")
    status, out, err = run(tmp_path)
    assert (status, out) == (2, "")
    assert err.startswith(f"chassis fix: not changed: {tmp_path}: templates are not YAML. ")


def test_it_writes_the_value_of_the_message(chassis: Chassis, tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: worker}\nspec:\n  containers:\n    - name: worker\n"
        "      image: rayproject/ray:2.46.0\n      command: [ray, start, --address=head:6379, --block]\n"
        "      livenessProbe: {exec: {command: [ray, status]}}\n"
    )
    assert "Set timeoutSeconds to 8 or more" in chassis("review", file)[1]
    chassis("fix", file)
    assert "timeoutSeconds: 8}" in file.read_text()


def test_a_fix_that_needs_a_field_is_made_at_once(run: Chassis, tmp_path: Path) -> None:
    """More failures of liveness would come after readiness, if the added startupProbe did not delay both."""
    file = tmp_path / "pod.yaml"
    file.write_text(
        textwrap.dedent("""\
        apiVersion: v1
        kind: Pod
        metadata: {name: model}
        spec:
          containers:
            - name: model
              image: nvcr.io/nvidia/tritonserver:24.12-py3
              livenessProbe:
                httpGet: {path: /v2/health/live, port: 8000}
                initialDelaySeconds: 120
                failureThreshold: 1
              readinessProbe: {httpGet: {path: /v2/health/ready, port: 8000}}
        """)
    )
    run(file)
    once = file.read_text()
    assert "failureThreshold: 6" in once
    run(file)
    assert file.read_text() == once


def test_a_kind_of_the_policy_may_refuse_fields(run: Chassis, tmp_path: Path) -> None:
    file, policy = tmp_path / "served.yaml", tmp_path / "policy.yaml"
    spec = textwrap.indent(SERVED.replace("- image", "- name: llm\n    image"), " " * 6)
    file.write_text(
        "apiVersion: a.example/v1\nkind: Chat\nmetadata: {name: llm}\n"
        f"spec:\n  template:\n    spec:\n{spec}"
    )
    policy.write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mlchassis-policy}\ndata:\n  webhook.yaml: |\n"
        "    workloads:\n"
        "      - {apiGroup: a.example, kind: Chat, templates: [spec.template], refuses: [tolerations]}\n"
    )
    run("--policy", policy, file)
    after = file.read_text()
    assert ("lifecycle:" in after, "tolerations:" in after) == (True, False)


@pytest.mark.parametrize(
    ("annotation", "refused"), [("Serverless", True), ("RawDeployment", False), ("Standard", False)]
)
def test_kserve_hands_the_pod_to_knative_in_one_mode(
    run: Chassis, tmp_path: Path, annotation: str, *, refused: bool
) -> None:
    file = tmp_path / "served.yaml"
    spec = textwrap.indent(SERVED, " " * 4)
    file.write_text(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: llm\n"
        f"  annotations: {{serving.kserve.io/deploymentMode: {annotation}}}\nspec:\n  predictor:\n{spec}"
    )
    run(file)
    assert ("tolerations:" not in file.read_text()) == refused


@pytest.mark.parametrize(
    ("head", "template"),
    [
        ("serving.kserve.io/v1alpha1\nkind: ServingRuntime", "spec"),
        ("serving.kserve.io/v1alpha1\nkind: LLMInferenceServiceConfig", "spec.template"),
        ("serving.kserve.io/v1alpha1\nkind: LLMInferenceService", "spec.template"),
        ("ome.io/v1beta1\nkind: ClusterServingRuntime", "spec"),
    ],
)
def test_nothing_is_written_into_what_an_operator_merges(
    run: Chassis, tmp_path: Path, head: str, template: str
) -> None:
    """Another object may set the port, ask for GPUs, or have a probe with another handler."""
    file, spec, indent = tmp_path / "runtime.yaml", "", 0
    for name in template.split("."):
        spec += f"{' ' * indent}{name}:\n"
        indent += 2
    file.write_text(
        f"apiVersion: {head}\nmetadata: {{name: llm}}\n{spec}{textwrap.indent(SERVED, ' ' * indent)}{NODE}"
    )
    before = file.read_text()
    run(file)
    assert file.read_text() == before


@pytest.mark.parametrize("flag", ["--diff", "--dry-run"])
def test_it_may_only_show_the_edits(run: Chassis, flag: str, api: Path) -> None:
    status, out, _ = run(flag, api)
    assert status == 0
    assert api.read_text() == HAND_WRITTEN
    assert ("+          readinessProbe:\n" in out) == (flag == "--diff")
    assert ("would be fixed" in out) == (flag == "--dry-run")


def test_an_unreadable_file_is_named_and_not_changed(run: Chassis, api: Path, tmp_path: Path) -> None:
    template = "kind: Pod\nmetadata:\n  {{ .Values.metadata }}\n"
    (tmp_path / "template.yaml").write_text(template)
    status, out, err = run(tmp_path)
    assert status == 2
    assert f"{api}: fixed" in out
    assert err.count("\n") == 1
    assert "not changed: " in err
    assert "template.yaml: line 3" in err
    assert "a template must be rendered first" in err
    assert (tmp_path / "template.yaml").read_text() == template


@pytest.mark.parametrize(
    "patch",
    [
        "patches: [{path: probe.yaml}]",
        "patchesStrategicMerge: [probe.yaml]",
        "patches:\n- target: {kind: Deployment}\n  patch: |\n"
        "    - {op: add, path: /spec/template/spec/containers/0/livenessProbe/periodSeconds, value: 30}",
    ],
)
def test_what_a_patch_changes_is_not_written(run: Chassis, tmp_path: Path, patch: str) -> None:
    base, overlay = tmp_path / "base", tmp_path / "overlay"
    for directory in (base, overlay):
        directory.mkdir()
    file = base / "api.yaml"
    file.write_text(HAND_WRITTEN)
    (base / "kustomization.yaml").write_text("resources: [api.yaml]\n")
    (overlay / "kustomization.yaml").write_text(f"resources: [../base]\n{patch}\n")
    (overlay / "probe.yaml").write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\n"
        "spec: {template: {spec: {containers: [{name: server, livenessProbe: {periodSeconds: 30}}]}}}\n"
    )
    status, _, errors = run(tmp_path)
    assert status == 2
    assert f"a patch in {overlay / 'kustomization.yaml'} changes the containers" in errors
    assert file.read_text() == HAND_WRITTEN


def test_a_patch_of_something_else_hinders_nothing(run: Chassis, tmp_path: Path) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    (tmp_path / "kustomization.yaml").write_text(
        "resources: [api.yaml]\npatches:\n- target: {kind: Deployment, name: api}\n"
        "  patch: '[{op: replace, path: /spec/replicas, value: 5}]'\n"
    )
    status, _, _ = run(tmp_path)
    assert status == 0
    assert file.read_text() != HAND_WRITTEN


def test_a_file_with_anchors_is_not_changed(run: Chassis, api: Path) -> None:
    shared = HAND_WRITTEN.replace("containers:\n", "containers: &all\n").replace(
        "      # where models", "      initContainers: *all\n      # where models"
    )
    api.write_text(shared)
    status, _, err = run(api)
    assert (status, api.read_text()) == (2, shared)
    assert "api.yaml" in err


def test_line_ends_stay(run: Chassis, api: Path, tmp_path: Path) -> None:
    api.write_bytes(HAND_WRITTEN.replace("\n", "\r\n").removesuffix("\r\n").encode())
    run(api)
    written = api.read_bytes()
    assert written.count(b"\r\n") == written.count(b"\n") > HAND_WRITTEN.count("\n")
    assert left_in(api) == []
    assert list(tmp_path.iterdir()) == [api]


def test_only_the_named_rules(run: Chassis, api: Path) -> None:
    api.write_text(HAND_WRITTEN + NODE)
    assert run("--only", "disruption-guard", api).out == f"{api}: fixed: disruption-guard\n"
    assert "preStop" in api.read_text()
    assert "readinessProbe" not in api.read_text()
    status, _, err = run("--only", "tcp-probe", api)
    assert (status, "tcp-probe has no automatic fix" in err) == (2, True)
    assert run("-").status == 2, "standard input is no file"
    assert "did you mean standard-probes?" in run("--only", "standard-probe", api).err


@pytest.mark.parametrize(
    "spec",
    [
        "spec: {containers: [{name: a, image: 'ollama/ollama:0.5'}]}\n",
        "spec:\n  containers: [\n    {name: a, image: 'ollama/ollama:0.5'},\n  ]\n",
        "spec:\n  containers:\n  - image: |\n      ollama/ollama:0.5\n    name: a\n",
        "spec:\n  containers:\n  -\n    name: a\n    image: ollama/ollama:0.5\n    resources:\n",
        "spec:\n  containers:\n  - name: a\n    image: ollama/ollama:0.5\n# the end",
        "spec:\n  containers:\n  - name: a\n    image: ollama/ollama:0.5",
    ],
)
def test_other_ways_to_write_it(run: Chassis, tmp_path: Path, spec: str) -> None:
    """A file gets the intended objects, or else is not written."""
    file = tmp_path / "pod.yaml"
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{spec}"
    file.write_text(text)
    before = left_in(file)
    status, _, err = run(file)
    if status:
        assert file.read_text() == text
        assert "not changed" in err
    else:
        assert left_in(file) == []
        assert (file.read_text() != text) == bool(before)


def test_spaces_may_end_a_file(run: Chassis, tmp_path: Path) -> None:
    """As an editor leaves them behind the last value."""
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        "spec:\n  containers:\n  - name: a\n    image: ollama/ollama:0.5  \t"
    )
    assert run(file).status == 0
    assert left_in(file) == []


@pytest.mark.parametrize(
    ("header", "written"),
    [("|", "|-"), ("|+", "|-"), (">2", ">2-"), ("|-", "|-"), ("| # a | b", "|- # a | b")],
)
def test_a_block_of_text_at_the_end_keeps_its_value(
    run: Chassis, tmp_path: Path, header: str, written: str
) -> None:
    """Lines follow it, so its last line gets a line break, which is no part of it."""
    file = tmp_path / "job.yaml"
    text = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  template:\n    spec:\n"
        "      restartPolicy: Never\n      containers:\n      - name: a\n        image: a/b:1\n"
        "        command:\n        - sh\n        - -c\n        - HEADER\n          python train.py"
    )
    file.write_text(text.replace("HEADER", header))
    assert run(file).status == 0
    after = file.read_text()
    assert after.startswith(f"{text.replace('HEADER', written)}\n        terminationMessagePolicy:")
    assert left_in(file) == []
    assert run(file).status == 0
    assert file.read_text() == after


# --- where it writes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [(), ("--diff",), ("--dry-run",)], ids="".join)
@pytest.mark.parametrize("through", ["file", "directory", "chain"])
def test_a_link_does_not_lead_out_of_the_given_directory(
    tmp_path: Path, run: Chassis, through: str, flag: tuple[str, ...]
) -> None:
    outside, given = tmp_path / "outside", tmp_path / "given"
    outside.mkdir()
    given.mkdir()
    (outside / "api.yaml").write_text(HAND_WRITTEN)
    match through:
        case "file":
            (given / "api.yaml").symlink_to(outside / "api.yaml")
        case "chain":
            (given / "a.yaml").symlink_to("b.yaml")
            (given / "b.yaml").symlink_to("../outside/api.yaml")
        case "directory":
            (given / "sub").symlink_to(outside)
    (given / "own.yaml").write_text(HAND_WRITTEN)
    status, out, err = run(*flag, given)
    assert (outside / "api.yaml").read_text() == HAND_WRITTEN
    assert "own.yaml" in out
    assert "outside" not in out
    if through != "directory":  # links to directories are not followed at all
        assert status == 2
        assert "outside of the given paths" in err


def test_a_link_that_was_given_itself_is_followed(tmp_path: Path, run: Chassis) -> None:
    (tmp_path / "outside").mkdir()
    file = tmp_path / "outside" / "api.yaml"
    file.write_text(HAND_WRITTEN)
    link, directory = tmp_path / "link.yaml", tmp_path / "link"
    link.symlink_to(file)
    directory.symlink_to(file.parent)
    for given in (link, directory):
        file.write_text(HAND_WRITTEN)
        assert run(given)[0] == 0
        assert file.read_text() != HAND_WRITTEN
        assert given.is_symlink()


def test_a_file_with_several_links_is_fixed_once(tmp_path: Path, run: Chassis, api: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("api.yaml")
    status, out, _ = run(tmp_path)
    assert (status, out.count("fixed")) == (0, 1)
    assert (tmp_path / "a.yaml").is_symlink()
    assert left_in(api) == []


def test_an_existing_link_is_not_written_through(tmp_path: Path, run: Chassis, api: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / ".api.yaml.chassis").symlink_to(precious)
    assert run(api)[0] == 0
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o4755])
def test_mode_and_owner_stay(run: Chassis, mode: int, api: Path) -> None:
    if os.geteuid() == 0:
        os.chown(api, 4711, 4712)
    api.chmod(mode)
    before = api.stat()
    assert run(api)[0] == 0
    after = api.stat()
    assert api.read_text() != HAND_WRITTEN
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.parametrize("call", ["fchown", "fchmod", "fsync", "replace"])
def test_a_write_that_fails_leaves_only_the_file(
    tmp_path: Path, run: Chassis, monkeypatch: pytest.MonkeyPatch, call: str, api: Path
) -> None:
    if os.geteuid() == 0:
        os.chown(api, 4711, 4712)
    elif call == "fchown":
        pytest.skip("its owner is who runs the test")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path if call == "replace" else os, call, refuse)
    status, _, err = run(api)
    assert status == 2
    assert "it can't be replaced: Operation not permitted" in err
    assert api.read_text() == HAND_WRITTEN
    assert list(tmp_path.iterdir()) == [api]


def test_a_file_that_changes_meanwhile_is_left(
    run: Chassis, monkeypatch: pytest.MonkeyPatch, api: Path
) -> None:
    really = fix._fixed

    def edited(*args: Any) -> Any:
        api.write_text("somebody else's\n")
        return really(*args)

    monkeypatch.setattr(fix, "_fixed", edited)
    status, _, err = run(api)
    assert (status, api.read_text()) == (2, "somebody else's\n")
    assert "another program changed it" in err
