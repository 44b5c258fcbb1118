"""docs/what-probes-notice.md has the records of `make servers`, and facts read in sources."""

from __future__ import annotations

import re
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from policies.core import data
from policies.probes.preset import known_presets
from tests.servers.server import (
    NOTICED,
    OVERLOAD,
    Server,
    described,
    injected,
    own_servers,
    recorded,
    servers,
)

PAGE = Path(__file__).parents[2] / "docs" / "what-probes-notice.md"
SOURCES = Path(__file__).with_name("sources.yaml")
BLOCK = re.compile(
    r"(<!-- (noticed|summary|sources|overload): begin [^>]*-->\n).*?(<!-- \2: end -->)", re.DOTALL
)
HAZARDS = {
    "stopped: ": "a worker is stopped",
    "killed: ": "a worker is killed",
    "1 call ": "1 call never returns",
    "100 calls ": "100 calls never return",
    "100 clients ": "100 clients, 1 s a call",
    "every call fails": "calls fail as after a GPU error",
    "the model fails": "the model fails to load",
    "clients never": "clients never read",
}
"""How the records of each hazard begin, and the head of its column."""
LOAD = "100 clients "
NEEDS: dict[str, Literal["worker", "model", "weights"]] = {
    "killed: ": "worker",
    "1 call ": "model",
    "100 calls ": "model",
    LOAD: "model",
    "every call fails": "model",
    "the model fails": "weights",
}
"""What a server must have so that a hazard applies to it. One without models has no weights either."""
NOT_NOTICED = "**not noticed**"
NO_USE, UNTRIED = "does not apply", "not tried"
ALWAYS_UNNOTICED = "calls fail as after a GPU error"
"""The page says why: a probe cannot distinguish it from a bad request."""
SHIPPED = Path(__file__).parents[2] / "policies" / "probes" / "noticed.yaml"
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def _probe(after: float | None) -> str:
    return "passes" if after is None else f"fails after {after:.0f} s"


def _later(row: dict[str, Any]) -> str:
    """The later state, without a restart and after one."""
    if row.get("ended"):
        return "the process ends"
    if row.get("endsLater"):
        return "the process ends when it goes on; served after a restart"
    words = {None: "", True: "served again", False: "not served"}[row.get("recovers")]
    if row.get("restart") and not row.get("recovers"):
        words += "; served after a restart"
    return words


def table() -> str:
    rows = [
        "| server | what happens | liveness | readiness | a client | later |",
        "|---|---|---|---|---|---|",
    ]
    for entry in recorded(NOTICED).values():
        for what, row in entry["seen"].items():
            probes = f"{_probe(row.get('live'))} | {_probe(row.get('ready'))}"
            client = "served" if row["served"] else "not served"
            rows.append(f"| {entry['server']} | {what} | {probes} | {client} | {_later(row)} |")
    return "\n".join([*rows, ""])


def _cell(rows: list[dict[str, Any]]) -> str:
    """The worst of these records for clients."""
    lost = [row for row in rows if not row["served"]]
    if not rows:
        return ""
    unnoticed = [row for row in lost if row.get("live") is None and not row.get("ended")]
    if any(row.get("recovers") is not True for row in unnoticed):
        return NOT_NOTICED
    if unnoticed:
        return "recovers"
    if lost:
        return "noticed"
    return "restarted although served" if any(row.get("live") is not None for row in rows) else "served"


def _under_load(rows: list[dict[str, Any]]) -> str:
    """A server under honest load is healthy, however long its queue is."""
    return "".join("passes" if row.get("live") is None else "**liveness fails**" for row in rows)


def why_not(server: Server, start: str) -> str:
    """Why a hazard does not apply to a server; empty if it does."""
    needed = NEEDS.get(start)
    if needed is None:
        return ""
    return server.lacks.get(needed, server.lacks.get("model", "") if needed == "weights" else "")


def outcomes(name: str) -> dict[str, str]:
    """What each hazard led to for a server, by the hazard's column."""
    seen = recorded(NOTICED)[name]["seen"]
    found = {}
    for start, head in HAZARDS.items():
        rows = [row for what, row in seen.items() if what.startswith(start)]
        found[head] = _under_load(rows) if start == LOAD else _cell(rows)
        found[head] = found[head] or (NO_USE if why_not(servers()[name], start) else UNTRIED)
    return found


