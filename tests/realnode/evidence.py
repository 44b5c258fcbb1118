"""The figures of the experiments, and `docs/evidence.md` made of them.

A run keeps its figures in the directory that the variable CHASSIS_EVIDENCE names, if it names one.

    python -m tests.realnode.evidence DIRECTORY           write docs/evidence.md and its pictures from these
    python -m tests.realnode.evidence --add DIRECTORY     the same, what was not run again staying as it was
    python -m tests.realnode.evidence --compare DIRECTORY show how these would change docs/evidence.md
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from policies.core.contracts import Family, Rule
from tests.e2e.install import REPOSITORY
from tests.realnode import picture
from tests.realnode.experiments import AT_ONCE, EXPERIMENTS, Experiment
from tests.realnode.formats import seconds, share, times
from webhook.cli import explain

DIRECTORY = "CHASSIS_EVIDENCE"
PAGE = REPOSITORY / "docs" / "evidence.md"
TEMPLATE = Path(__file__).with_name("evidence.md")
PICTURES = REPOSITORY / "docs" / "evidence"
FIGURES = PICTURES / "figures.json"
NOT_EXPERIMENTS = ("conditions", "own_servers", "under_fire", "puller")
"""Figures of other shapes."""
REACTIONS = {"refuses": "refused; ", "warns": "warned about; ", "": ""}


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write down what an experiment showed."""
    if directory := os.environ.get(DIRECTORY):
        Path(directory).mkdir(parents=True, exist_ok=True)
        Path(directory, f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")


def read(directory: Path) -> dict[str, Any]:
    """The figures of a run."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}


def page(found: dict[str, Any]) -> str:
    """The page, from the figures of every experiment."""
    outage = found["outage"]
    events = outage["with"]["events"]
    after = {name: moment - events["hung"] for name, moment in events.items()}
    under_fire = "".join(
        f"| {name} | {it['creates']} | {it['lost']} | {it['refused']} | {it['unmutated']} |\n"
        for name, it in found["under_fire"].items()
    )
    own_servers = "".join(
        f"| {name} | {' | '.join(map(_reaction_to_outage, arms.values()))} |\n"
        for name, arms in found["own_servers"].items()
    )
    pulled = "".join(f"| {name} | {seconds(took)} |\n" for name, took in found["puller"].items())
    return TEMPLATE.read_text().format(
        conditions=_conditions(**found["conditions"]),
        experiments=len(EXPERIMENTS),
        at_once=AT_ONCE,
        shed=seconds(after["out of the Service"]),
        restarted=seconds(after["first restart"]),
        whole=seconds(after["all ready again"]),
        before_with=share(outage["with"]["before"]),
        before_without=share(outage["without"]["before"]),
        again=share(outage["with"]["again"]),
        end_with=share(outage["with"]["at the end"]),
        end_without=share(outage["without"]["at the end"]),
        own_servers=own_servers,
        deadlock="".join(rule_rows(Family.DEADLOCK, found)),
        cascade="".join(rule_rows(Family.CASCADE, found)),
        others="".join(
            f"| {it.hazard} | {_cells(it, found[name])} |\n"
            for name, it in EXPERIMENTS.items()
            if not it.rule
        ),
        under_fire=under_fire,
        pulled=pulled,
    )


def _conditions(
    *, cpus: int, busy: float, memory: int, kubelet: str, runtime: str, seconds: float, runs: int = 1
) -> str:
    which = (
        "All figures are those of one run" if runs == 1 else f"The figures are those of {runs} runs, the last"
    )
    machine = f"kubelet {kubelet}, {runtime}, {memory / 2**30:.0f} GiB of memory, {cpus} CPUs"
    return f"{which}: {machine} of which {share(busy)} was in use over the {seconds:.0f} s that it took"


def rule_rows(family: Family, found: dict[str, Any]) -> Iterator[str]:
    """A row for every rule of a family: what its experiment showed, or why there is none."""
    shown = {it.rule: (name, it) for name, it in EXPERIMENTS.items() if it.rule}
    for rule in explain.of_family(family):
        if rule.id in shown:
            name, experiment = shown[rule.id]
            yield f"| {_link(rule)} | {experiment.hazard} | {_cells(experiment, found[name])} |\n"
        else:
            yield f"| {_link(rule)} | {rule.document.evidence} | | |\n"


def _link(rule: Rule) -> str:
    """A rule's name, to be linked to and linked to its own page."""
    return f'<a id="{rule.id}"></a>[{rule.id}](rules/{rule.id}.md)'


def _reaction_to_outage(figures: dict[str, Any]) -> str:
    """What liveness did to a user's own server under overload, and when it hung."""
    overload = f"{times(figures['honest'])} by overload; " if figures["honest"] else ""
    if figures["restarted"] is not None:
        return f"{overload}restarted after {seconds(figures['restarted'])}"
    if figures["again"] is not None:
        return f"{overload}serves again after {seconds(figures['again'])}"
    return f"{overload}not noticed"


def _cells(experiment: Experiment, figures: dict[str, Any]) -> str:
    reaction = REACTIONS[figures["with"].get("reaction", "")]
    return f"{experiment.without(figures['without'])} | {reaction}{experiment.with_(figures['with'])}"


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


def write(found: dict[str, Any]) -> None:
    """Write the page, its pictures and the figures behind them."""
    PICTURES.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))
    (PICTURES / "outage.svg").write_text(outage_picture(found["outage"]))


def diff(found: dict[str, Any]) -> str:
    """The lines of the page that these figures would change, as a diff."""
    lines = PAGE.read_text().splitlines(), page(found).splitlines()
    return "\n".join(difflib.unified_diff(*lines, "docs/evidence.md", "this run", n=0, lineterm=""))


def main(argv: list[str]) -> int:
    """Write the page, or say what it would say; 1 where figures are missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.realnode.evidence")
    parser.add_argument("--add", action="store_true", help="keep the figures of what was not run")
    parser.add_argument("--compare", action="store_true", help="write nothing, print a diff")
    parser.add_argument("directory", type=Path, help="where a run kept its figures")
    args = parser.parse_args(argv)
    found = read(args.directory)
    if args.add:
        before = json.loads(FIGURES.read_text())
        runs = before["conditions"].get("runs", 1) + 1
        found = before | found | {"conditions": found["conditions"] | {"runs": runs}}
    if missing := {*EXPERIMENTS, *NOT_EXPERIMENTS} - set(found):
        print(f"no figures of {', '.join(sorted(missing))} in {args.directory}", file=sys.stderr)
        return 1
    if args.compare:
        print(diff(found))
    else:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
