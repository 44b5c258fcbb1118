"""The GitHub Action: its steps run as they are written, with the inputs as a runner gives them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def run(
    name: str, programs: Path = Path(sys.executable).parent, **inputs: str
) -> subprocess.CompletedProcess[str]:
    """What a runner does with one step: expressions become the inputs, or their defaults."""

    def value(match: re.Match[str]) -> str:
        expression = match[1].removeprefix("inputs.")
        default: str = ACTION["inputs"][expression]["default"]
        return inputs.get(expression.replace("-", "_"), default)

    step = STEPS[name]
    given = {key: re.sub(r"\$\{\{ (.+?) \}\}", value, text) for key, text in step["env"].items()}
    environment = {
        **os.environ,
        **given,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(  # the step as it is written
        script,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_expression_is_an_input_and_no_script_has_one() -> None:
    text = (ROOT / "action.yml").read_text()
    expressions = set(re.findall(r"\$\{\{ (.+?) \}\}", text)) - {"github.action_path"}
    assert expressions == {f"inputs.{name}" for name in ACTION["inputs"]}
    assert not any("${{" in step["run"] for step in STEPS.values())


def test_a_refusal_fails_the_step() -> None:
    refused = run("Review", paths="examples/rollout-deadlock.yaml examples/vllm.yaml")
    assert refused.returncode == 1
    assert "DENIED Deployment mlops/mlflow" in refused.stdout
    assert "llama-3-70b" in refused.stdout, "each of several paths is reviewed"


def test_sound_files_pass() -> None:
    assert run("Review", paths="examples/batch-scoring-cronjob.yaml").returncode == 0


def test_the_policy_and_the_profile_count() -> None:
    paths = "examples/fastapi-unknown.yaml"
    assert run("Review", paths=paths, policy="examples/policy-tests/policy").returncode == 1
    assert run("Review", paths="examples/rollout-deadlock.yaml", profile="observe").returncode == 0


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        ({"paths": "a.yaml b.yaml"}, ["--", "a.yaml", "b.yaml"]),
        ({"paths": "a", "policy": "p q"}, ["--policy", "p q", "--", "a"]),
        ({"paths": "a", "profile": "strict"}, ["--profile", "strict", "--", "a"]),
        ({"paths": "a", "warnings_as_errors": "true"}, ["--warnings-as-errors", "--", "a"]),
        ({"paths": "$(touch pwned)"}, ["--", "$(touch", "pwned)"]),
        ({"paths": "--policy=/etc"}, ["--", "--policy=/etc"]),
        ({"paths": "; false"}, ["--", ";", "false"]),
        ({"paths": "a", "policy": "$(touch pwned)"}, ["--policy", "$(touch pwned)", "--", "a"]),
    ],
    ids=str,
)
def test_inputs_become_arguments_and_none_is_run_or_taken_for_a_flag(
    inputs: dict[str, str], arguments: list[str], tmp_path: Path
) -> None:
    chassis = tmp_path / "chassis"
    chassis.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 3\n")
    chassis.chmod(0o755)
    done = run("Review", tmp_path, **inputs)
    assert (done.stdout.splitlines(), done.returncode) == (["review", *arguments], 3)
    assert not (ROOT / "pwned").exists()


def test_sarif_is_written_although_something_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "chassis.sarif"
    assert run("Review", paths="examples/rollout-deadlock.yaml", sarif=str(file)).returncode == 1
    assert json.loads(file.read_text())["runs"][0]["results"]


def test_the_policy_tests_run() -> None:
    assert run("Test the policy", tests="examples").returncode == 0
