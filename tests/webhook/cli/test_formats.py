"""SARIF and JUnit, by the schemas that readers of them go by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, FormatChecker

from policies.core import registry
from policies.core.facts import NoCluster
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from tests.webhook.cli.scanned import RULE, Chassis
from tests.webhook.cli.test_html import HAZARDS
from webhook.admission.coverage import Coverage, Reading
from webhook.admission.decision import Crash, Decision
from webhook.cli.output import sarif
from webhook.cli.output.json import record
from webhook.cli.reviewed import Reviewed, Subject
from webhook.config.load import load, rules
from webhook.manifests.files import Document
from webhook.version import version

SCHEMAS = Path(__file__).with_name("schemas")


@pytest.fixture
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    exempted = HAZARDS.partition("---")[0].replace(
        "  name: bad", f'  name: let-in\n  annotations: {{mlchassis.dev/exempt: "{RULE}=its own proxy"}}'
    )
    Path("a dir").mkdir()
    Path("a dir/hazards.yaml").write_text(f"{HAZARDS}---\n{exempted}")
    return Path("a dir/hazards.yaml")


@cache
def sarif_schema() -> Draft4Validator:
    schema = json.loads((SCHEMAS / "sarif-schema-2.1.0.json").read_text())
    return Draft4Validator(schema, format_checker=FormatChecker())


def of_sarif(text: str) -> tuple[Json, list[Json]]:
    """The driver and the results of a log, once it has passed the schema and GitHub's rules."""
    log = json.loads(text)
    assert [error.message for error in sarif_schema().iter_errors(log)] == []
    assert list(complaints_of_github(log)) == []
    (run,) = log["runs"]
    results: list[Json] = run["results"]
    driver: Json = run["tool"]["driver"]
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return driver, results


def complaints_of_github(log: Json) -> Iterator[str]:
    """GH1001 to GH1003 of Microsoft's SARIF SDK, for results that have a file."""
    for run in log["runs"]:
        if "threadFlowLocations" in run:
            yield "GH1002: thread flow locations stand in the results alone"
        for result in run["results"]:
            if not result.get("locations"):
                yield "GH1001: a result has a location"
            for location in result.get("locations", ()):
                physical = location.get("physicalLocation", {})
                if not physical.get("artifactLocation", {}).get("uri"):
                    yield "GH1001: a location has a URI"
                if "startLine" not in physical.get("region", {}):
                    yield "GH1003: a location has a region with a first line"


def test_sarif_passes_the_schema_and_github_s_rules(chassis: Chassis, manifests: Path) -> None:
    driver, results = of_sarif(chassis("review", manifests, "-o", "sarif").out)
    assert driver["version"] == version()
    assert [rule["id"] for rule in driver["rules"]] == [*rules(), *registry.mutators()]
    for rule in driver["rules"]:
        assert rule["id"] in rule["helpUri"]
    first = next(result for result in results if result["ruleId"] == RULE)
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "a%20dir/hazards.yaml", "uriBaseId": "%SRCROOT%"}
    line = 1 + HAZARDS.splitlines().index('            command: [curl, "http://payments/health"]')
    assert place["region"] == {"startLine": line, "endLine": line}
    (exempted,) = (result for result in results if "suppressions" in result)
    assert exempted["suppressions"] == [{"kind": "inSource", "justification": "its own proxy"}]


def test_help_leads_to_the_documentation_s_pages() -> None:
    docs = Path(__file__).parents[3] / "docs"
    for rule in sarif._rules("https://docs.example/chassis/"):
        page, _, anchor = rule["helpUri"].removeprefix("https://docs.example/chassis/").partition("#")
        heading = f"## {anchor}\n" if anchor else f"# {rule['id']}\n"
        assert heading in (docs / page).read_text()


def test_fingerprints_stay_where_lines_move(chassis: Chassis, manifests: Path) -> None:
    def fingerprints() -> list[str]:
        _, results = of_sarif(chassis("review", manifests, "-o", "sarif").out)
        return [result["partialFingerprints"][sarif.FINGERPRINT] for result in results]

    before = fingerprints()
    assert len(before) == len(set(before)) > 1
    written = manifests.read_text()
    sidecar = "      containers:\n      - {name: logs, image: registry.example/logs:1}\n"
    manifests.write_text("# one more line\n" + written.replace("      containers:\n", sidecar))
    assert set(before) <= set(fingerprints())
    manifests.write_text(written.replace("namespace: shop", "namespace: other"))
    assert not set(before) <= set(fingerprints())
    manifests.write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n")
    assert fingerprints() == [], "a log without findings is valid"


def test_a_rule_that_failed_is_told_once_in_json_and_sarif() -> None:
    obj: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    document = Document("f.yaml", 0, obj)
    read = Coverage(POD, Reading.REVIEWED)
    decision = Decision(obj, crashes=(Crash(RULE, "ValueError: x", ""),) * 2, coverage=read)
    review = Reviewed(document, decision, document.request())
    assert record(review)["failures"] == [{"id": RULE, "error": "ValueError: x"}]
    text = "".join(sarif.pieces([review], Subject("", "", load({}), NoCluster(), 0)))
    of_sarif(text)
    (invocation,) = json.loads(text)["runs"][0]["invocations"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == f"{RULE} failed on Pod a: ValueError: x"


@cache
def junit_schema() -> Any:
    import xmlschema  # half a second, which every process of pytest would pay to collect this module

    return xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd"))


def test_junit_passes_its_schema(chassis: Chassis, manifests: Path) -> None:
    text = chassis("review", manifests, "-o", "junit").out
    junit_schema().validate(text.partition("?>")[2])
    assert 'errors="0"' in text


def test_junit_of_policy_tests_passes_its_schema(chassis: Chassis, tmp_path: Path) -> None:
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}}
    case = {"name": "it", "objects": [obj], "expect": [{"object": "Pod/a", "verdict": "refused"}]}
    (tmp_path / "chassis-test.yaml").write_text(json.dumps({"tests": [case]}))
    text = chassis("policy", "test", tmp_path, "-o", "junit").out
    assert "<testcase" in text
    junit_schema().validate(text.partition("?>")[2])
