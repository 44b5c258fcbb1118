"""Few false alarms: KubeRay's own samples under the standard profile, judged by the command line.

The samples come with the operator's Go modules. The set of refusals is compared exactly: a refusal that turns
up here is either a hazard that one would defend before KubeRay's authors, and then it is written down
with its reason, or a false alarm.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.binaries import module_directory
from webhook.cli import main as cli

pytestmark = pytest.mark.e2e

REFUSED: dict[str, set[tuple[str, str, str]]] = {
    "kuberay-1.0": set(),
    "kuberay-1.2": set(),
    "kuberay-1.6": set(),
}
"""By release: (file, kind/name, rule)."""

LEAST = {"kuberay-1.0": 60, "kuberay-1.2": 80, "kuberay-1.6": 140}
"""Objects that there are to judge, so that an empty directory is no success."""


def review(release: str, capsys: pytest.CaptureFixture[str]) -> Sequence[dict[str, Any]]:
    samples = module_directory(release) / "config" / "samples"
    status = cli.main(["review", str(samples), "--profile", "standard", "-o", "json"])
    reviews: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert status == int(any(not each["allowed"] for each in reviews))
    return reviews


def found(reviews: Sequence[dict[str, Any]], *modes: str) -> set[tuple[str, str, str]]:
    return {
        (each["source"].rpartition("/")[2], f"{each['kind']}/{each['name']}", finding["rule"])
        for each in reviews
        for finding in each["findings"]
        if finding["mode"] in modes
    }


@pytest.mark.parametrize("release", REFUSED)
def test_only_hazards_are_refused(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    reviews = review(release, capsys)
    assert len(reviews) >= LEAST[release]
    assert found(reviews, "enforce") == REFUSED[release]
    assert [each["name"] for each in reviews if not each["allowed"]] == []


WARNED = {
    *(
        (f"ray-job.{file}.yaml", f"RayJob/rayjob-{name}", "pods-outlive-run")
        for file, name in (
            ("batch-inference", "sample"),
            ("custom-head-svc", "sample"),
            ("interactive-mode", "interactive-mode"),
            ("light-weight-submitter", "light-weight-submitter"),
            ("modin", "sample"),
            ("resources", "sample"),
            ("sample", "sample"),
            ("sidecar-mode", "sidecar-mode"),
            ("volcano-scheduler-queue", "sample-0"),
            ("yunikorn-scheduler", "yunikorn-0"),
        )
    ),
    *(
        (f"ray-job.tpu-v6e-{size}.yaml", f"RayJob/v6e-{name}-job", "pods-outlive-run")
        for size, name in (("singlehost", "4"), ("16-multihost", "16"), ("256-multihost", "256"))
    ),
    *(
        (f"ray-{file}.yaml", name, "ray-head-without-recovery")
        for file, name in (
            ("cluster.kai-gpu-sharing", "RayCluster/raycluster-half-gpu"),
            ("cluster.tpu-v4-multihost", "RayCluster/raycluster-tpu-v4-multihost"),
            ("cluster.tpu-v6e-16-multihost", "RayCluster/raycluster-tpu-v6e-multihost"),
            ("cluster.tpu-v6e-256-multihost", "RayCluster/raycluster-tpu-v6e-multihost"),
            ("service.deepseek", "RayService/deepseek-r1"),
        )
    ),
}
"""Jobs whose cluster stays after the end, and clusters of several workers with accelerators that all
restart if their head does."""


def test_the_samples_get_only_true_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """The samples' Redis is its vendor's, and KubeRay keeps the submitter of a RayJob that is gone."""
    assert found(review("kuberay-1.6", capsys), "warn") == WARNED


def test_ray_clusters_pass_in_every_profile_without_a_word_on_probes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """KubeRay fills the probes of Ray's containers itself."""
    samples = module_directory("kuberay-1.6") / "config" / "samples" / "ray-cluster.complete.yaml"
    assert cli.main(["review", str(samples), "--profile", "strict", "-o", "json"]) == 0
    (reviewed,) = json.loads(capsys.readouterr().out)
    assert reviewed["kind"] == "RayCluster"
    assert reviewed["findings"] == []
