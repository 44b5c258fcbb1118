"""`make demo`: the examples go through the real webhook, and its last lines sum up what became of them."""

import re
import subprocess
import sys

import pytest

from examples.demo import EXAMPLES


@pytest.fixture(scope="module")
def shown() -> str:
    """What the demo prints where there is no terminal."""
    run = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def test_a_file_has_its_purpose_then_its_result(shown: str) -> None:
    said = shown.partition("torchserve.yaml ")[2].partition(".yaml ─")[0]
    assert re.search(r"^Shows: a refusal", said, re.MULTILINE)
    assert "✗ Deployment sentiment: refused" in said
    assert "Fix: Let liveness check only the container" in said


def test_a_change_is_shown_as_a_diff(shown: str) -> None:
    said = shown.partition("bare-pod.yaml ")[2].partition(".yaml ─")[0]
    assert "+    startupProbe:" in said
    assert "Warning: standard-probes added" in said


def test_the_summary_names_every_example_and_why(shown: str) -> None:
    summary = dict(re.findall(r"^([a-z-]+\.yaml) +(.*)$", shown.partition("In short")[2], re.MULTILINE))
    assert summary.keys() == {path.name for path in EXAMPLES.glob("*.yaml")}
    assert summary["bare-pod.yaml"] == "changed"
    assert summary["fastapi-unknown.yaml"] == "warned: liveness-missing"
    assert summary["model-config-broken.yaml"] == "refused: model-config-invalid"
    assert summary["ray-service.yaml"] == "changed", "its warning says what its pods will get"


def test_it_fits_eighty_columns_but_for_comments_and_long_words(shown: str) -> None:
    wide = [line for line in shown.splitlines() if len(line) > 80]
    words = [line for line in wide if line.startswith("Warning:   ") and " " not in line[11:]]
    assert not [
        line for line in wide if line not in words and (line[:1] in "✓✗+-@1234567890W" or line[:1].isspace())
    ]
