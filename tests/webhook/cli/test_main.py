"""The command line: its input, output and exit status."""

import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from tests.webhook.cli.scanned import RULE, Chassis
from webhook.cli import main as cli
from webhook.cli.examples import EXAMPLES
from webhook.cli.terminal import print_lines

GOOD = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: mlchassis-policy
  labels: {mlchassis.dev/policy: "true"}
data:
  rules.yaml: "profile: strict"
"""
BAD = GOOD.replace("profile: strict", "profile: stern")
TRITON = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: triton, namespace: ml}
spec:
  replicas: 2
  selector: {matchLabels: {app: triton}}
  template:
    metadata: {labels: {app: triton}}
    spec:
      containers:
      - name: server
        image: nvcr.io/nvidia/tritonserver:24.12-py3
        ports: [{containerPort: 8000}]
"""
TEMPLATE = "kind: Pod\nmetadata:\n  {{ .Values.metadata }}\n"
FRAGMENT = re.sub("  +(image|selector):.*\n", "", TRITON)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "triton.yaml").write_text(TRITON)
    return tmp_path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def python(script: str, *argv: object, cwd: Path | None = None) -> list[str]:
    """The output lines of a Python process."""
    command = [sys.executable, "-c", script, *map(str, argv)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True).stdout.splitlines()


# --- input ---------------------------------------------------------------------------------------------


def test_an_unreadable_file_is_named_and_the_others_are_reviewed(chassis: Chassis, files: Path) -> None:
    (files / "template.yaml").write_text(TEMPLATE)
    answer = chassis("review", files, "-o", "json")
    assert answer.status == 2, "a file that was not read counts more than a denial"
    assert any(not each["allowed"] for each in answer.json)
    assert "template.yaml: line 3" in answer.err
    assert "a template must be rendered first" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_repeated_key_gets_one_warning(chassis: Chassis, files: Path) -> None:
    twice = files / "twice.yaml"
    keys = "  replicas: 1\n  replicas: 2\n  paused: true\n  paused: false\n"
    twice.write_text(TRITON.replace("  replicas: 2\n", keys))
    status, out, err = chassis("review", twice, files / "good.yaml")
    assert (status, err) == (0, "")
    assert out.count("appears twice") == 1
    assert "line 6: the key 'replicas' appears twice; the last value is used" in " ".join(out.split())
    assert "2 objects" in out
    (record,) = chassis("review", twice, "-o", "json").json
    assert record["object"]["spec"]["replicas"] == 2
    assert record["notes"] == [
        "line 6: the key 'replicas' appears twice; the last value is used, as in Helm and kubectl "
        "(1 more key likewise)."
    ]
    (files / "policy.yaml").write_text(GOOD.replace("data:\n", "data:\n  rules.yaml: a\n"))
    status, _, err = chassis("review", files / "good.yaml", "--policy", files / "policy.yaml")
    assert status == 2, "an ambiguous policy is refused"
    assert "the key 'rules.yaml' appears twice" in err


def test_nothing_is_promised_in_silence(chassis: Chassis, files: Path) -> None:
    container = "{name: kserve-container, image: 'vllm/vllm-openai:v0.8.5'}"
    head = "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: r}\n"
    (files / "runtime.yaml").write_text(f"{head}spec: {{containers: [{container}]}}\n")
    status, out, _ = chassis("review", files / "runtime.yaml")
    assert status == 0
    assert "The operator merges other objects into these pods" in " ".join(out.split())


def test_a_fragment_is_named_as_partly_reviewed(chassis: Chassis, files: Path) -> None:
    (files / "patch.yaml").write_text(FRAGMENT)
    status, out, _ = chassis("review", files / "patch.yaml", files / "triton.yaml")
    assert status == 0
    assert " ".join(out.split()).count("Partly reviewed: a fragment") == 1
    assert "warning" not in out.replace("0 warnings", ""), "its missing fields give no finding"
    (files / "patch.yaml").write_text(
        """apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: llm
        image: vllm/vllm-openai:v0.16.0
        lifecycle: {preStop: {exec: {command: [sleep, "10"]}}}
"""
    )
    _, out, _ = chassis("review", files / "patch.yaml")
    assert "server-without-accelerator" not in out, "another file may request the GPU"
    assert "  warning grace-shorter-than-prestop\n" in out


