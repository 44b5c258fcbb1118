"""First, do no harm: what other projects publish, reviewed; every denial, warning and injected probe held.

`make corpus ARGS=--update-golden` rewrites the files under `golden/`; the diff is for a person to review: a
denial must be one that a maintainer of that project would accept, an injected probe one that a maintainer of
that server would write.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.corpus.corpora import Corpus, Reviewed, corpora, review
from tests.policies.injection import objections

pytestmark = pytest.mark.e2e

GOLDEN = Path(__file__).with_name("golden")
CEILING = 38
"""Warnings per 100 workloads over all corpora. Lower it when there are fewer; what raises it is noise."""


@pytest.fixture(scope="module")
def reviewed() -> dict[Corpus, list[Reviewed]]:
    """Every workload of every corpus. A corpus that cannot be downloaded fails all of these tests."""
    return {corpus: list(review(corpus)) for corpus in corpora()}


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def test_there_is_something_to_review(reviewed: dict[Corpus, list[Reviewed]]) -> None:
    assert {
        corpus.name: len(found) for corpus, found in reviewed.items() if len(found) < corpus.workloads
    } == {}


def test_denials(reviewed: dict[Corpus, list[Reviewed]], update: bool) -> None:
    """Each with the reason for which a maintainer would accept it."""
    files: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for corpus, found in reviewed.items():
        for each in found:
            for rule in each.denied:
                files[corpus.name, each.name, rule].append(each.file)
    golden = GOLDEN / "denials.yaml"
    known = {
        (row["corpus"], row["object"], row["rule"]): row
        for row in (yaml.safe_load(golden.read_text()) if golden.exists() else ())
    }
    if update:
        rows = [
            {
                "corpus": corpus,
                "object": name,
                "rule": rule,
                "files": sorted(where),
                "reason": known.get((corpus, name, rule), {}).get("reason", ""),
            }
            for (corpus, name, rule), where in sorted(files.items())
        ]
        golden.write_text(yaml.safe_dump(rows, sort_keys=False, width=110))
        known = {(row["corpus"], row["object"], row["rule"]): row for row in rows}
    assert {key: sorted(where) for key, where in files.items()} == {
        key: row["files"] for key, row in known.items()
    }
    assert [key for key, row in known.items() if not row["reason"]] == [], "why are these hazards?"


def test_how_much_is_warned_about(reviewed: dict[Corpus, list[Reviewed]], update: bool) -> None:
    workloads = sum(map(len, reviewed.values()))
    warned = Counter(rule for found in reviewed.values() for each in found for rule in each.warned)
    counts = {
        "workloads": workloads,
        "warnings": dict(sorted(warned.items(), key=lambda it: (-it[1], it[0]))),
    }
    golden = GOLDEN / "warnings.yaml"
    if update:
        golden.write_text(yaml.safe_dump(counts, sort_keys=False))
    assert counts == yaml.safe_load(golden.read_text())
    assert 100 * warned.total() / workloads <= CEILING


def test_every_injected_probe(reviewed: dict[Corpus, list[Reviewed]], update: bool) -> None:
    golden = GOLDEN / "probes.txt"
    now = "".join(f"{line}\n" for line in _lines(reviewed))
    if update:
        golden.write_text(now)
    assert now.splitlines() == golden.read_text().splitlines()


def test_the_law_of_injection(reviewed: dict[Corpus, list[Reviewed]]) -> None:
    breaches = {
        f"{each.file} {each.name}": found
        for several in reviewed.values()
        for each in several
        if (found := objections(each.review.document.obj, each.config, each.cluster))
    }
    assert breaches == {}


def _lines(reviewed: dict[Corpus, list[Reviewed]]) -> Iterator[str]:
    for corpus, found in reviewed.items():
        yield f"# {corpus.name} {corpus.version}"
        for each in found:
            yield from each.injected()
