"""Every alert fires where it should and is quiet otherwise, as promtool's unit tests see it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.e2e.binaries import binary
from tests.e2e.install import REPOSITORY

pytestmark = pytest.mark.e2e
COMPONENT = REPOSITORY / "manifests" / "components" / "monitoring"
RULES = yaml.safe_load((COMPONENT / "alerts.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}

POD = 'namespace="mlchassis-system",pod="mlchassis-0"'
OF_POD = {"namespace": "mlchassis-system", "pod": "mlchassis-0"}
PULLER = 'namespace="ml",pod="llm-0"'
OF_PULLER = {"namespace": "ml", "pod": "llm-0"}
OPEN = "apiserver_admission_webhook_fail_open_count"
REJECTED = "apiserver_admission_webhook_rejection_count"
DAY = 86400
BUCKETS = ("0.5", "1.0", "2.5", "5.0", "+Inf")


@dataclass(frozen=True)
class Case:
    """Series a minute apart, and whether an alert fires at some minute."""

    alert: str
    series: Mapping[str, str]
    minute: int
    labels: Mapping[str, str] | None = None
    """Of the alert, its own severity left out; None: it is quiet."""
    why: str = field(default="", kw_only=True)


def latency(fast: int, slow: int) -> dict[str, str]:
    """Reviews a minute that take less than half a second, and others that take two."""
    counts = dict(zip(BUCKETS, (fast, fast, fast + slow, fast + slow, fast + slow), strict=True))
    return {
        f'chassis_admission_seconds_bucket{{{POD},endpoint="mutate",le="{le}"}}': f"0+{count}x60"
        for le, count in counts.items()
    }


def counted(series: str, labels: Mapping[str, str], alert: str) -> list[Case]:
    """The properties of every alert about a counter that grows seldom."""
    return [
        Case(alert, {series: "0x5 1x60"}, 8, labels, why="it has grown"),
        Case(alert, {series: "_x5 1x60"}, 8, labels, why="its first value is an increase"),
        Case(alert, {series: "7x90"}, 60, why="it stands still"),
        Case(alert, {series: "0x5 1x90"}, 60, why="it was long ago"),
    ]


CASES = [
    Case("ChassisDown", {}, 10, {}),
    Case("ChassisDown", {f"chassis_admission_in_flight{{{POD}}}": "0x20"}, 10),
    Case("ChassisDown", {f"chassis_admission_in_flight{{{POD}}}": "0x10 stale"}, 13, why="not for long"),
    *counted(
        f'{OPEN}{{name="mutate.mlchassis.dev",type="admit"}}',
        {"name": "mutate.mlchassis.dev"},
        "ChassisFailedOpen",
    ),
    Case("ChassisFailedOpen", {f'{OPEN}{{name="mutate.other.dev",type="admit"}}': "0+1x30"}, 20),
    *counted(
        f'{REJECTED}{{name="validate.mlchassis.dev",error_type="calling_webhook_error"}}',
        {"name": "validate.mlchassis.dev"},
        "ChassisCallsRefused",
    ),
    Case(
        "ChassisCallsRefused",
        {f'{REJECTED}{{name="validate.mlchassis.dev",error_type="no_error"}}': "0+1x30"},
        20,
        why="it refused, as it should",
    ),
    Case("ChassisPolicyInvalid", {f"chassis_policy_valid{{{POD}}}": "0x20"}, 15, OF_POD),
    Case("ChassisPolicyInvalid", {f"chassis_policy_valid{{{POD}}}": "1x20"}, 15),
    Case("ChassisPolicyInvalid", {f"chassis_policy_valid{{{POD}}}": "0x5 1x20"}, 15, why="mended"),
    Case(
        "ChassisReplicasDisagree",
        {f'chassis_policy_info{{pod="{pod}",digest="{pod}"}}': "1x20" for pod in "ab"},
        15,
        {},
    ),
    Case(
        "ChassisReplicasDisagree",
        {f'chassis_policy_info{{pod="{pod}",digest="c"}}': "1x20" for pod in "ab"}
        | {'chassis_policy_info{pod="a",digest="before"}': "0x20"},
        15,
    ),
    Case(
        "ChassisCertificateExpiring",
        {f"chassis_certificate_expiry_timestamp_seconds{{{POD}}}": f"{13 * DAY}x90"},
        70,
        OF_POD,
    ),
    Case(
        "ChassisCertificateExpiring",
        {f"chassis_certificate_expiry_timestamp_seconds{{{POD}}}": f"{31 * DAY}x90"},
        70,
    ),
    Case(
        "ChassisCertificateExpiring",
        {f"chassis_certificate_expiry_timestamp_seconds{{{POD}}}": "0x90"},
        70,
        why="there is none yet",
    ),
    *counted(
        f'chassis_admission_requests_total{{{POD},endpoint="validate",outcome="failed",kind="Pod"}}',
        OF_POD | {"endpoint": "validate"},
        "ChassisReviewsFailed",
    ),
    Case(
        "ChassisReviewsFailed",
        {
            f'chassis_admission_requests_total{{{POD},endpoint="validate",outcome="denied"}}': "0+1x30",
        },
        20,
    ),
    *counted(
        f'chassis_policy_errors_total{{{POD},policy="gpu-affinity"}}',
        OF_POD | {"policy": "gpu-affinity"},
        "ChassisPolicyErrors",
    ),
    *counted(
        f'chassis_worker_restarts_total{{{POD},reason="hung"}}',
        OF_POD | {"reason": "hung"},
        "ChassisWorkerRestarts",
    ),
    Case("ChassisSlow", latency(10, 10), 40, {"endpoint": "mutate"}),
    Case("ChassisSlow", latency(1000, 1), 40),
    Case(
        "ChassisTurnsAway",
        {f'chassis_refused_total{{{POD},reason="no-room"}}': "0+1x40"},
        30,
        OF_POD | {"reason": "no-room"},
    ),
    Case(
        "ChassisTurnsAway",
        {f'chassis_refused_total{{{POD},reason="no-handshake"}}': "0+1x40"},
        30,
        why="a port scanner",
    ),
    Case(
        "ChassisTurnsAway", {f'chassis_refused_total{{{POD},reason="no-room"}}': "0x10 1x40"}, 30, why="once"
    ),
    Case(
        "ChassisFactsUnknown",
        {f'chassis_facts_synced{{{POD},resource="services"}}': "0x60"},
        40,
        OF_POD | {"resource": "services"},
    ),
    Case("ChassisFactsUnknown", {f'chassis_facts_synced{{{POD},resource="services"}}': "0x10 1x60"}, 40),
    Case(
        "ChassisWorkerNamesUnavailable",
        {f'chassis_worker_names_unavailable_total{{{POD},answer="refuse"}}': "0+1x30"},
        20,
        {},
    ),
    Case(
        "ChassisWorkerNamesUnavailable",
        {f'chassis_worker_names_unavailable_total{{{POD},answer="refuse"}}': "0x10 1x30"},
        20,
    ),
    Case("ChassisUnmutatedPods", {f"chassis_unmutated_pods{{{POD}}}": "3x40"}, 35, {}),
    Case("ChassisUnmutatedPods", {f"chassis_unmutated_pods{{{POD}}}": "0x40"}, 35),
    Case("ChassisUnmutatedPods", {f"chassis_unmutated_pods{{{POD}}}": "3x10 0x30"}, 35, why="repaired"),
    Case("ChassisModelConfigInvalid", {f"chassis_puller_config_errors{{{PULLER}}}": "2x40"}, 20, OF_PULLER),
    Case("ChassisModelConfigInvalid", {f"chassis_puller_config_errors{{{PULLER}}}": "0x40"}, 20),
    Case("ChassisModelsNotReady", {f"chassis_puller_ready{{{PULLER}}}": "0x90"}, 70, OF_PULLER),
    Case("ChassisModelsNotReady", {f"chassis_puller_ready{{{PULLER}}}": "0x30 1x60"}, 70),
    Case(
        "ChassisDownloadsFail",
        {f'chassis_puller_failures_total{{{PULLER},reason="refused"}}': "0+1x90"},
        80,
        OF_PULLER | {"reason": "refused"},
    ),
    Case(
        "ChassisDownloadsFail",
        {f'chassis_puller_failures_total{{{PULLER},reason="refused"}}': "0x10 1x90"},
        80,
    ),
]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("promtool"), *arguments], text=True, capture_output=True)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules as Prometheus reads them, without the object around them."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(RULES))
    return path


def test_promtool_finds_nothing_wrong(rules: Path) -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fires", [True, False])
def test_every_alert_has_both_cases(fires: bool) -> None:
    assert {case.alert for case in CASES if (case.labels is not None) == fires} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_it_fires_where_it_should_and_is_quiet_otherwise(rules: Path, tmp_path: Path, alert: str) -> None:
    tests = []
    for case in CASES:
        if case.alert != alert:
            continue
        labels = {"alertname": alert, "alertstate": "firing", "severity": ALERTS[alert]["labels"]["severity"]}
        written = ", ".join(f'{key}="{value}"' for key, value in (labels | dict(case.labels or {})).items())
        firing = [] if case.labels is None else [{"labels": f"ALERTS{{{written}}}", "value": 1}]
        tests.append(
            {
                "name": f"{'quiet' if case.labels is None else 'fires'} {case.why}",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                        "eval_time": f"{case.minute}m",
                        "exp_samples": firing,
                    }
                ],
            }
        )
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_it_leads_to_its_section_of_the_runbook(alert: str) -> None:
    runbook = (REPOSITORY / "docs" / "runbook.md").read_text()
    page, _, anchor = ALERTS[alert]["annotations"]["runbook_url"].partition("#")
    assert page.endswith("/docs/runbook.md")
    assert anchor == alert.lower()
    section = runbook.split(f"\n## {alert}\n", 1)[1].split("\n## ")[0]
    assert len(section.split()) > 30
    assert ALERTS[alert]["annotations"]["summary"]


def test_the_runbook_has_no_other_sections() -> None:
    runbook = (REPOSITORY / "docs" / "runbook.md").read_text()
    assert {line[3:] for line in runbook.splitlines() if line.startswith("## Chassis")} == set(ALERTS)