def summary() -> str:
    """Servers by hazards: whether a client is served, and if not, whether liveness fails. Reasons follow."""
    lines = [f"| server | {' | '.join(HAZARDS.values())} |", "|---" * (len(HAZARDS) + 1) + "|"]
    by_reason: dict[str, list[str]] = {}
    for name, entry in recorded(NOTICED).items():
        lines.append(f"| {name}: {entry['server']} | {' | '.join(outcomes(name).values())} |")
        for what, why in servers()[name].lacks.items():
            by_reason.setdefault(f"no {what} ({why})", []).append(name)
    lines += ["", "What does not apply, and why:", ""]
    lines += [f"- {what}: {', '.join(names)}." for what, names in sorted(by_reason.items(), reverse=True)]
    lines += ["", "Why the other hangs are not noticed:", ""]
    lines += [
        f"- {name}, {what}: {why}"
        for name in recorded(NOTICED)
        for what, why in servers()[name].unnoticed.items()
    ]
    return "\n".join([*lines, ""])


def overload() -> str:
    """Healthy servers by what they went through, and what their liveness did."""
    lines = [
        "| server | liveness | what happens | minutes | answered | longest silence | probes failed "
        "| in a row | restarts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in recorded(OVERLOAD).items():
        sign = described(injected({**servers(), **own_servers()}[name])["livenessProbe"])
        for what, row in entry["seen"].items():
            failed = f"{row['failed']} of {row['probes']} | {row['inARow']} of {row['threshold']}"
            answered = f"{row['finished']} of {row['sent']} | {row['silence']} s"
            lasted = f"{what} | {row['minutes']:.0f} | {answered}"
            lines.append(f"| {name}: {entry['server']} | {sign} | {lasted} | {failed} | {row['restarts']} |")
    return "\n".join([*lines, ""])


def sources() -> str:
    lines = [
        "| server | a hung engine | a full queue | an error of the engine | source |",
        "|---|---|---|---|---|",
    ]
    lines += [
        "| " + " | ".join(entry[key] for key in ("server", "hung", "load", "error", "source")) + " |"
        for entry in read_in_sources()
    ]
    return "\n".join([*lines, ""])


def shipped() -> str:
    """The data of `chassis scan --view servers`: the summary and the sources, by preset."""
    found: list[dict[str, Any]] = []
    for name, entry in recorded(NOTICED).items():
        seen = {
            head: cell.strip("*") for head, cell in outcomes(name).items() if cell not in (NO_USE, UNTRIED)
        }
        found.append({"preset": entry["preset"], "server": entry["server"], "how": "tried", "seen": seen})
    for entry in read_in_sources():
        read = {
            "a hung engine": entry["hung"],
            "a full queue": entry["load"],
            "an error of the engine": entry["error"],
        }
        found.append(
            {
                "preset": entry["preset"],
                "server": entry["server"],
                "how": "from its source or documentation",
                "seen": {what: LINK.sub(r"\1", said) for what, said in read.items()},
            }
        )
    head = "# Written by `make golden` from the records of docs/what-probes-notice.md; do not edit it.\n"
    found.sort(key=itemgetter("preset"))
    return head + yaml.safe_dump(found, sort_keys=False, width=110)


def test_the_view_of_servers_has_what_was_recorded(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden", default=False):
        SHIPPED.write_text(shipped())
    assert SHIPPED.read_text() == shipped()


def read_in_sources() -> list[dict[str, str]]:
    found: list[dict[str, str]] = data.parsed(SOURCES.read_text())
    return found


TABLES = {"noticed": table, "summary": summary, "sources": sources, "overload": overload}


def test_the_page_has_the_records(request: pytest.FixtureRequest) -> None:
    assert {found[2] for found in BLOCK.finditer(PAGE.read_text())} == set(TABLES)
    wanted = BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], PAGE.read_text())
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


@pytest.mark.parametrize("name", recorded(NOTICED))
def test_the_record_is_of_the_server_that_is_tried(name: str) -> None:
    assert recorded(NOTICED)[name]["server"] == servers()[name].version
    for what in recorded(NOTICED)[name]["seen"]:
        assert what.startswith(tuple(HAZARDS)), what


@pytest.mark.parametrize("name", recorded(NOTICED))
def test_each_cell_has_a_record_or_a_reason(name: str) -> None:
    cells = outcomes(name)
    unnoticed = {head for head, cell in cells.items() if cell == NOT_NOTICED} - {ALWAYS_UNNOTICED}
    assert unnoticed == set(servers()[name].unnoticed)
    for start, head in HAZARDS.items():
        assert (cells[head] == NO_USE) == bool(why_not(servers()[name], start)), "it was tried"


@pytest.mark.parametrize("name", recorded(OVERLOAD))
def test_no_healthy_server_was_restarted(name: str) -> None:
    entry = recorded(OVERLOAD)[name]
    assert entry["server"] == {**servers(), **own_servers()}[name].version
    assert {row["restarts"] for row in entry["seen"].values()} == {0}


def test_each_row_from_source_is_complete_and_of_a_known_preset() -> None:
    for entry in read_in_sources():
        assert set(entry) == {"server", "preset", "hung", "load", "error", "source"}
        assert all(isinstance(value, str) and value for value in entry.values())
        assert entry["preset"] in known_presets()