def test_standard_input(chassis: Chassis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert chassis("review", "-")[:2] == (0, "1 object, 0 changed, 0 warnings, 0 denied\n")


def test_other_yaml_may_be_skipped(chassis: Chassis, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    assert chassis("review", tmp_path / "values.yaml").status == 2
    assert chassis("review", tmp_path / "values.yaml", "--skip-non-kubernetes").status == 0


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("review", "review: specify a file, a directory, or - for standard input"),
        ("review nowhere.yaml", "nowhere.yaml: No such file"),
        ("review {dir}/good.yaml --old {dir}/good.yaml", "--old requires"),
        ("review {dir}/good.yaml --policy {dir}/none", "No such file or directory"),
        ("review {dir}/good.yaml --policy {dir}", "bad.yaml: unknown key"),
        ("review {dir} --statistics -o yaml", "--statistics can only be used with"),
        ("policy check {dir}", "triton.yaml: unknown key"),
        ("serve", "--self-signed"),
    ],
)
def test_bad_input_gets_a_sentence_and_status_2(
    chassis: Chassis, files: Path, argv: str, sentence: str
) -> None:
    status, out, err = chassis(*argv.format(dir=files).split())
    assert (status, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("review --nope", "chassis review"),
        ("policy diff a", "chassis policy diff: the following arguments are required: NEW"),
        ("scan -o nope", "chassis scan"),
        ("nope", "chassis"),
        ("", "chassis"),
    ],
)
def test_a_wrong_argument_is_one_line(capsys: pytest.CaptureFixture[str], argv: str, command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv.split())
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith((f"{command}: ", f"{command};"))
    assert shown.endswith(f"; {command.partition(':')[0]} --help lists the arguments\n")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        ("reveiw x", "review"),
        ("review --outptu json x", "--output"),
        ("review --outptu=json x", "--output"),
        ("review -o jsno x", "json"),
        ("policy chek x", "check"),
        ("policy diff --contxt x a b", "--context"),
    ],
)
def test_a_misspelt_argument_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str], argv: str, meant: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(argv.split())
    assert f"; did you mean {meant}?" in capsys.readouterr().err


