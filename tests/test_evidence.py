"""docs/evidence.md follows from the recorded figures, word for word, and has a place for every rule."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from release import rule_pages
from release.rule_pages import caught
from tests.realnode import evidence
from tests.realnode.evidence import (
    FIGURES,
    NOT_EXPERIMENTS,
    PAGE,
    PICTURES,
    main,
    outage_picture,
    page,
)
from tests.realnode.experiments import EXPERIMENTS
from webhook.config.load import rules

FOUND = json.loads(FIGURES.read_text())


def test_every_rule_has_one_experiment_or_a_reason_for_having_none() -> None:
    shown = Counter(it.rule for it in EXPERIMENTS.values() if it.rule)
    text = PAGE.read_text()
    for rule in rules().values():
        explained = rule.document.evidence is not None
        if rule.document.family in rule_pages.ON_A_NODE:
            assert shown.pop(rule.id, 0) + explained == 1, rule.id
            assert text.count(f'<a id="{rule.id}"></a>') == 1
        else:
            assert explained or caught(rule.id), rule.id
    assert not shown


def test_every_experiment_has_its_figures() -> None:
    assert set(FOUND) == {*EXPERIMENTS, *NOT_EXPERIMENTS}


def test_the_page_is_made_of_the_figures() -> None:
    assert PAGE.read_text() == page(FOUND)


def test_the_picture_is_made_of_the_figures() -> None:
    text = (PICTURES / "outage.svg").read_text()
    assert text == outage_picture(FOUND["outage"])
    drawn = ElementTree.fromstring(text)
    assert len(drawn.findall("{http://www.w3.org/2000/svg}path[@stroke-width='2']")) == 2


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The figures of the page, as a run keeps them."""
    for name, figures in FOUND.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(figures))
    return tmp_path


def test_figures_of_another_run_are_compared_with_the_page(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--compare", str(kept)]) == 0
    assert capsys.readouterr().out.strip() == ""
    other = FOUND["rolling_update"] | {"with": FOUND["rolling_update"]["with"] | {"lost": 12345}}
    (kept / "rolling_update.json").write_text(json.dumps(other))
    assert main(["--compare", str(kept)]) == 0
    changed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("+|")]
    assert len(changed) == 1
    assert "12345" in changed[0]


def test_a_run_of_some_experiments_is_added_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in (
        ("PICTURES", tmp_path),
        ("PAGE", tmp_path / "page.md"),
        ("FIGURES", tmp_path / "figures"),
    ):
        monkeypatch.setattr(evidence, name, path)
    whole = FOUND | {"conditions": FOUND["conditions"] | {"runs": 1}}
    evidence.write(whole)
    assert "All figures are those of one run" in evidence.PAGE.read_text()
    again = tmp_path / "again"
    again.mkdir()
    conditions = {name: value for name, value in whole["conditions"].items() if name != "runs"}
    (again / "conditions.json").write_text(json.dumps(conditions))
    other = FOUND["rolling_update"] | {"with": FOUND["rolling_update"]["with"] | {"lost": 12345}}
    (again / "rolling_update.json").write_text(json.dumps(other))
    assert main(["--add", str(again)]) == 0
    text = evidence.PAGE.read_text()
    assert "The figures are those of 2 runs, the last: " in text
    assert "12345 of" in text
    assert json.loads(evidence.FIGURES.read_text()) == whole | {
        "rolling_update": other,
        "conditions": conditions | {"runs": 2},
    }


def test_a_run_that_left_something_out_makes_no_page(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept / "outage.json").unlink()
    before = PAGE.read_text()
    assert main([str(kept)]) == 1
    assert "no figures of outage" in capsys.readouterr().err
    assert PAGE.read_text() == before
