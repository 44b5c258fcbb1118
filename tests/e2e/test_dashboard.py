"""Every panel shows something: Prometheus scrapes the webhook, a puller and the API server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import yaml

from tests.e2e.api import ApiError
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import NAMESPACE, REPOSITORY, Chassis, running_chassis
from tests.e2e.prometheus import Prometheus
from tests.e2e.puller.sidecar import Sidecar
from tests.e2e.workloads import container, pod, workload

pytestmark = pytest.mark.e2e
COMPONENT = REPOSITORY / "manifests" / "components" / "monitoring"
DASHBOARD = json.loads((COMPONENT / "ml-chassis.json").read_text())
RULES = yaml.safe_load((COMPONENT / "alerts.yaml").read_text())["spec"]
QUERIES = {
    (panel["title"], target["refId"]): target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
ABOVE_ZERO = {
    "Replicas", "Version", "Policy", "Profile", "Policy loaded", "Certificate expires in",
    "Reviews by outcome", "Reviews by kind", "Duration of a review", "Answers from memory", "Findings",
    "Injected", "Refused", "Findings by mode", "Exempted", "Resources read from the cluster", "Models",
}  # fmt: skip
"""Panels that must show more than zero after what `busy` does."""
OF_THE_FAST_PATH = "Answers from memory"
"""Zero while the fast path is off."""
MAY_BE_EMPTY = {key for key, query in QUERIES.items() if " by (" in query and "or vector(0)" not in query} - {
    key for key in QUERIES if key[0] in ABOVE_ZERO
}
"""No series until the first event; Grafana shows 0. `or vector(0)` would add a series without labels."""
LEFT_OUT = {*MAY_BE_EMPTY, ("Resources read from the cluster", "B")}
"""The last one needs an object that the API server does not accept."""
PATIENCE = 120


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A new one: alerts also show what failed in other tests of the session."""
    with ControlPlane(tmp_path_factory.mktemp("dashboard")) as running:
        running.add_node("node-0")
        yield running


@pytest.fixture(scope="module")
def chassis(control_plane: ControlPlane) -> Iterator[Chassis]:
    with running_chassis(control_plane) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(
    control_plane: ControlPlane, chassis: Chassis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    state = tmp_path_factory.mktemp("prometheus")
    (state / "puller").mkdir()
    puller = Sidecar(state / "puller", {}, server="none", ready_when="any")
    missing = {"missing": "https://127.0.0.1:1/nothing"}
    puller.config.write(missing)
    puller.start()
    control_plane.api_as("prometheus", ["system:masters"])  # writes its certificate
    certificate = str(control_plane.state / "prometheus.pem")
    skip = {"insecure_skip_verify": True}

    def job(name: str, target: str, **more: object) -> dict[str, object]:
        labels = {"namespace": NAMESPACE, "pod": f"{name}-0"}
        return {"job_name": name, "static_configs": [{"targets": [target], "labels": labels}], **more}

    running = Prometheus(
        state,
        [
            job("mlchassis", f"{HOST}:{chassis.port}", scheme="https", tls_config=skip),
            job("puller", f"{HOST}:{puller.port}"),
            job(
                "apiserver",
                f"{HOST}:{control_plane.port}",
                scheme="https",
                tls_config={**skip, "cert_file": certificate, "key_file": certificate},
            ),
        ],
        RULES,
    )
    running.process.wait_until(running.ready, PATIENCE)
    yield running
    running.process.terminate()
    puller.stop()


def busy(control_plane: ControlPlane, round: int) -> None:
    """A bit of everything that the webhook decides."""
    hazard = {"exec": {"command": ["curl", "http://payments/health"]}}
    endless = workload("Deployment", f"endless-{round}", container() | {"livenessProbe": hazard})
    excused = workload("Deployment", f"excused-{round}", container() | {"livenessProbe": hazard})
    excused["metadata"]["annotations"] = {"mlchassis.dev/exempt": "liveness-external-dependency=a test"}
    for item in (pod("same"), pod("same"), endless, excused):
        with suppress(ApiError):  # one of them is refused
            control_plane.api.create(item, "default", dry_run=True)


def expanded(expression: str) -> str:
    """The expression as Grafana sends it."""
    every = expression.replace("$cluster", ".*").replace("$namespace", ".*")
    return every.replace("$__rate_interval", "20s")


def test_every_query_gives_something(
    control_plane: ControlPlane, chassis: Chassis, prometheus: Prometheus
) -> None:
    empty = dict(QUERIES)
    above_zero = ABOVE_ZERO if chassis.metric("chassis_fast_path") else ABOVE_ZERO - {OF_THE_FAST_PATH}
    ends = time.monotonic() + PATIENCE
    rounds = 0
    while empty.keys() - LEFT_OUT and time.monotonic() < ends:
        busy(control_plane, rounds)
        rounds += 1
        time.sleep(0.3)
        for (title, ref), expression in list(empty.items()):
            found = prometheus.values(expanded(expression))
            if found and (title not in above_zero or max(found) > 0):
                del empty[title, ref]
    assert empty.keys() <= LEFT_OUT
    if above_zero != ABOVE_ZERO:
        for (title, _), expression in QUERIES.items():
            assert title != OF_THE_FAST_PATH or prometheus.values(expanded(expression)) == [0]


def test_titles_that_must_be_above_zero_are_there() -> None:
    assert {title for title, _ in QUERIES} >= ABOVE_ZERO


def test_prometheus_reads_every_alert(prometheus: Prometheus) -> None:
    loaded = prometheus.get("rules")
    assert isinstance(loaded, dict)
    found = {rule["name"]: rule for group in loaded["groups"] for rule in group["rules"]}
    assert set(found) == {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}


def test_a_healthy_webhook_raises_no_alert(prometheus: Prometheus) -> None:
    prometheus.process.wait_until(lambda: bool(prometheus.values("chassis_policy_valid")), PATIENCE)
    firing = prometheus.get("query", query='ALERTS{alertstate="firing",alertname!~".*(Model|Download).*"}')
    assert isinstance(firing, dict)
    assert firing["result"] == []
