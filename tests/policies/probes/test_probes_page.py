"""The table of servers in docs/probes.md is the table in the code; `make golden` writes it."""

import re
from pathlib import Path

import pytest

from policies.probes.preset import Preset, Protocol, known_presets

PAGE = Path(__file__).parents[3] / "docs" / "probes.md"
BLOCK = re.compile(r"(<!-- presets: begin [^>]*-->\n).*?(<!-- presets: end -->)", re.DOTALL)


def row(name: str, preset: Preset) -> str:
    ready = "" if preset.ready_path == preset.live_path else f", `{preset.ready_path}`"
    asked = "gRPC health" if preset.protocol is Protocol.GRPC else f"`{preset.live_path}`{ready}"
    told_by = ", ".join(f"`{item}`" for item in dict.fromkeys((*preset.commands, *preset.images)))
    start = f"{preset.expected_start} s"
    return f"| [{name}]({preset.source}) | {asked} | {preset.port} | {start} | {told_by} |"


def table() -> str:
    head = "| server | liveness, readiness | port | usual start | told by |\n|---|---|---|---|---|\n"
    return head + "".join(f"{row(name, preset)}\n" for name, preset in known_presets().items())


def test_the_page_lists_the_servers(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    wanted = BLOCK.sub(lambda found: found[1] + table() + found[2], page)
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


@pytest.mark.parametrize("name", known_presets())
def test_a_preset_is_whole(name: str) -> None:
    preset = known_presets()[name]
    assert preset.source
    assert preset.source.startswith("https://")
    assert preset.port
    assert preset.expected_start
    assert preset.images or preset.commands
    if preset.protocol is Protocol.HTTP:
        assert preset.live_path
        assert preset.ready_path
        assert preset.live_path.startswith("/")
        assert preset.ready_path.startswith("/")
