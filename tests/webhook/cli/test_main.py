"""The command line: what it reads, prints and exits with."""

import io
import json
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

from webhook.cli import main as cli
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


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "triton.yaml").write_text(TRITON)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = cli.main([str(word) for word in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def reviewed(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    _, out, _ = run(capsys, "review", *argv, "-o", "json")
    records: list[dict[str, Any]] = json.loads(out)
    return records


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_reviewed(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    (files / "template.yaml").write_text("kind: Pod\nmetadata:\n  {{ .Values.metadata }}\n")
    status, out, err = run(capsys, "review", files, "-o", "json")
    assert status == 2, "something was denied, and something was not even read"
    assert any(not each["allowed"] for each in json.loads(out))
    assert "template.yaml: line 3" in err
    assert "a template must be rendered first" in err
    assert len(err.splitlines()) == 1


def test_a_key_that_appears_twice_gets_one_warning_and_the_review_goes_on(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    twice = files / "twice.yaml"
    keys = "  replicas: 1\n  replicas: 2\n  paused: true\n  paused: false\n"
    twice.write_text(TRITON.replace("  replicas: 2\n", keys))
    status, out, err = run(capsys, "review", twice, files / "good.yaml")
    assert (status, err) == (0, "")
    assert out.count("appears twice") == 1
    assert "line 6: the key 'replicas' appears twice; the last value is used" in " ".join(out.split())
    assert "2 objects" in out
    (record,) = reviewed(capsys, twice)
    assert record["object"]["spec"]["replicas"] == 2
    assert record["notes"] == [
        "line 6: the key 'replicas' appears twice; the last value is used, as in Helm and kubectl "
        "(1 more key likewise)."
    ]
    (files / "policy.yaml").write_text(GOOD.replace("data:\n", "data:\n  rules.yaml: a\n"))
    status, _, err = run(capsys, "review", files / "good.yaml", "--policy", files / "policy.yaml")
    assert status == 2, "a policy that can be read two ways is refused"
    assert "the key 'rules.yaml' appears twice" in err


@pytest.mark.parametrize("form", ["json", "yaml", "junit", "sarif", "html"])
def test_a_document_for_programs_is_whole_although_nothing_could_be_read(
    capsys: pytest.CaptureFixture[str], files: Path, form: str
) -> None:
    (files / "template.yaml").write_text("kind: Pod\nmetadata:\n  {{ .Values.metadata }}\n")
    status, out, err = run(capsys, "review", files / "template.yaml", "-o", form)
    assert status == 2
    assert "template.yaml: line 3" in err
    match form:
        case "json":
            assert json.loads(out) == []
        case "yaml":
            assert list(yaml.safe_load_all(out)) == []
        case "junit":
            assert ET.fromstring(out).get("tests") == "0"
        case "sarif":
            assert json.loads(out)["runs"][0]["results"] == []
        case "html":
            assert out.rstrip().endswith("</html>")
    status, out, _ = run(capsys, "review", files / "template.yaml")
    assert (status, out) == (2, "")


def test_statistics_count_by_rule_and_name_unread_parts(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    (files / "template.yaml").write_text("kind: Pod\nmetadata:\n  {{ .Values.metadata }}\n")
    impatient = "livenessProbe: {httpGet: {path: /v2/health/live, port: 8000}, failureThreshold: 1}"
    (files / "impatient.yaml").write_text(f"{TRITON}        {impatient}\n")
    (files / "patch.yaml").write_text(re.sub("  +(image|selector):.*\n", "", TRITON))
    (files / "custom.yaml").write_text("apiVersion: acme.dev/v1\nkind: Robot\nmetadata: {name: a}\n")
    status, out, err = run(capsys, "review", files, "--statistics", "-o", "json")
    assert status == 2
    assert "template.yaml: line 3" in err
    figures = json.loads(out)
    assert (figures["objects"], figures["workloads"]) == (6, 3)
    assert figures["warnings"]["byRule"]["liveness-single-failure"] == {"count": 1, "per100Workloads": 33.33}
    assert figures["refusals"]["byRule"]["policy-config-invalid"]["count"] == 1
    assert figures["refusals"]["objects"] == 1
    assert figures["partial"] == [f"{files}/patch.yaml:1"]
    assert figures["kindsNotRead"] == {"acme.dev/v1 Robot": 1}
    (unread,) = figures["unread"]
    assert unread.startswith(f"{files}/template.yaml: line 3: ")
    _, out, _ = run(capsys, "review", files, "--statistics")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "3 workloads in 6 objects"
    assert "liveness-single-failure 1 33.33" in lines
    assert "Objects that would be refused: 1" in lines
    assert {"Fragments, completed elsewhere: 1", "Kinds not read: 1", "Could not be read: 1"} <= set(lines)
    status, out, err = run(capsys, "review", files, "--statistics", "-o", "yaml")
    assert (status, out) == (2, "")
    assert "--statistics goes with" in err


def test_a_fragment_is_named_as_partly_reviewed(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    patch = files / "patch.yaml"
    patch.write_text(re.sub("  +(image|selector):.*\n", "", TRITON))
    status, out, _ = run(capsys, "review", patch, files / "triton.yaml")
    assert status == 0
    assert " ".join(out.split()).count("Partly reviewed: a fragment") == 1
    assert "warning" not in out.replace("0 warnings", ""), "what it lacks says nothing"


def test_exit_status(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert run(capsys, "review", files / "good.yaml")[0] == 0
    assert run(capsys, "review", files / "bad.yaml")[0] == 1
    assert run(capsys, "review", files)[0] == 1
    assert run(capsys, "review", "-f", files / "good.yaml")[0] == 0


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["review"], "give files"),
        (["review", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["review", "{dir}/good.yaml", "--old", "{dir}/good.yaml"], "--old goes with"),
        (["review", "{dir}/good.yaml", "--policy", "{dir}/none"], "No such file or directory"),
        (["review", "{dir}/good.yaml", "--policy", "{dir}"], "bad.yaml: unknown key"),
        (["policy", "check", "{dir}"], "triton.yaml: unknown key"),
        (["serve"], "--self-signed"),
    ],
)
def test_bad_input_gets_a_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], files: Path, argv: list[str], sentence: str
) -> None:
    status, out, err = run(capsys, *[word.format(dir=files) for word in argv])
    assert status == 2
    assert sentence in err
    assert "Traceback" not in err
    assert out == ""


def test_the_text_names_rule_path_and_mend(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    _, out, _ = run(capsys, "review", files / "bad.yaml", files / "triton.yaml")
    assert f"DENIED ConfigMap mlchassis-policy ({files}/bad.yaml:1)" in out
    assert f"refused policy-config-invalid\n    at data[rules.yaml] ({files}/bad.yaml:7)\n" in out
    assert "Fix: " in out
    assert f"admitted Deployment ml/triton ({files}/triton.yaml:1)" in out
    assert "standard-probes will add to the pods" in out
    assert out.rstrip().splitlines()[-1].startswith("2 objects, 1 changed, ")
    assert "\x1b" not in out, "colour on a terminal only"


def test_the_text_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.chdir(files)
    cli.main(["review", "bad.yaml", "triton.yaml"])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "Fix: " in shown
    assert max(map(len, shown.splitlines())) <= 70


def test_the_diff_adds_probes_and_takes_nothing_away(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    status, out, _ = run(capsys, "review", files / "triton.yaml", "-o", "diff")
    assert status == 0
    lines = [line for line in out.splitlines() if not line.startswith(("---", "+++", "#", "@"))]
    assert any(line.startswith("+") and "livenessProbe" in line for line in lines)
    assert not any(line.startswith("-") for line in lines)


def test_json_is_complete(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    (triton,) = reviewed(capsys, files / "triton.yaml")
    assert {
        key: triton[key] for key in ("kind", "namespace", "name", "document", "allowed", "projected")
    } == {
        "kind": "Deployment",
        "namespace": "ml",
        "name": "triton",
        "document": 0,
        "allowed": True,
        "projected": True,
    }
    assert triton["apiVersion"] == "apps/v1"
    assert triton["source"] == str(files / "triton.yaml")
    assert "standard-probes" in triton["mutations"]
    assert jsonpatch.apply_patch(yaml.safe_load(TRITON), triton["patch"]) == triton["object"]
    (server,) = triton["object"]["spec"]["template"]["spec"]["containers"]
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= server.keys()


def test_json_keeps_audited_and_exempted_findings(
    capsys: pytest.CaptureFixture[str], files: Path, tmp_path: Path
) -> None:
    probe = 'livenessProbe: {exec: {command: [curl, "http://payments/health"]}, timeoutSeconds: 5}'
    hazard = TRITON.replace("        ports:", f"        {probe}\n        ports:")
    exempt = hazard.replace(
        "namespace: ml}",
        'namespace: ml, annotations: {mlchassis.dev/exempt: "liveness-external-dependency=test"}}',
    )
    (tmp_path / "exempt.yaml").write_text(exempt)
    (tmp_path / "hazard.yaml").write_text(hazard)
    (audited,) = reviewed(capsys, tmp_path / "hazard.yaml", "--profile", "observe")
    (exempted,) = reviewed(capsys, tmp_path / "exempt.yaml")
    assert audited["allowed"]
    assert exempted["allowed"]
    (finding,) = (it for it in audited["findings"] if it["rule"] == "liveness-external-dependency")
    assert (finding["mode"], finding["exempted"]) == ("audit", None)
    (guarded,) = reviewed(capsys, files / "bad.yaml", "--profile", "observe")
    assert not guarded["allowed"], "a policy that does not load is refused under every profile"
    assert set(finding) == {"rule", "mode", "path", "message", "hint", "exempted"}
    by_rule = {finding["rule"]: finding["exempted"] for finding in exempted["findings"]}
    assert by_rule["liveness-external-dependency"] == "test"


def test_yaml_is_the_stored_object(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    _, out, _ = run(capsys, "review", files / "triton.yaml", files / "bad.yaml", "-o", "yaml")
    first, second = yaml.safe_load_all(out)
    assert first["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    assert second is None, "what is denied is commented out"
    assert "# denied: policy-config-invalid" in out


def test_junit_counts_refusals_as_failures(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    _, out, _ = run(capsys, "review", files / "good.yaml", files / "bad.yaml", "-o", "junit")
    suite = ET.fromstring(out)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "policy-config-invalid"


def test_sarif_names_rules_levels_and_places(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    _, out, _ = run(capsys, "review", files / "bad.yaml", "-o", "sarif")
    (sarif,) = json.loads(out)["runs"]
    (result,) = sarif["results"]
    assert (result["ruleId"], result["level"]) == ("policy-config-invalid", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": (files / "bad.yaml").as_uri()},
        "region": {"startLine": 7, "endLine": 7},
    }


def test_an_update_is_compared_with_the_old_object(
    capsys: pytest.CaptureFixture[str], files: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer.yaml"
    newer.write_text(BAD.replace("data:\n", 'data:\n  webhook.yaml: "onError: allow"\n'))
    update = ["review", newer, "--operation", "UPDATE"]
    status, out, _ = run(capsys, *update, "--old", files / "bad.yaml")
    assert status == 0
    assert "Not refused: it was there before this update." in out
    assert run(capsys, *update, "--old", files / "good.yaml")[0] == 1
    assert run(capsys, *update)[0] == 1, "what was not there is being created"


def test_warnings_as_errors(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    arguments = ["review", files / "bad.yaml", "--policy", files / "policy"]
    (files / "policy").mkdir()
    (files / "policy" / "rules.yaml").write_text("modes: {policy-config-invalid: warn}\n")
    assert run(capsys, *arguments)[0] == 0
    assert run(capsys, *arguments, "--warnings-as-errors")[0] == 1


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    status, out, _ = run(capsys, "review", "-")
    assert (status, out) == (0, "1 object, 0 changed, 0 warnings, 0 denied\n")


def test_other_yaml_may_be_passed_over(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    assert run(capsys, "review", tmp_path / "values.yaml")[0] == 2
    assert run(capsys, "review", tmp_path / "values.yaml", "--skip-non-kubernetes")[0] == 0


def test_policy_check_and_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("profile: strict\n")
    status, out, _ = run(capsys, "policy", "check", tmp_path)
    assert status == 0
    assert "the policy is good (profile strict" in out
    (tmp_path / "worker-names.yaml").write_text("strategy: slot\n")
    status, out, _ = run(capsys, "policy", "check", tmp_path)
    assert status == 0
    assert out.startswith("worker-names.yaml: strategy: the setting strategy was removed")
    status, out, _ = run(capsys, "policy", "schema")
    assert status == 0
    assert "standard-probes.yaml" in json.loads(out)["properties"]


def test_a_reader_that_goes_away_is_no_error(files: Path) -> None:
    command = f"{sys.executable} -m webhook.cli review {files / 'triton.yaml'} -o yaml | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("# ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize("argv", [["--version"], ["--help"]])
def test_a_command_that_prints_a_line_needs_neither_settings_nor_policies(argv: list[str]) -> None:
    script = (
        "import sys\n"
        "from webhook.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'policies', 'pydantic', 'yaml'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_review_imports_nothing_of_the_server_nor_the_formats_that_it_does_not_print(
    tmp_path: Path,
) -> None:
    (tmp_path / "pod.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}}")
    script = (
        "import sys\n"
        "from webhook.cli.main import main\n"
        "status = main(['review', sys.argv[1]])\n"
        "print(status, *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    status, *imported = done.stdout.splitlines()[-1].split()
    assert status == "0"
    assert "webhook.cli.output.text" in imported
    unasked = {f"webhook.cli.output.{form}" for form in ("diff", "json", "junit", "sarif", "policyreport")}
    unneeded = {
        *("aiohttp", "asyncio", "cryptography", "jinja2", "jsonpatch", "kubernetes", "obstore"),
        *("prometheus_client",),
        *("rich", "structlog", "uvloop", "watchfiles", "yarl", "zstandard", "xml", "webhook.server"),
    }
    found = {name for name in imported if name in unasked or unneeded & {name, name.partition(".")[0]}}
    assert found == set()


def test_a_review_reads_the_documents_of_the_rules_that_found_something_and_looks_for_no_plugins(
    files: Path,
) -> None:
    script = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **_: print('plugins') or ()\n"
        "from policies.core import data\n"
        "read = data._read\n"
        "data._read = lambda file: print('read', file.parent.name, file.name) or read(file)\n"
        "from webhook.cli.main import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "review", "bad.yaml"], cwd=files, capture_output=True, text=True
    )
    assert "refused policy-config-invalid" in done.stdout
    read = [line for line in done.stdout.splitlines() if line.startswith("read ")]
    assert "read config policy-config-invalid.yaml" in read
    assert [line for line in read if line.startswith("read rules ")] == []
    assert "plugins" not in done.stdout.splitlines()


def test_every_command_describes_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (_, about) in cli.COMMANDS.items():
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: chassis {name}")
        assert "-h, --help" in shown
        assert about


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
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pods.yaml").write_text(HAZARDS)
    status, out, _ = run(capsys, "review", "pods.yaml")
    assert status == 1
    assert "DENIED Pod shop/one (pods.yaml:5)\n" in out
    assert (
        "  refused liveness-external-dependency\n"
        "    at spec.containers[0].livenessProbe.exec.command (pods.yaml:16)\n"
    ) in out
    exempted = out.partition("admitted Pod ml/two (pods.yaml:17)\n")[2].partition("\n\n")[0]
    assert "  exempted liveness-external-dependency\n" in exempted
    assert "    Reason: its own proxy answers" in exempted
    totals = out.partition("Findings by rule\n")[2]
    assert totals.startswith("  liveness-external-dependency  1 refused, 1 exempted\n")
    by_namespace = totals.partition("Findings by namespace\n")[2]
    assert [line.split() for line in by_namespace.splitlines()[:2]] == [
        ["shop", "1", "refused"],
        ["ml", "1", "exempted"],
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "terminal", "coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": ""}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_are_for_terminals_and_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, files: Path, variables: dict[str, str], terminal: bool, coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out := Terminal() if terminal else io.StringIO())
    cli.main(["review", str(files / "bad.yaml")])
    assert ("\x1b[" in out.getvalue()) == coloured


@pytest.mark.parametrize(
    ("color", "variable", "terminal"),
    [("always", "NO_COLOR", False), ("never", "FORCE_COLOR", True), ("never", "TERM", True)],
)
def test_the_flag_for_colours_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, files: Path, color: str, variable: str, terminal: bool
) -> None:
    monkeypatch.setattr(os, "environ", {"TERM": "xterm", variable: "1"})
    monkeypatch.setattr(sys, "stdout", out := Terminal() if terminal else io.StringIO())
    cli.main(["review", "--color", color, str(files / "bad.yaml")])
    assert ("\x1b[" in out.getvalue()) == (color == "always")


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["review", "--nope"], "chassis review"),
        (["policy", "diff", "a"], "chassis policy diff"),
        (["scan", "-o", "nope"], "chassis scan"),
        (["nope"], "chassis"),
        ([], "chassis"),
    ],
)
def test_a_wrong_argument_is_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], command: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"{command}: ")
    assert shown.endswith(f"; {command} --help lists the arguments\n")
    assert shown.count("\n") == 1


def test_a_manifest_cannot_control_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_lines([("a\x1b[2J\x9b1m\r\tb", "bold red"), ("a\x07 é", "")])
    assert out.getvalue() == "\x1b[1;31ma\\x1b[2J\\x9b1m\\x0d\tb\x1b[0m\na\\x07 é\n"


def test_the_help_lists_every_command_once() -> None:
    assert sorted(name for names in cli.GROUPS.values() for name in names) == sorted(cli.COMMANDS)
