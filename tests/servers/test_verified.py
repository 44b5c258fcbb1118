"""The records of `make servers` still hold: same versions, same probes, same docs/probes.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policies.probes.preset import known_presets
from tests.servers.server import described, injected, servers, verified

PAGE = Path(__file__).parents[2] / "docs" / "probes.md"
BLOCK = re.compile(r"(<!-- verified: begin [^>]*-->\n).*?(<!-- verified: end -->)", re.DOTALL)


def table() -> str:
    rows = [
        "| preset | server | command | day | while it loads | under load |",
        "|---|---|---|---|---|---|",
    ]
    for entry in verified().values():
        load = entry["underLoad"]
        failed = f", {load['missed']} failed" if load["missed"] else ""
        rows.append(
            f"| {entry['preset']} | {entry['server']} | `{entry['command']}` | {entry['on']} "
            f"| {entry['whileLoading']} | {load['asked']} probes{failed} |"
        )
    live = {entry["preset"] for entry in verified().values()}
    others = [
        name
        for name, preset in known_presets().items()
        if name not in live and not preset.doubt and not preset.worker
    ]
    return "\n".join([*rows, "", f"Known only from documentation or source: {', '.join(others)}.", ""])


def test_the_page_lists_the_verified_presets(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    wanted = BLOCK.sub(lambda found: found[1] + table() + found[2], page)
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


@pytest.mark.parametrize("name", verified())
def test_the_preset_is_still_the_verified_one(name: str) -> None:
    entry, server = verified()[name], servers()[name]
    assert (entry["preset"], entry["server"]) == (server.preset, server.version)
    assert entry["command"] == " ".join(server.command)
    assert entry["probes"] == {field: described(probe) for field, probe in injected(server).items()}


def test_every_server_tries_a_known_preset() -> None:
    assert {server.preset for server in servers().values()} <= set(known_presets())
