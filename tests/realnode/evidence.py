"""The figures of the experiments, and `docs/evidence.md` made of them.

A run keeps its figures in the directory that the variable CHASSIS_EVIDENCE names, if it names one.

    python -m tests.realnode.evidence DIRECTORY     write docs/evidence.md and its pictures from these
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.install import REPOSITORY
from tests.realnode import picture

DIRECTORY = "CHASSIS_EVIDENCE"
PAGE = REPOSITORY / "docs" / "evidence.md"
TEMPLATE = Path(__file__).with_name("evidence.md")
PICTURES = REPOSITORY / "docs" / "evidence"
FIGURES = PICTURES / "figures.json"


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write down what an experiment showed."""
    if directory := os.environ.get(DIRECTORY):
        Path(directory).mkdir(parents=True, exist_ok=True)
        Path(directory, f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")


def seconds(value: float | None) -> str:
    """A time for people."""
    return "never" if value is None else f"{value:.0f} s"


def share(value: float | None) -> str:
    """A share for people."""
    return "none sent" if value is None else f"{value:.1%}"


def _row(text: str, without: str, with_: str) -> str:
    return f"| {text} | {without} | {with_} |\n"


def page(found: dict[str, Any]) -> str:
    """The page, from the figures of every experiment."""
    outage = found["outage"]
    events = outage["with"]["events"]
    after = {name: moment - events["hung"] for name, moment in events.items()}
    rows = ""
    for name, (title, cells) in CELLS.items():
        rows += _row(title, *(cell(found[name]) for cell in cells))
    under_fire = "".join(
        f"| {name} | {it['creates']} | {it['lost']} | {it['refused']} | {it['unmutated']} |\n"
        for name, it in found["under_fire"].items()
    )
    pulled = "".join(f"| {name} | {seconds(took)} |\n" for name, took in found["puller"].items())
    return TEMPLATE.read_text().format(
        shed=seconds(after["out of the Service"]),
        restarted=seconds(after["first restart"]),
        whole=seconds(after["all ready again"]),
        before_with=share(outage["with"]["before"]),
        before_without=share(outage["without"]["before"]),
        end_with=share(outage["with"]["at the end"]),
        end_without=share(outage["without"]["at the end"]),
        rows=rows,
        under_fire=under_fire,
        pulled=pulled,
    )


Cell = Callable[[dict[str, Any]], str]
CELLS: dict[str, tuple[str, tuple[Cell, Cell]]] = {
    "slow_start": (
        "A server that loads for 45 s, under a liveness probe that gives it 20",
        (
            lambda it: f"restarted {it['without']['restarts']} times, never answers",
            lambda it: (
                f"answers after {seconds(it['with']['answered after'])}, {it['with']['restarts']} restarts"
            ),
        ),
    ),
    "feature_store": (
        "A liveness probe that asks a feature store, which is down for a minute",
        (
            lambda it: f"{it['without']['replicas restarted']} of 3 replicas restarted",
            lambda it: f"refused; with the probe it gets instead, {it['with']['restarts']} restarts",
        ),
    ),
    "strict_liveness": (
        "A minute of overload, under a liveness probe that gives up as soon as readiness does",
        (
            lambda it: f"{it['without']['restarts']} restarts",
            lambda it: f"{it['with']['after']} restarts under the injected probes",
        ),
    ),
    "rolling_update": (
        "Two rolling restarts under 40 requests a second; the server ends at SIGTERM at once",
        (
            lambda it: f"{it['without']['lost']} of {it['without']['requests']} requests lost",
            lambda it: f"{it['with']['lost']} of {it['with']['requests']} lost",
        ),
    ),
    "jobs": (
        "A Job with `backoffLimit: 0` whose pod is evicted; a training Job that fails by a mistake",
        (
            lambda it: f"{it['without']['evicted']}; tried {it['without']['tries']} times and more",
            lambda it: f"{it['with']['evicted']}; {it['with']['wrong']} after {it['with']['tries']} try",
        ),
    ),
    "blocked_drain": (
        "A budget that asks for as many replicas as there are, and an eviction",
        (
            lambda it: f"refused {it['without']['tries']} times, once a second",
            lambda it: (
                f"the budget is refused; under one that can allow it, try {it['with']['tries']} succeeds"
            ),
        ),
    ),
    "own_volume": (
        "A rolling update of a pod that holds its volume alone",
        (
            lambda it: "not through after 90 s: the new pod is Pending",
            lambda it: f"refused; with `Recreate`, through after {seconds(it['with']['updated after'])}",
        ),
    ),
    "own_service": (
        "An init container that waits for the Service of its own pod",
        (
            lambda it: (
                "not ready after 90 s; one that waits for another Service is, after "
                f"{seconds(it['without']['control ready after'])}"
            ),
            lambda it: "refused",
        ),
    ),
}


def outage_picture(outage: dict[str, Any]) -> str:
    """The share of requests answered over time, in both arms."""
    events = outage["with"]["events"]
    lines = {
        name: [(at, value) for at, value in outage[arm]["line"] if value is not None]
        for name, arm in (("with the webhook", "with"), ("without", "without"))
    }
    marks = {"hung": events["hung"], "first restart": events["first restart"]}
    title = "Share of requests answered: three replicas that hang under overload"
    return picture.shares(title, lines, marks)


def main(directory: Path) -> None:
    """Write the page, its pictures and the figures behind them."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    PICTURES.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))
    (PICTURES / "outage.svg").write_text(outage_picture(found["outage"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
