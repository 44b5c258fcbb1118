"""The figures of earlier reviews in the HTML report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.webhook.cli.scanned import Chassis
from tests.webhook.cli.test_html import HAZARDS


@pytest.fixture
def before(tmp_path: Path, chassis: Chassis) -> Path:
    """The figures of a review a month ago, with one warning more and no refusal."""
    manifests = tmp_path / "deploy"
    manifests.mkdir()
    (manifests / "hazards.yaml").write_text(HAZARDS)
    figures = json.loads(chassis("review", manifests, "--statistics", "-o", "json").out)
    figures["made"] = "2026-01-02T03:04:05+00:00"
    figures["warnings"]["byRule"]["tcp-probe"] = {"count": 7, "per100Workloads": 1}
    figures["refusals"] = {"byRule": {}, "objects": 0}
    file = tmp_path / "before.json"
    file.write_text(json.dumps(figures))
    return file


def test_the_report_shows_what_became_better_and_worse(before: Path, chassis: Chassis) -> None:
    page = chassis("review", before.parent / "deploy", "-o", "html", "--before", before).out
    section = page[page.index('id="history"') :]
    section = section[: section.index("</section>")]
    assert re.findall(r"<time [^>]*>([\d-]+)</time>", section)[0] == "2026-01-02"
    assert "Fewer findings than in the first review: tcp-probe 7 → 0." in section
    assert "More findings than in the first review: liveness-external-dependency 0 → 1." in section


def test_a_report_without_earlier_ones_has_no_history(before: Path, chassis: Chassis) -> None:
    assert 'id="history"' not in chassis("review", before.parent / "deploy", "-o", "html").out


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"made": 1}', b"\xff"])
def test_other_files_are_refused(before: Path, chassis: Chassis, content: bytes) -> None:
    before.write_bytes(content)
    status, _, err = chassis("review", before.parent / "deploy", "-o", "html", "--before", before)
    assert status == 2
    assert err.endswith(
        "this file doesn't have the figures of a review; write them with --statistics -o json\n"
    )


def test_it_goes_with_html(before: Path, chassis: Chassis) -> None:
    status, _, err = chassis("review", before.parent / "deploy", "--before", before)
    assert (status, err) == (2, "chassis: --before can only be used with -o html\n")
