"""The pages that benchmarks write, without the ten minutes that the measurements take."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import orjson
import pytest

from benchmarks import against_kyverno as kyverno
from benchmarks import cluster_size, leader
from benchmarks._page import put
from policies.kube.json import Json
from policies.models.model_puller import status_port

CPU = {kyverno.OURS: 2.0, kyverno.GO: 1.5, kyverno.CLASSIC: 12.0, kyverno.CEL: 6.0}


def _found() -> list[kyverno.Measured]:
    """Every measurement of a run: the second round used twice the CPU, as on a machine that got busy."""

    def one(way: str, form: str, number: int, others: int, seen: float, rate: int) -> kyverno.Measured:
        cpu = CPU.get(way, 0.0) * (number + 1)
        return kyverno.Measured(
            way, form, number, others, seen, rate, rate * 4, rate, cpu, 5.0, 3.0, 9.0, 120.0, 100.0
        )

    return [
        *(
            one(way, form, number, 0, seen, rate)
            for form, ways in kyverno.PHASES.items()
            for way, number, seen, rate in product(ways, range(2), kyverno.SEEN, kyverno.RATES)
        ),
        *(
            one(way, form, 0, others, 0.0, kyverno.OTHERS_RATE)
            for form, ways in kyverno.PHASES.items()
            for way, others in product(ways, kyverno.OTHERS)
        ),
    ]


def _page(found: list[kyverno.Measured]) -> str:
    return kyverno._page(found, {"rounds": 2, "seconds": 4.0, "machine": "one", "load": 1})


def test_a_measurement_that_did_not_end_is_a_question_mark() -> None:
    found = [each for each in _found() if (each.way, each.rate) != (kyverno.CLASSIC, 200)]
    page = _page(found)
    (line,) = (each for each in page.splitlines() if each.startswith("| all new | 200 | Kyverno, ClusterP"))
    assert line == "| all new | 200 | Kyverno, ClusterPolicy | ? | ? | ? | ? | ? | ? |"
    # The other rates are left for the range in the text.
    assert "ClusterPolicies cost 6.0 times" in page


def test_ranges_in_the_text_are_of_ratios_at_different_rates() -> None:
    found = [
        replace(each, webhook_ms=each.webhook_ms * 2)
        if (each.way, each.rate) == (kyverno.CLASSIC, 20)
        else each
        for each in _found()
    ]
    assert "ClusterPolicies cost 6.0 to 12.0 times" in _page(found)


def test_a_ratio_is_of_one_round() -> None:
    page = _page(_found())
    (classic,) = (
        line for line in page.splitlines() if line.startswith("| all new | 200 | Kyverno, ClusterP")
    )
    # Of medians it would be the same; of one round and another 3 or 12.
    assert "| 18.00 | **6.0** (6.0 to 6.0) |" in classic
    (cel,) = (line for line in page.splitlines() if line.startswith("| 90 % replicas | 20 | Kyverno, CEL"))
    assert "**3.0** (3.0 to 3.0)" in cel


def test_the_page_has_a_loss_too() -> None:
    (go,) = (line for line in _page(_found()).splitlines() if line.startswith("| all new | 200 | Go"))
    assert "**0.8** (0.8 to 0.8)" in go


def test_what_the_api_server_does_by_itself_has_no_webhook() -> None:
    for way in (kyverno.NONE, kyverno.POLICIES):
        (line,) = (
            line for line in _page(_found()).splitlines() if line.startswith(f"| all new | 200 | {way}")
        )
        assert line == f"| all new | 200 | {way} | 200 |  |  | 5.00 | 3.0 | 9.0 |"


def test_every_form_of_the_job_has_the_same_checks() -> None:
    """Or one of them would be measured at less work."""

    def messages(policies: list[Json]) -> list[str]:
        return [
            check["message"]
            for policy in policies
            for check in (
                *policy["spec"].get("validations", ()),
                *(rule["validate"] for rule in policy["spec"].get("rules", ()) if "validate" in rule),
            )
        ]

    own = [each for each in kyverno._admission_policies() if not each["kind"].endswith("Binding")]
    assert len(messages(own)) == 6
    assert messages(own) == messages(list(kyverno._cel_policies()))
    assert messages(own) == messages(list(kyverno._cluster_policies()))


def test_objects_are_stored_where_the_api_server_looks_for_them() -> None:
    keys = [cluster_size._stored(resource, 7)[0] for resource in cluster_size.STORED]
    assert "/registry/minions/node-7" in keys
    assert "/registry/services/specs/team-7/app-7" in keys
    assert "/registry/namespaces/team-7" in keys


def _audited(second: float, resource: str, verb: str = "create", user: str = leader.ACCOUNT) -> bytes:
    at = f"2026-01-05T09:{int(second // 60):02}:{second % 60:09.6f}Z"
    entry = {"user": {"username": user}, "verb": verb, "requestReceivedTimestamp": at}
    return orjson.dumps({**entry, "objectRef": {"resource": resource}})


def test_the_busiest_minute_is_any_sixty_seconds() -> None:
    """Not one of the clock: 40 writes before a full minute and 40 after it are 80 in one."""
    lines = [_audited(40 + each / 2, "events") for each in range(80)]
    writes = leader.Writes.read([*lines, _audited(50, "events", "get"), _audited(50, "events", user="other")])
    assert writes.busiest == 80
    assert writes.counts == {"events": 80}
    assert leader.Writes.read([]).busiest == 0


def test_the_pause_between_writes_is_of_one_resource() -> None:
    lines = [_audited(second, "configmaps", "update") for second in (130, 0, 65)]
    writes = leader.Writes.read([*lines, _audited(66, "leases")])
    assert writes.pauses("configmaps") == "3 times, at least 65 s apart"
    assert writes.pauses("leases") == "once"
    assert writes.pauses("events") == "never"


def test_the_page_about_leading_is_whole() -> None:
    writes = leader.Writes.read([_audited(0, "configmaps"), _audited(70, "configmaps")])
    page = leader.page([leader.Phase("quiet", 60, 1.5, 0.5, 10, writes, 3)], writes)
    assert "| quiet | 60 | 1.50 s | 0.50 s | 10 | 2 | 0 | 0 | 2 | 1 | 3 |" in page
    assert "was written 2 times, at least 70 s apart." in page


def test_pods_of_the_benchmark_are_pods_with_pullers() -> None:
    key, text = leader.stored(10)
    assert key == "/registry/pods/team-2/llm-2-5d4f-10"
    assert status_port(orjson.loads(text)) == leader.STATUS_PORT
    assert status_port(orjson.loads(leader.stored(11)[1])) is None


@pytest.mark.parametrize("section", ["first", "second"])
def test_a_benchmark_rewrites_its_own_section_only(section: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    for each in ("first", "second", section):
        put(each, f"text of {each}", page)
    assert page.read_text().count("text of first") == 1
    assert page.read_text().count("text of second") == 1
