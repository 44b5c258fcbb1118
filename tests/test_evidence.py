"""docs/evidence.md is what the figures beside it say, word for word."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from tests.realnode.evidence import FIGURES, PAGE, PICTURES, outage_picture, page
from tests.realnode.experiments import EXPERIMENTS

FOUND = json.loads(FIGURES.read_text())


def test_every_experiment_has_its_figures() -> None:
    assert set(FOUND) == {*EXPERIMENTS, "under_fire", "puller"}


def test_the_page_is_made_of_the_figures() -> None:
    assert PAGE.read_text() == page(FOUND)


def test_the_picture_is_made_of_the_figures() -> None:
    text = (PICTURES / "outage.svg").read_text()
    assert text == outage_picture(FOUND["outage"])
    drawn = ElementTree.fromstring(text)
    assert len(drawn.findall("{http://www.w3.org/2000/svg}path[@stroke-width='2']")) == 2
