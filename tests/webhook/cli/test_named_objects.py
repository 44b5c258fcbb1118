"""The other objects that findings name: where they are, in each format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.webhook.cli.browser import Tab, needs_chromium
from tests.webhook.cli.scanned import Chassis
from webhook.cli.reviewed import NamedObjects, named_in
from webhook.manifests.files import Document, parse

WORKLOAD = """\
apiVersion: v1
kind: Service
metadata: {name: api}
spec: {selector: {app: api}, ports: [{port: 80, targetPort: web}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: 2
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers:
      - name: api
        image: registry.example/api:1
        ports: [{containerPort: 8080, name: http}]
        livenessProbe: {httpGet: {path: /live, port: http}, failureThreshold: 6}
        readinessProbe: {httpGet: {path: /ready, port: http}}
"""
BUDGET = """\
# Two of two.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: api}
spec: {minAvailable: 2, selector: {matchLabels: {app: api}}}
"""


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    (tmp_path / "api.yaml").write_text(WORKLOAD)
    (tmp_path / "budget.yaml").write_text(BUDGET)
    return tmp_path


def test_the_text_says_where_it_is(chassis: Chassis, manifests: Path) -> None:
    lines = [line.strip() for line in chassis("review", manifests).out.splitlines()]
    assert lines.count(f"see Deployment api ({manifests}/api.yaml:6)") == 1
    assert f"see Service api ({manifests}/api.yaml:1)" in lines
    at = lines.index("refused drain-blocked-by-pdb")
    assert lines[at + 1].startswith("at spec.minAvailable")
    assert lines[at + 2].startswith("see Deployment api")


def test_other_formats_say_so_too(chassis: Chassis, manifests: Path) -> None:
    reviews = json.loads(chassis("review", manifests, "-o", "json").out)
    found = [finding for review in reviews for finding in review["findings"]]
    (blocked,) = (each for each in found if each["rule"] == "drain-blocked-by-pdb")
    (other,) = blocked["others"]
    assert (other["source"], other["document"], other["kind"]) == (f"{manifests}/api.yaml", 1, "Deployment")
    log = json.loads(chassis("review", manifests, "-o", "sarif").out)
    results = {each["ruleId"]: each for each in log["runs"][0]["results"]}
    (related,) = results["drain-blocked-by-pdb"]["relatedLocations"]
    assert related["physicalLocation"]["region"] == {"startLine": 6}
    assert related["message"] == {"text": "Deployment api"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Service api also selects the workers.", [("Service", "api")]),
        ("Claim models is ReadWriteOnce.", [("PersistentVolumeClaim", "models")]),
        ("another node can mount the volume of claim models, and", [("PersistentVolumeClaim", "models")]),
        ("scales Deployment api.v2.", [("Deployment", "api.v2")]),
        ("LocalQueue ml/train", []),
        ("GET /health", []),
        ("Deployment api and Deployment api", [("Deployment", "api")]),
    ],
)
def test_words_that_may_be_an_object(message: str, expected: list[tuple[str, str]]) -> None:
    assert list(named_in(message)) == expected


def service(namespace: str = "", name: str = "api", source: str = "a.yaml") -> Document:
    text = f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: '{namespace}'}}\n"
    (document,) = parse(source, text)
    return document


@pytest.mark.parametrize(
    ("others", "found"),
    [
        pytest.param([service("shop")], ["a.yaml"], id="the same namespace"),
        pytest.param([service("ml")], [], id="another namespace"),
        pytest.param([service()], ["a.yaml"], id="no namespace"),
        pytest.param([service("shop", "web")], [], id="another name"),
        pytest.param([service("shop"), service("shop", source="b.yaml")], [], id="two environments"),
        pytest.param(
            [service("shop"), service("shop", source="me.yaml")], ["me.yaml"], id="one in this file"
        ),
    ],
)
def test_only_an_object_that_is_certain(others: list[Document], found: list[str]) -> None:
    own = service("shop", "own", "me.yaml")
    among = NamedObjects([own, *others])
    assert [each.source for each in among.others(own, "Service api and Service own do this.")] == found


@needs_chromium
@pytest.mark.e2e
async def test_the_report_draws_them(tab: Tab, chassis: Chassis, manifests: Path) -> None:
    made = manifests / "report.html"
    made.write_text(chassis("review", manifests, "-o", "html").out)
    await tab.open(made)
    await tab.ask("document.querySelector('.w[data-k=PodDisruptionBudget]').open = true")
    await tab.until("!!document.querySelector('.card svg.between')")
    assert await tab.ask("document.querySelector('svg.between').getAttribute('aria-label')") == (
        "drain-blocked-by-pdb is about PodDisruptionBudget api and Deployment api"
    )
    fits = "[...document.querySelectorAll('.between g')].every((box) => box.getBBox().width <= 250)"
    assert await tab.ask(fits)
    await tab.ask(
        "document.querySelector('svg.between a').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    await tab.until("document.querySelector('.w[data-k=Deployment]').open")
    assert tab.complaints == []
