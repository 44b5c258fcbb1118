"""Every example has the effect that its first lines describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from webhook.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"

REFUSED = {
    "drain-blocked.yaml": {"drain-blocked-by-pdb"},
    "model-config-broken.yaml": {"model-config-invalid"},
    "rollout-deadlock.yaml": {"rollout-volume-deadlock"},
    "torchserve.yaml": {"liveness-external-dependency"},
    "vector-database.yaml": {"readiness-waits-on-own-service"},
}
WARNED = {
    "batch-scoring-cronjob.yaml": {"job-logs-lost"},
    "fastapi-unknown.yaml": {"liveness-missing"},
}
PROBED = {
    "bare-pod.yaml",
    "drain-blocked.yaml",
    "fastapi-annotated.yaml",
    "mlserver-multi-model.yaml",
    "rollout-deadlock.yaml",
    "tensorflow-serving.yaml",
    "triton.yaml",
    "vector-database.yaml",
}
ALIVE = {"kserve-inferenceservice.yaml", "vector-database.yaml"}
"""Examples with a readinessProbe, one of them added by KServe: liveness is added, and its startup probe."""


GUARDED = {"vllm.yaml", "torchserve.yaml"}
"""These wrote a livenessProbe themselves, and get a startupProbe before it."""


@pytest.fixture(params=sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    """A file's name and its `chassis review`, with only this file as the cluster."""
    path: Path = request.param
    main(["review", str(path), "-o", "json"])
    return path.name, json.loads(capsys.readouterr().out)


def said(reviews: list[dict[str, Any]], mode: str) -> set[str]:
    return {
        finding["rule"] for review in reviews for finding in review["findings"] if finding["mode"] == mode
    }


def test_an_example_has_the_described_findings(example: tuple[str, Any]) -> None:
    name, reviews = example
    assert said(reviews, "enforce") == REFUSED.get(name, set())
    assert said(reviews, "warn") == WARNED.get(name, set())
    assert any(not review["allowed"] for review in reviews) is (name in REFUSED)


def test_its_pods_get_the_described_probes(example: tuple[str, Any]) -> None:
    name, reviews = example
    added = {
        operation["path"].rpartition("/")[2]
        for review in reviews
        for operation in review["patch"]
        if operation["op"] == "add" and "/containers/" in operation["path"]
    } & {"startupProbe", "livenessProbe", "readinessProbe"}
    if name in GUARDED:
        assert added == {"startupProbe"}
    elif name in ALIVE:
        assert added == {"startupProbe", "livenessProbe"}
    elif name in PROBED:
        assert added == {"startupProbe", "livenessProbe", "readinessProbe"}
    else:
        assert added == set()


def test_an_example_describes_its_findings(example: tuple[str, Any]) -> None:
    name, _ = example
    assert (EXAMPLES / name).read_text().startswith("# Shows: ")


def test_the_puller_joins_where_models_are_asked_for(example: tuple[str, Any]) -> None:
    name, reviews = example
    pulled = [review["name"] for review in reviews if "model-puller" in review["mutations"]]
    assert pulled == (["recommender"] if name == "mlserver-multi-model.yaml" else [])
