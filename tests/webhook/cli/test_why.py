"""`chassis why` over files."""

import json
from pathlib import Path

import pytest

from webhook.cli import main as cli

EXAMPLES = Path(__file__).parents[3] / "examples"


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert cli.main(["why", *argv, "-o", "json"]) == 0
    answers: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return answers


def test_the_answer_for_a_file_has_the_added_fields_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", "-f", str(EXAMPLES / "triton.yaml")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Deployment vision/resnet\npolicy: built in (")
    assert (
        "\nspec.template.spec.containers[triton].startupProbe\n  by      standard-probes of ML Chassis\n"
        in out
    )
    assert "  why     44 min: six times the 7.4 min that 26 GB take at 64 MiB/s" in out
    assert "spec.template.metadata.annotations: mlchassis.dev/expected-start.triton: " in out
    assert "key standard-probes.yaml: startupFactor: 3.0" in out
    assert "  by      the author of Deployment vision/resnet\n" in out
    assert out.count("=write down why") == 2


def test_the_policy_and_its_modes_are_heeded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "standard-probes.yaml").write_text("mode: warn\nstartupFactor: 2\n")
    (tmp_path / "gpu-affinity.yaml").write_text("mode: 'off'\n")
    argv = ["why", "-f", str(EXAMPLES / "triton.yaml"), "--policy", str(tmp_path)]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "  by      nobody: standard-probes of ML Chassis would set it, but its mode is warn\n" in out
    assert f"in {tmp_path}, key standard-probes.yaml: startupFactor: 2.0" in out
    assert "gpu-affinity" not in out


def test_one_object_of_several_can_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text(
        (EXAMPLES / "triton.yaml").read_text() + "\n---\n" + (EXAMPLES / "bare-pod.yaml").read_text()
    )
    assert {each["title"] for each in told(capsys, "-f", str(both))} >= {"Pod playground/ollama"}
    (only,) = told(capsys, "pod/ollama", "-f", str(both))
    assert only["title"] == "Pod playground/ollama"
    assert cli.main(["why", "pod/none", "-f", str(both)]) == 2
    assert "no object with pods in" in capsys.readouterr().err


def test_an_object_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why"]) == 2
    assert "name an object" in capsys.readouterr().err


def test_the_answer_for_a_job_covers_it_and_its_pods(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: ml}\nspec:\n  backoffLimit: 2\n"
        "  template:\n    spec:\n      restartPolicy: Never\n"
        "      containers: [{name: main, image: 'train:1'}]\n"
    )
    (answer,) = told(capsys, "-f", str(job))
    fields = {each["path"]: each["by"] for each in answer["fields"]}  # type: ignore[attr-defined]
    assert fields == {
        "spec.template.spec.restartPolicy": "user",
        "spec.backoffLimit": "user",
        "spec.podFailurePolicy": "mlchassis",
        "spec.podReplacementPolicy": "mlchassis",
        "spec.template.spec.containers[main].terminationMessagePolicy": "mlchassis",
    }