def test_a_kustomization_is_named_as_for_kubectl(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = chassis("review", "-k", tmp_path)
    assert (status, err) == (2, f"chassis: review: -k {tmp_path}: the directory has no kustomization.yaml\n")
    (tmp_path / "kustomization.yaml").write_text("resources: []\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = chassis("review", "-k", tmp_path)
    assert status == 2
    assert f"kubectl kustomize {tmp_path} | chassis review -" in err


# --- exit status ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "status"),
    [("{dir}/good.yaml", 0), ("-f {dir}/good.yaml", 0), ("{dir}/bad.yaml", 1), ("{dir}", 1)],
)
def test_exit_status(chassis: Chassis, files: Path, argv: str, status: int) -> None:
    assert chassis("review", *argv.format(dir=files).split()).status == status


def test_warnings_as_errors(chassis: Chassis, files: Path) -> None:
    (files / "policy").mkdir()
    (files / "policy" / "rules.yaml").write_text("modes: {policy-config-invalid: warn}\n")
    argv = ("review", files / "bad.yaml", "--policy", files / "policy")
    assert chassis(*argv).status == 0
    assert chassis(*argv, "--warnings-as-errors").status == 1


def test_an_update_is_compared_with_the_old_object(chassis: Chassis, files: Path) -> None:
    (files / "newer.yaml").write_text(BAD.replace("data:\n", 'data:\n  webhook.yaml: "onError: allow"\n'))
    update = ("review", files / "newer.yaml", "--operation", "UPDATE")
    status, out, _ = chassis(*update, "--old", files / "bad.yaml")
    assert status == 0
    assert "Not refused: the object already had it before this update." in out
    assert chassis(*update, "--old", files / "good.yaml").status == 1
    assert chassis(*update).status == 1, "an object without an old one is created"


# --- formats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "yaml", "junit", "sarif", "html", "text"])
def test_the_output_without_a_readable_file(chassis: Chassis, files: Path, form: str) -> None:
    (files / "template.yaml").write_text(TEMPLATE)
    answer = chassis("review", files / "template.yaml", "-o", form)
    assert answer.status == 2
    assert "template.yaml: line 3" in answer.err
    match form:
        case "json":
            assert answer.json == []
        case "yaml":
            assert list(yaml.safe_load_all(answer.out)) == []
        case "junit":
            assert ET.fromstring(answer.out).get("tests") == "0"
        case "sarif":
            assert answer.json["runs"][0]["results"] == []
        case "html":
            assert answer.out.rstrip().endswith("</html>")
        case "text":
            assert answer.out == ""


def test_statistics_count_by_rule_and_name_unread_parts(chassis: Chassis, files: Path) -> None:
    (files / "template.yaml").write_text(TEMPLATE)
    impatient = "livenessProbe: {httpGet: {path: /v2/health/live, port: 8000}, failureThreshold: 1}"
    (files / "impatient.yaml").write_text(f"{TRITON}        {impatient}\n")
    (files / "patch.yaml").write_text(FRAGMENT)
    (files / "custom.yaml").write_text("apiVersion: acme.dev/v1\nkind: Robot\nmetadata: {name: a}\n")
    answer = chassis("review", files, "--statistics", "-o", "json")
    assert answer.status == 2
    assert "template.yaml: line 3" in answer.err
    figures = answer.json
    assert (figures["objects"], figures["workloads"]) == (6, 3)
    assert figures["warnings"]["byRule"]["liveness-single-failure"] == {"count": 1, "per100Workloads": 33.33}
    assert figures["refusals"]["byRule"]["policy-config-invalid"]["count"] == 1
    assert figures["refusals"]["objects"] == 1
    assert figures["partial"] == [f"{files}/patch.yaml:1"]
    assert figures["kindsNotRead"] == {"acme.dev/v1 Robot": 1}
    (unread,) = figures["unread"]
    assert unread.startswith(f"{files}/template.yaml: line 3: ")
    lines = [" ".join(line.split()) for line in chassis("review", files, "--statistics").out.splitlines()]
    assert lines[0] == "3 workloads in 6 objects"
    assert "liveness-single-failure 1 33.33" in lines
    assert "Objects that would be refused: 1" in lines
    assert {"Fragments, completed elsewhere: 1", "Kinds not read: 1", "Could not be read: 1"} <= set(lines)


def test_the_text_names_rule_path_and_fix(chassis: Chassis, files: Path) -> None:
    out = chassis("review", files / "bad.yaml", files / "triton.yaml").out
    assert f"DENIED ConfigMap mlchassis-policy ({files}/bad.yaml:1)" in out
    assert f"refused policy-config-invalid\n    at data[rules.yaml] ({files}/bad.yaml:7)\n" in out
    assert "Fix: " in out
    assert f"admitted Deployment ml/triton ({files}/triton.yaml:1)" in out
    assert "standard-probes will add to the pods" in out
    assert out.rstrip().splitlines()[-1].startswith("2 objects, 1 changed, ")
    assert "\x1b" not in out, "colour is for terminals"


ROLES = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: ddp}
spec:
  runPolicy: {backoffLimit: 3}
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: Never, template: TEMPLATE}
    Worker: {replicas: 3, restartPolicy: Never, template: TEMPLATE}
""".replace(
    "TEMPLATE",
    "{spec: {containers: [{name: pytorch, image: a:1, resources: {limits: {nvidia.com/gpu: 1}}}]}}",
)


def test_the_text_says_which_of_several_templates_gets_fields_and_says_it_once(
    chassis: Chassis, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(ROLES)
    heads = [line for line in chassis("review", tmp_path).out.splitlines() if "gpu-affinity" in line]
    places = "spec.pytorchReplicaSpecs.Master.template, spec.pytorchReplicaSpecs.Worker.template"
    assert " ".join(heads).split(" of ")[0] == "  + gpu-affinity will add to the pods"
    assert places in " ".join(chassis("review", tmp_path).out.split())
    assert len(heads) == 1


HAZARDS = """\
# two of them
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: one, namespace: shop}
  spec: &asks
    containers:
    - name: main
      image: registry.example/a:1
      ports: [{containerPort: 80}]
      livenessProbe:
        timeoutSeconds: 5
        exec:
          command: [curl, "http://payments/health"]
- apiVersion: v1
  kind: Pod
  metadata:
    name: two
    namespace: ml
    annotations: {mlchassis.dev/exempt: "liveness-external-dependency=its own proxy answers"}
  spec: *asks
