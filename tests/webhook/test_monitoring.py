"""The component monitoring: alerts and dashboard ask for metrics that there are, and Grafana can read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry

from policies.kube.json import Json
from puller.metrics import PullerMetrics as PullerMetrics
from webhook.cli import manifests
from webhook.server.metrics import Metrics
from webhook.server.running_pods import RunningPods
from webhook.worker_names.endpoint import NameMetrics

COMPONENT = manifests.directory() / "components" / "monitoring"
ALERTS = (COMPONENT / "alerts.yaml").read_text()
DASHBOARD = json.loads((COMPONENT / "ml-chassis.json").read_text())
PANELS: list[Json] = DASHBOARD["panels"]


def exported() -> set[str]:
    """The names of all series that the webhook and the puller export."""
    webhook = Metrics()
    NameMetrics(webhook.registry)
    nothing: Any = None
    RunningPods(nothing, nothing, nothing, webhook.registry, lambda: False)
    return {name for registry in (webhook.registry, PullerMetrics().registry) for name in names(registry)}


def names(registry: CollectorRegistry) -> Iterator[str]:
    suffixes = {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_sum", "_count"),
        "info": ("_info",),
    }
    for family in registry.collect():
        yield from (family.name + suffix for suffix in suffixes[family.type])


def asked_for(text: str) -> set[str]:
    """The names of our metrics in expressions; a histogram's buckets represent all of it."""
    return set(re.findall(r"\bchassis_[a-z_]+", text))


EXPRESSIONS = "\n".join(target["expr"] for panel in PANELS for target in panel.get("targets", ()))


@pytest.mark.parametrize("text", [ALERTS, EXPRESSIONS], ids=["alerts", "dashboard"])
def test_every_metric_that_is_asked_for_is_exported(text: str) -> None:
    assert asked_for(text)
    assert asked_for(text) <= exported()


def test_the_dashboard_shows_every_metric() -> None:
    whole = {it for it in exported() if it.startswith("chassis_") and not it.endswith(("_sum", "_count"))}
    assert asked_for(EXPRESSIONS) == whole


def lost(ours: object, read: object, path: str = "") -> Iterator[str]:
    """What Grafana's own model of a dashboard does not take over as it is."""
    if isinstance(ours, dict) and isinstance(read, dict):
        for key, value in ours.items():
            if key in read:
                yield from lost(value, read[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}: no such field"
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for index, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from lost(one, other, f"{path}/{index}")
    elif ours != read:
        yield f"{path}: {ours!r} is read as {read!r}"


def as_grafana_reads_it(dashboard: Json) -> list[str]:
    plugins.register_default_plugins()
    return list(lost(dashboard, json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(dashboard)))))


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    assert as_grafana_reads_it(DASHBOARD) == []


@pytest.mark.parametrize(
    "path", ["options", "targets/0", "fieldConfig/defaults", "fieldConfig/defaults/custom", ""]
)
def test_a_field_that_grafana_does_not_know_is_seen(path: str) -> None:
    dashboard = json.loads(json.dumps(DASHBOARD))
    place = next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries")
    for step in filter(None, path.split("/")):
        place = place[int(step) if step.isdigit() else step]
    place["unknownField"] = 1
    (said,) = as_grafana_reads_it(dashboard)
    assert said.endswith("unknownField: no such field")


def test_panels_have_different_ids_places_and_words() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
            for source in (panel, *panel["targets"]):
                assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_alert_has_a_severity_and_a_runbook() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS)["spec"]["groups"] for rule in group["rules"]]
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["alert"].startswith("Chassis")
