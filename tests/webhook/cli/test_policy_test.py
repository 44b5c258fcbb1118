"""`chassis policy test`: tests pass if the policy decides as expected, and fail for every other decision."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.webhook.cli.scanned import RULE, SERVER, Chassis, deployment

EXAMPLES = Path(__file__).parents[3] / "examples"
KIND = {"apiVersion": "apps/v1", "kind": "Deployment"}
READINESS = "spec.template.spec.containers[main].readinessProbe"


def suite(directory: Path, expected: dict[str, Any], **case: Any) -> Path:
    """A file with one test: a Deployment that is refused, and one that gets probes."""
    objects = [{**KIND, **deployment("hazard")}, {**KIND, **deployment("server", SERVER)}]
    tests = [{"name": "it", "objects": objects, "expect": [expected], **case}]
    (directory / "chassis-test.yaml").write_text(yaml.safe_dump({"tests": tests}))
    return directory


@pytest.fixture
def run(chassis: Chassis) -> Chassis:
    return partial(chassis, "policy", "test")


HAZARD = {"object": "Deployment/hazard"}
SERVES = {"object": "Deployment/ml/server"}
REFUSED = {RULE: "refused"}


@pytest.mark.parametrize(
    "expected",
    [
        {**HAZARD, "verdict": "refused", "findings": {**REFUSED, "liveness-missing": "none"}},
        {**SERVES, "verdict": "admitted", "findings": {}},
        {**SERVES, "mutations": ["disruption-guard", "standard-probes"]},
        {**SERVES, "fields": {f"{READINESS}.httpGet.path": "/health", "spec.paused": None}},
        {**SERVES, "fields": {f"{READINESS}.httpGet": {"path": "/health", "port": 8000}}},
    ],
)
def test_expected_decisions_pass(run: Chassis, tmp_path: Path, expected: dict[str, Any]) -> None:
    status, out, err = run(suite(tmp_path, expected))
    assert (status, err) == (0, ""), out
    assert out.endswith("1 test, 0 failed\n")


@pytest.mark.parametrize(
    ("expected", "failure"),
    [
        ({**HAZARD, "verdict": "admitted"}, "Deployment/hazard: admitted expected, refused found"),
        ({**HAZARD, "findings": {}}, f"{RULE}: refused, which isn't expected"),
        ({**HAZARD, "findings": {RULE: "warned"}}, f"{RULE}: warned expected, refused found"),
        (
            {**SERVES, "findings": {"liveness-missing": "warned"}},
            "liveness-missing: warned expected, none found",
        ),
        (
            {**SERVES, "mutations": ["gpu-affinity"]},
            "mutations gpu-affinity expected, disruption-guard, standard-probes found",
        ),
        (
            {**SERVES, "fields": {f"{READINESS}.httpGet.port": "8000"}},
            'httpGet.port: "8000" expected, 8000 found',
        ),
        ({**SERVES, "fields": {f"{READINESS}.periodSeconds": None}}, "periodSeconds: nothing expected, "),
    ],
)
def test_any_other_decision_fails(
    run: Chassis, tmp_path: Path, expected: dict[str, Any], failure: str
) -> None:
    status, out, _ = run(suite(tmp_path, expected))
    assert status == 1
    assert failure in out
    assert out.endswith("1 test, 1 failed\n")


@pytest.mark.parametrize(
    ("expected", "case", "problem"),
    [
        ({"object": "Deployment/other"}, {}, "it: none of the manifests is Deployment/other"),
        ({**HAZARD, "findings": {"liveness": "warned"}}, {}, "it: there is no rule liveness"),
        ({**HAZARD, "verdicts": "refused"}, {}, "tests.0.expect.0.verdicts: unknown field"),
        (HAZARD, {"old": ["x.yaml"]}, "tests.0: old can only be used with operation: UPDATE"),
        (HAZARD, {"manifests": ["x.yaml"]}, "x.yaml: No such file or directory"),
        (HAZARD, {"expect": []}, "tests.0: expect is empty"),
    ],
)
def test_a_file_that_is_no_test_is_named_and_fails(
    run: Chassis,
    tmp_path: Path,
    expected: dict[str, Any],
    case: dict[str, Any],
    problem: str,
) -> None:
    status, _, err = run(suite(tmp_path, expected, **case))
    assert status == 2
    assert problem in err


def test_a_directory_without_tests_is_no_success(run: Chassis, tmp_path: Path) -> None:
    assert run(tmp_path) == (2, "", f"chassis: {tmp_path}: there is no chassis-test.yaml in it\n")


def test_the_example_passes_and_junit_counts_it(run: Chassis) -> None:
    status, out, _ = run(EXAMPLES, "-o", "junit")
    assert status == 0
    (found,) = ET.fromstring(out)
    assert (found.get("tests"), found.get("failures")) == ("3", "0")
    assert len(found.findall("testcase")) == 3


def test_junit_has_the_failure(run: Chassis, tmp_path: Path) -> None:
    answer = run(suite(tmp_path, {**HAZARD, "verdict": "admitted"}), "-o", "junit")
    assert answer.status == 1
    assert (
        ET.fromstring(answer.out).findtext("testsuite/testcase/failure")
        == "Deployment/hazard: admitted expected, refused found"
    )