"""


def test_the_text_has_lines_exemptions_and_totals(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pods.yaml").write_text(HAZARDS)
    status, out, _ = chassis("review", "pods.yaml")
    assert status == 1
    assert "DENIED Pod shop/one (pods.yaml:5)\n" in out
    assert f"  refused {RULE}\n    at spec.containers[0].livenessProbe.exec.command (pods.yaml:16)\n" in out
    exempted = out.partition("admitted Pod ml/two (pods.yaml:17)\n")[2].partition("\n\n")[0]
    assert f"  exempted {RULE}\n" in exempted
    assert "    Reason: its own proxy answers" in exempted
    totals = out.partition("Findings by rule\n")[2]
    assert totals.startswith(f"  {RULE}  1 refused, 1 exempted\n")
    by_namespace = totals.partition("Findings by namespace\n")[2].splitlines()
    assert [line.split() for line in by_namespace[:2]] == [["shop", "1", "refused"], ["ml", "1", "exempted"]]


def test_what_several_files_repeat_is_printed_once(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = HAZARDS.replace(
        "    - name: main", "    - lifecycle: {preStop: {sleep: {seconds: 9}}}\n      name: main"
    )
    for number in range(1, 9):
        Path(str(number)).mkdir()
        Path(f"{number}/pods.yaml").write_text(HAZARDS if number < 8 else other)
    status, out, _ = chassis("review", ".")
    assert status == 1
    assert out.count(f"refused {RULE}\n") == 1
    assert (
        """
    The same in 7 other places: 2/pods.yaml:16, 3/pods.yaml:16, 4/pods.yaml:16, 5/pods.yaml:16,
      6/pods.yaml:16, and 2 more
"""
        in out
    )
    titles = [line for line in out.splitlines() if line.startswith("DENIED")]
    assert titles == ["DENIED Pod shop/one (1/pods.yaml:5)", "DENIED Pod shop/one (8/pods.yaml:5)"]
    assert f"\n  refused {RULE}, as in 1/pods.yaml:5\n" in out, "its changes are others"
    assert f"\n  {RULE}  1 refused, 1 exempted\n" in out
    assert "\n  shop  8 refused\n" in out
    assert out.endswith("0 warnings, 8 denied\n")
    assert len(chassis("review", ".", "-o", "json").json) == 16


def test_stages_of_one_base_repeat_a_finding(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for stage in ("base", "dev", "staging", "prod", "other"):
        name = {"base": "one", "other": "one-of-two", "prod": "prod-one"}.get(stage, f"one-{stage}")
        Path(f"{stage}.yaml").write_text(HAZARDS.replace("name: one", f"name: {name}"))
    _, out, _ = chassis("review", ".")
    assert out.count(f"refused {RULE}\n") == 2, "another name is another object"
    places = "one-dev (dev.yaml:16), prod-one (prod.yaml:16), one-staging (staging.yaml:16)"
    assert f"The same in 3 other places: {places}" in " ".join(out.split())
    found = [each["name"] for each in chassis("review", ".", "-o", "json").json if "one" in each["name"]]
    assert found == ["one", "one-dev", "one-of-two", "prod-one", "one-staging"], "JSON has all of them"
    Path("base.yaml").rename("second.yaml")
    Path("a.yaml").write_text(Path("dev.yaml").read_text())
    places = "dev.yaml:16, prod-one (prod.yaml:16), one (second.yaml:16), one-staging (staging.yaml:16)"
    out = " ".join(chassis("review", ".").out.split())
    assert f"The same in 4 other places: {places}" in out, "the name, where it is not that of the first"


def test_objects_of_one_unknown_kind_share_a_note(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: NAME, namespace: shop}\n"
    Path("a.yaml").write_text("---\n".join(widget.replace("NAME", name) for name in ("one", "two")))
    for name in ("three", "four"):
        Path(f"{name}.yaml").write_text(widget.replace("NAME", name))
    out = chassis("review", ".").out
    assert out.count("! not reviewed: kind Widget") == 1
    places = "shop/two (a.yaml:5), shop/four (four.yaml:1), shop/three (three.yaml:1)"
    assert f"The same in 3 other places: {places} 4 objects" in " ".join(out.split())
    assert "4 objects (4 not reviewed)" in out


def test_warnings_are_counted_with_and_without_repetitions(
    chassis: Chassis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = """apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: NAMESPACE}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template: {spec: {restartPolicy: Never, containers: [{name: m, image: "r/m:1", command: [report]}]}}
