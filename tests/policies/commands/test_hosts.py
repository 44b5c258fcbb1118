"""Hosts in URLs and host:port pairs, their place, and values that are known in part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.commands import Reach, values
from policies.commands.durations import seconds
from policies.commands.hosts import host, is_url, reach_of, split_port, url_hosts
from policies.commands.model import StepBudget
from tests.tables import table

UNKNOWN, OWN, OTHER = values.unknown("X"), values.own("POD_IP"), values.other("HOST_IP")


HOSTS = {
    Reach.LOCAL: [
        *("localhost", "LOCALHOST.", "app.localhost", "127.0.0.1", "127.9.9.9", "127.1", "0", "0.0.0.0"),
        *("::1", "[::1]", "::", "::ffff:127.0.0.1", "/var/run/postgresql", OWN, f"{OWN}.headless.ns.svc"),
    ],
    Reach.EXTERNAL: [
        *("localhost.example.com", "127.0.0.1.example.com", "notlocalhost", "128.0.0.1", "::2"),
        *("fe80::1%eth0", "db.ns.svc.cluster.local.", OTHER, f"db.{UNKNOWN}.svc"),
    ],
    Reach.UNDECIDABLE: [
        *(UNKNOWN, f"{UNKNOWN}.svc", f"{UNKNOWN}-db", f"{OWN}-db", f"localhost.{UNKNOWN}", f"10.{UNKNOWN}"),
        *("$(DB)", "{a,b}", ""),
    ],
}


@table(("name", "reach"), [(name, reach) for reach in HOSTS for name in HOSTS[reach]])
def test_reach(name: str, reach: Reach) -> None:
    assert reach_of(name) is reach


@table(
    ("text", "expected"),
    [
        ("http://db", ["db"]),
        ("HTTPS://DB:8443/x?y#z", ["db"]),
        ("http://u:p@db:1/@localhost", ["db"]),
        ("http://[2001:db8::1]:9/", ["2001:db8::1"]),
        ("http://db?x=/y", ["db"]),
        ("db:80/health", ["db"]),
        ("mongodb+srv://u:p@a:1,b:2/x", ["a", "b"]),
        ("jdbc:postgresql://db/x", ["db"]),
        (f"{UNKNOWN}://localhost:80/", ["localhost"]),
        (f"http://{UNKNOWN}:{UNKNOWN}/", ["$X"]),
        ("http:///x", [""]),
        ("unix:///run/x.sock", []),
        ("file:///etc/passwd", []),
        ("redis:///0", []),
        ("gs://vision-models/triton", []),
        ("s3://models", []),
    ],
)
def test_url_hosts(text: str, expected: list[str]) -> None:
    assert [each.name for each in url_hosts(text, "curl")] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("db", ("db", None)),
        ("db:80", ("db", 80)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", None)),
        ("fe80::1", ("fe80::1", None)),
        ("db:http", ("db", None)),
        (":80", ("", 80)),
        ("db:999999", ("db", None)),
    ],
)
def test_split_port(text: str, expected: tuple[str, int | None]) -> None:
    assert split_port(text) == expected


def test_a_port_without_a_host_is_this_machine() -> None:
    assert host(":8080", "grpc_health_probe").reach is Reach.LOCAL


@given(text=st.text(max_size=60))
def test_any_text_may_be_a_url(text: str) -> None:
    for each in url_hosts(text, "curl"):
        assert each.reach in Reach
    assert isinstance(is_url(text), bool)
    assert host(text, "curl").client == "curl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("0.5", 0.5),
        (".5s", 0.5),
        ("2m", 120),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1h", 3600),
        ("1d", 86400),
        ("1.5.5", 2),
        ("1h2h3", 3 * 3600 + 3),
    ],
)
def test_seconds(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "x", "5x", "-5", "$T", "٣", "1" * 50, "s", "1" * 38 + "x", "1.5.h"])
def test_no_seconds(text: str) -> None:
    assert seconds(text) is None


def environment(*entries: Any, **options: Any) -> values.Environment:
    return values.Environment(entries, budget=StepBudget(), **options)


def test_values_refer_to_earlier_ones() -> None:
    known = environment(
        {"name": "LATER", "value": "$(HOST)"},
        {"name": "HOST", "value": "db"},
        {"name": "URL", "value": "http://$(HOST):$(PORT)/$$(HOST)"},
    )
    assert known.values["LATER"] == "$(HOST)"
    assert known.values["URL"] == "http://db:$(PORT)/$(HOST)"
    assert known.expand("$(URL) $$(URL) $URL $$URL $(") == "http://db:$(PORT)/$(HOST) $(URL) $URL $URL $("


def test_the_last_of_two_entries_counts() -> None:
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    known = environment({"name": "A", "valueFrom": field}, {"name": "A", "value": "x"})
    assert known.expand("$(A)") == "x"
    assert list(known.emptied_in("$(A)")) == []


def test_marks_in_the_users_own_text_mean_nothing() -> None:
    assert reach_of(environment().expand("\ue001POD_IP\ue003")) is Reach.UNDECIDABLE
    assert environment({"name": "A", "value": "\ue001x\ue003"}).values["A"] == "?x?"
