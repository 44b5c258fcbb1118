"""`chassis fix`: what it writes, what it leaves as it was, and what it does not touch."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from webhook.cli import fix
from webhook.cli import main as cli
from webhook.cli.output.review import review_documents
from webhook.config.load import load, rules
from webhook.kube.offline import ManifestCluster, read

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


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = cli.main(["fix", *map(str, argv)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def left_in(*paths: Path) -> list[str]:
    """What the policies would still add, and the findings that have a remedy."""
    documents = read([str(path) for path in paths])
    cluster = ManifestCluster([document.obj for document in documents])
    config = fix._without_annotation(load({}))
    return [
        name
        for review in review_documents(documents, config, cluster)
        for name in (*review.mutations, *(each.rule for each in review.decision.results))
        if name in review.mutations or name in fix.FIXES
    ]


def test_comments_order_and_every_other_line_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    assert left_in(file)
    status, out, err = run(capsys, file)
    assert (status, err) == (0, "")
    assert out.startswith(f"{file}: fixed: ")
    after = file.read_text().splitlines()
    changes = difflib.ndiff(HAND_WRITTEN.splitlines(), after)
    gone = [line for line in changes if line.startswith("- ")]
    assert gone == ["-             failureThreshold: 1     # too eager"]
    assert "            failureThreshold: 6     # too eager" in after
    assert "            periodSeconds: 30" in after
    comment = after.index("      # where models are kept")
    assert after[comment + 1] == "      volumes:", "what is new does not come between a comment and its field"
    assert left_in(file) == []


def test_a_second_run_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text(HAND_WRITTEN)
    run(capsys, tmp_path)
    once = (tmp_path / "api.yaml").read_text()
    assert run(capsys, tmp_path) == (0, "", "")
    assert (tmp_path / "api.yaml").read_text() == once


def test_every_example_can_be_mended(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for file in EXAMPLES.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    status, out, err = run(capsys, tmp_path)
    assert (status, err) == (0, "")
    assert len(out.splitlines()) > 10
    for file in EXAMPLES.glob("*.yaml"):
        kept = iter((tmp_path / file.name).read_text().splitlines())
        assert all(line in kept for line in file.read_text().splitlines()), file
    assert left_in(tmp_path) == []
    assert run(capsys, tmp_path) == (0, "", "")


def test_the_bad_case_of_each_remedy_is_mended(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in fix.FIXES:
        file = tmp_path / f"{name}.yaml"
        file.write_text(rules()[name].document.bad)
        assert name in left_in(file)
        run(capsys, "--only", name, file)
        assert name not in left_in(file), file.read_text()


@pytest.mark.parametrize("flag", ["--diff", "--dry-run"])
def test_it_may_only_show_the_edits(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    status, out, _ = run(capsys, flag, file)
    assert status == 0
    assert file.read_text() == HAND_WRITTEN
    assert ("+          readinessProbe:\n" in out) == (flag == "--diff")
    assert ("would be fixed" in out) == (flag == "--dry-run")


def test_an_unreadable_file_is_named_and_not_touched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    template = "kind: Pod\nmetadata:\n  {{ .Values.metadata }}\n"
    (tmp_path / "template.yaml").write_text(template)
    (tmp_path / "api.yaml").write_text(HAND_WRITTEN)
    status, out, err = run(capsys, tmp_path)
    assert status == 2
    assert "api.yaml: fixed" in out
    assert err.count("\n") == 1
    assert "not changed: " in err
    assert "template.yaml: line 3" in err
    assert "a template must be rendered first" in err
    assert (tmp_path / "template.yaml").read_text() == template


def test_what_anchors_share_is_not_touched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shared = HAND_WRITTEN.replace("containers:\n", "containers: &all\n").replace(
        "      # where models", "      initContainers: *all\n      # where models"
    )
    (tmp_path / "api.yaml").write_text(shared)
    status, _, err = run(capsys, tmp_path)
    assert (status, (tmp_path / "api.yaml").read_text()) == (2, shared)
    assert "api.yaml" in err


def test_line_ends_and_modes_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "api.yaml"
    file.write_bytes(HAND_WRITTEN.replace("\n", "\r\n").removesuffix("\r\n").encode())
    file.chmod(0o640)
    run(capsys, file)
    written = file.read_bytes()
    assert written.count(b"\r\n") == written.count(b"\n") > HAND_WRITTEN.count("\n")
    assert file.stat().st_mode & 0o777 == 0o640
    assert left_in(file) == []
    assert [each.name for each in tmp_path.iterdir()] == ["api.yaml"]


def test_only_the_named_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN + NODE)
    assert run(capsys, "--only", "disruption-guard", file)[1] == f"{file}: fixed: disruption-guard\n"
    assert "preStop" in file.read_text()
    assert "readinessProbe" not in file.read_text()
    status, _, err = run(capsys, "--only", "tcp-probe", file)
    assert (status, "tcp-probe has no automatic fix" in err) == (2, True)


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
def test_other_ways_to_write_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, spec: str) -> None:
    """A file gets the intended objects, or else is not written."""
    file = tmp_path / "pod.yaml"
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{spec}"
    file.write_text(text)
    before = left_in(file)
    status, _, err = run(capsys, file)
    if status:
        assert file.read_text() == text
        assert "not changed" in err
    else:
        assert left_in(file) == []
        assert (file.read_text() != text) == bool(before)


def test_standard_input_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "-")[0] == 2


# --- where it writes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [(), ("--diff",), ("--dry-run",)], ids="".join)
@pytest.mark.parametrize("through", ["file", "directory", "chain"])
def test_a_link_does_not_lead_out_of_the_given_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], through: str, flag: tuple[str, ...]
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
    status, out, err = run(capsys, *flag, given)
    assert (outside / "api.yaml").read_text() == HAND_WRITTEN
    assert "own.yaml" in out
    assert "outside" not in out
    if through != "directory":  # links to directories are not followed at all
        assert status == 2
        assert "outside of the given paths" in err


def test_a_link_that_was_given_itself_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outside").mkdir()
    file = tmp_path / "outside" / "api.yaml"
    file.write_text(HAND_WRITTEN)
    link, directory = tmp_path / "link.yaml", tmp_path / "link"
    link.symlink_to(file)
    directory.symlink_to(file.parent)
    for given in (link, directory):
        file.write_text(HAND_WRITTEN)
        assert run(capsys, given)[0] == 0
        assert file.read_text() != HAND_WRITTEN
        assert given.is_symlink()


def test_several_links_to_one_file_mend_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.yaml").write_text(HAND_WRITTEN)
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    status, out, _ = run(capsys, tmp_path)
    assert (status, out.count("fixed")) == (0, 1)
    assert (tmp_path / "a.yaml").is_symlink()
    assert left_in(tmp_path / "b.yaml") == []


def test_no_file_that_lies_in_the_way_is_written_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, precious = tmp_path / "api.yaml", tmp_path / "precious"
    file.write_text(HAND_WRITTEN)
    precious.write_text("mine")
    (tmp_path / ".api.yaml.chassis").symlink_to(precious)
    assert run(capsys, file)[0] == 0
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o4755])
def test_mode_and_owner_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    if os.geteuid() == 0:
        os.chown(file, 4711, 4712)
    file.chmod(mode)
    before = file.stat()
    assert run(capsys, file)[0] == 0
    after = file.stat()
    assert file.read_text() != HAND_WRITTEN
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.parametrize("call", ["fchown", "fchmod", "fsync", "replace"])
def test_a_write_that_fails_leaves_only_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    if os.geteuid() == 0:
        os.chown(file, 4711, 4712)
    elif call == "fchown":
        pytest.skip("its owner is who runs the test")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path if call == "replace" else os, call, refuse)
    status, _, err = run(capsys, file)
    assert status == 2
    assert "it can't be replaced: Operation not permitted" in err
    assert file.read_text() == HAND_WRITTEN
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_changes_meanwhile_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(HAND_WRITTEN)
    really = fix._fixed

    def edited(*args: Any) -> Any:
        file.write_text("somebody else's\n")
        return really(*args)

    monkeypatch.setattr(fix, "_fixed", edited)
    status, _, err = run(capsys, file)
    assert (status, file.read_text()) == (2, "somebody else's\n")
    assert "another program changed it" in err
