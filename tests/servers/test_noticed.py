"""docs/what-probes-notice.md has what `make servers` recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.servers.server import NOTICED, recorded, servers

PAGE = Path(__file__).parents[2] / "docs" / "what-probes-notice.md"
BLOCK = re.compile(r"(<!-- noticed: begin [^>]*-->\n).*?(<!-- noticed: end -->)", re.DOTALL)


def _probe(after: float | None) -> str:
    return "passes" if after is None else f"fails after {after:.0f} s"


def _client(row: dict[str, Any]) -> str:
    if row["served"]:
        return "served"
    return {None: "not served", True: "not served, later served again", False: "not served, nor later"}[
        row.get("recovers")
    ]


def table() -> str:
    rows = ["| server | what happens | liveness | readiness | a client |", "|---|---|---|---|---|"]
    for entry in recorded(NOTICED).values():
        rows += [
            f"| {entry['server']} | {what} | {_probe(row.get('live'))} | {_probe(row.get('ready'))} "
            f"| {_client(row)} |"
            for what, row in entry["seen"].items()
        ]
    return "\n".join([*rows, ""])


def test_the_page_has_what_was_recorded(request: pytest.FixtureRequest) -> None:
    wanted = BLOCK.sub(lambda found: found[1] + table() + found[2], PAGE.read_text())
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


@pytest.mark.parametrize("name", recorded(NOTICED))
def test_the_record_is_of_the_server_that_is_tried(name: str) -> None:
    assert recorded(NOTICED)[name]["server"] == servers()[name].version