"""
    Path("a.yaml").write_text("\n---\n".join(job.replace("NAMESPACE", each) for each in ("dev", "test")))
    Path("b.yaml").write_text(job.replace("NAMESPACE", "prod"))
    out = chassis("review", ".").out
    assert out.count("  warning cron-job-piles-up\n") == 2, "two objects of one file are two problems"
    assert "    The same in 1 other place: b.yaml:4\n" in out
    assert out.endswith("2 warnings (3 with repetitions), 0 denied\n")
    distinct = chassis("review", ".", "--statistics", "-o", "json").json["warnings"]["distinct"]
    assert distinct == {"total": 1, "per100Workloads": 33.33}, "one message"
    statistics = chassis("review", ".", "--statistics").out
    assert "100.0 per 100 workloads; each message once: 1, 33.3 per 100 workloads\n" in statistics


def test_the_diff_adds_probes_and_removes_no_line(chassis: Chassis, files: Path) -> None:
    status, out, _ = chassis("review", files / "triton.yaml", "-o", "diff")
    assert status == 0
    lines = [line for line in out.splitlines() if not line.startswith(("---", "+++", "#", "@"))]
    assert any(line.startswith("+") and "livenessProbe" in line for line in lines)
    assert not any(line.startswith("-") for line in lines)


def test_json_is_complete(chassis: Chassis, files: Path) -> None:
    (triton,) = chassis("review", files / "triton.yaml", "-o", "json").json
    expected: dict[str, Any] = {
        "kind": "Deployment",
        "namespace": "ml",
        "name": "triton",
        "apiVersion": "apps/v1",
    }
    expected |= {"document": 0, "allowed": True, "projected": True, "source": str(files / "triton.yaml")}
    assert {key: triton[key] for key in expected} == expected
    assert "standard-probes" in triton["mutations"]
    assert jsonpatch.apply_patch(yaml.safe_load(TRITON), triton["patch"]) == triton["object"]
    (server,) = triton["object"]["spec"]["template"]["spec"]["containers"]
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= server.keys()


def test_json_keeps_audited_and_exempted_findings(chassis: Chassis, files: Path) -> None:
    probe = 'livenessProbe: {exec: {command: [curl, "http://payments/health"]}, timeoutSeconds: 5}'
    hazard = TRITON.replace("        ports:", f"        {probe}\n        ports:")
    exemption = f'namespace: ml, annotations: {{mlchassis.dev/exempt: "{RULE}=test"}}}}'
    (files / "exempt.yaml").write_text(hazard.replace("namespace: ml}", exemption))
    (files / "hazard.yaml").write_text(hazard)

    def review(name: str, *argv: str) -> tuple[bool, dict[str, Any]]:
        (record,) = chassis("review", files / name, *argv, "-o", "json").json
        return record["allowed"], {finding["rule"]: finding for finding in record["findings"]}

    allowed, audited = review("hazard.yaml", "--profile", "observe")
    assert allowed
    assert (audited[RULE]["mode"], audited[RULE]["exempted"]) == ("audit", None)
    assert set(audited[RULE]) == {"rule", "mode", "path", "message", "hint", "exempted", "others"}
    allowed, exempted = review("exempt.yaml")
    assert allowed
    assert exempted[RULE]["exempted"] == "test"
    allowed, _ = review("bad.yaml", "--profile", "observe")
    assert not allowed, "a policy that does not load is refused under every profile"


def test_sarif_names_rules_levels_and_places(chassis: Chassis, files: Path) -> None:
    (sarif,) = chassis("review", files / "bad.yaml", "-o", "sarif").json["runs"]
    (result,) = sarif["results"]
    assert (result["ruleId"], result["level"]) == ("policy-config-invalid", "error")
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": (files / "bad.yaml").as_uri()},
        "region": {"startLine": 7, "endLine": 7},
    }


# --- terminals -----------------------------------------------------------------------------------------


def test_the_text_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.chdir(files)
    cli.main(["review", "bad.yaml", "triton.yaml"])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "Fix: " in shown
    assert max(map(len, shown.splitlines())) <= 70


@pytest.mark.parametrize(
    ("variables", "terminal", "flags", "colored"),
    [
        ({}, True, (), True),
        ({}, False, (), False),
        ({"NO_COLOR": "1"}, True, (), False),
        ({"NO_COLOR": ""}, True, (), True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, (), True),
        ({"FORCE_COLOR": ""}, False, (), False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, (), False),
        ({"TERM": "dumb"}, True, (), False),
        ({"NO_COLOR": "1"}, False, ("--color", "always"), True),
        ({"FORCE_COLOR": "1"}, True, ("--color", "never"), False),
        ({}, True, ("--color", "never"), False),
    ],
)
def test_colours_are_for_terminals_or_on_request(
    monkeypatch: pytest.MonkeyPatch,
    files: Path,
    variables: dict[str, str],
    terminal: bool,
    flags: tuple[str, ...],
    colored: bool,
) -> None:
    monkeypatch.setattr(os, "environ", {"TERM": "xterm"} | variables)
    monkeypatch.setattr(sys, "stdout", out := Terminal() if terminal else io.StringIO())
    cli.main(["review", *flags, str(files / "bad.yaml")])
    assert ("\x1b[" in out.getvalue()) == colored


def test_a_manifest_cannot_control_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setattr(os, "environ", {"TERM": "xterm"})
    print_lines([("a\x1b[2J\x9b1m\r\tb", "bold red"), ("a\x07 é", "")])
    assert out.getvalue() == "\x1b[1;31ma\\x1b[2J\\x9b1m\\x0d\tb\x1b[0m\na\\x07 é\n"


def test_a_closed_pipe_is_no_error(files: Path) -> None:
    command = f"{sys.executable} -m webhook.cli review {files / 'triton.yaml'} -o yaml | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("# ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


# --- commands ------------------------------------------------------------------------------------------


def test_policy_check_and_schema(chassis: Chassis, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("profile: strict\n")
    status, out, _ = chassis("policy", "check", tmp_path)
    assert status == 0
    assert "the policy is valid (profile strict" in out
    (tmp_path / "empty").mkdir()
    answer = chassis("policy", "check", tmp_path / "empty")
    assert answer.status == 2, "a wrong directory is not a valid policy"
    assert "the directory has no file of a policy" in answer.err
    (tmp_path / "worker-names.yaml").write_text("strategy: slot\n")
    status, out, _ = chassis("policy", "check", tmp_path)
    assert status == 0
    assert out.startswith("worker-names.yaml: strategy: the setting strategy was removed")
    assert "standard-probes.yaml" in chassis("policy", "schema").json["properties"]


def test_every_command_has_help_and_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in cli.GROUPS.values() for name in names) == sorted(cli.COMMANDS)
    for name, (_, about) in cli.COMMANDS.items():
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: chassis {name}")
        assert "-h, --help" in shown
        assert about
        assert f"\nexamples:\n  chassis {name}" in shown


@pytest.mark.parametrize(
    "words", ["policy check", "policy diff", "policy test", "policy schema", "certs issue", "certs show"]
)
def test_every_subcommand_has_examples(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*words.split(), "--help"])
    _, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    assert examples
    assert all(line.startswith(f"  chassis {words}") for line in examples.splitlines())


def test_the_examples_of_help_are_accepted() -> None:
    assert EXAMPLES.keys() == cli.COMMANDS.keys()
    parser = cli.whole_parser()
    for command, examples in EXAMPLES.items():
        for arguments, about in examples:
            assert about
            if "--help" not in arguments:
                parser.parse_args([command, *arguments.split()])


# --- imports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_version_and_help_import_neither_settings_nor_policies(flag: str) -> None:
    script = (
        "import sys\n"
        "from webhook.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'policies', 'pydantic', 'yaml'}))\n"
    )
    assert python(script, flag)[-1] == "[]"


def test_a_review_imports_neither_the_server_nor_other_formats(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}}")
    script = (
        "import sys\n"
        "from webhook.cli.main import main\n"
        "status = main(['review', sys.argv[1]])\n"
        "print(status, *sys.modules)\n"
    )
    status, *imported = python(script, tmp_path)[-1].split()
    assert status == "0"
    assert "webhook.cli.output.text" in imported
    formats = {f"webhook.cli.output.{form}" for form in ("diff", "json", "junit", "sarif", "policyreport")}
    unneeded = {
        *(
            "aiohttp",
            "asyncio",
            "cryptography",
            "jinja2",
            "jsonpatch",
            "kubernetes",
            "obstore",
            "pydantic",
            "rich",
        ),
        *("prometheus_client", "structlog", "uvloop", "watchfiles", "yarl", "zstandard", "xml"),
        "webhook.server",
    }
    found = {name for name in imported if name in formats or unneeded & {name, name.partition(".")[0]}}
    assert found == set()


def test_a_review_reads_only_the_documents_of_rules_with_findings_and_no_plugins(files: Path) -> None:
    script = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **_: print('plugins') or ()\n"
        "from policies.core import data\n"
        "read = data._read\n"
        "data._read = lambda file: print('read', file.parent.name, file.name) or read(file)\n"
        "from webhook.cli.main import main\n"
        "sys.exit(main())\n"
    )
    lines = python(script, "review", "bad.yaml", cwd=files)
    assert "  refused policy-config-invalid" in lines
    assert "read config policy-config-invalid.yaml" in lines
    assert not [line for line in lines if line.startswith("read rules ") or line == "plugins"]
