"""Decisions as text for a person: a block for each object with findings or changes, then totals."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from policies.core.coverage import Reading
from webhook.admission import messages
from webhook.admission.decision import Result
from webhook.cli.reviewing import Outcome, Reviewed, outcome_of
from webhook.cli.terminal import Line, plural

_TOTALS: Final = (Outcome.REFUSED, Outcome.WARNED, Outcome.AUDITED, Outcome.EXEMPTED)
_READINGS: Final = {Reading.NO_PODS: "without pods"}


def lines(reviews: Iterable[Reviewed], *, audited: bool = False) -> Iterator[Line]:
    """A block for each object with findings or changes, the findings by rule and by namespace, and a line of
    totals. `audited`: whether the blocks have the findings in mode audit."""
    objects = changed = warnings = denied = running = 0
    readings: Counter[Reading] = Counter()
    by_rule: dict[str, Counter[Outcome]] = {}
    by_namespace: dict[str, Counter[Outcome]] = {}
    for review in reviews:
        objects += 1
        running += review.document.runs
        changed += bool(review.mutations)
        warnings += len(review.warnings)
        denied += not review.decision.allowed
        for found in review.decision.results:
            by_rule.setdefault(found.rule, Counter())[outcome_of(found)] += 1
            by_namespace.setdefault(review.document.namespace, Counter())[outcome_of(found)] += 1
        readings[review.coverage.reading] += 1
        block = [*change_lines(review), *finding_lines(review, audited=audited)]
        if block:
            style, verdict = _verdict(review)
            yield f"{verdict} {review.title} ({review.place()})", f"bold {style}"
            yield from block
            yield "", ""
    yield from _totals("Findings by rule", by_rule)
    if len(by_namespace) > 1:
        yield from _totals("Findings by namespace", by_namespace)
    if not audited and any(found[Outcome.AUDITED] for found in by_rule.values()):
        yield "Findings in mode audit don't change the answer; --audited prints them.", ""
    counts = (
        plural(objects, "object") + _not_read(readings),
        *([] if running else [f"{changed} changed"]),
        plural(warnings, "warning"),
        f"{denied} denied",
    )
    yield ", ".join(counts), "bold red" if denied else "bold green"


def _verdict(review: Reviewed) -> tuple[str, str]:
    """The style and the verdict of an object. An object that was not read is not called admitted."""
    if not review.decision.allowed:
        return "red", "DENIED"
    if review.coverage.reading in (Reading.NOT, Reading.PARTLY):
        return "yellow", review.coverage.reading.upper()
    return "green", "admitted"


def _not_read(readings: Mapping[Reading, int]) -> str:
    """The number of objects that were read and not read; empty if all pods were read."""
    if not (readings[Reading.PARTLY] or readings[Reading.NOT]):
        return ""
    counts = (f"{readings[each]} {_READINGS.get(each, each)}" for each in Reading if readings[each])
    return f" ({', '.join(counts)})"


def _totals(heading: str, counts: Mapping[str, Counter[Outcome]]) -> Iterator[Line]:
    """The outcomes of the findings by name, the most severe first."""
    if not counts:
        return
    yield heading, "bold"
    width = max(map(len, counts))
    ordered = sorted(counts.items(), key=lambda item: (*(-item[1][each] for each in _TOTALS), item[0]))
    for name, found in ordered:
        outcomes = ", ".join(f"{found[each]:,} {each}" for each in _TOTALS if found[each])
        yield f"  {name or '(none)':{width}}  {outcomes}", ""
    yield "", ""


def change_lines(review: Reviewed) -> Iterator[Line]:
    """The fields that the policies add, each with its reason."""
    for change in messages.listed_changes(review.changes):
        reasons = list(change.why.local())
        if not reasons:
            yield from _wrapped("+ ", messages.describe(change), "cyan")
            continue
        yield from _wrapped("+ ", messages.heading(change), "cyan")
        for reason in reasons:
            yield from _wrapped(f"{reason.path}: ", reason.why, "", indent=4)


def finding_lines(review: Reviewed, *, audited: bool = False) -> Iterator[Line]:
    for crash in review.decision.failures:
        yield f"  ! {crash.id} failed on this object: {crash.error}", "red"
    if review.unread:
        yield from _wrapped("! ", review.unread, "yellow")
    for note in review.decision.notes:
        if note not in review.unread:
            yield from _wrapped("! ", note, "yellow")
    for result in review.warnings:
        yield from _finding("warning", review, result, "yellow")
    for result in review.refusals:
        yield from _finding("refused", review, result, "red")
    for result in review.decision.results:
        if result.exempted is not None:
            yield from _finding("exempted", review, result, "magenta")
        elif audited and outcome_of(result) is Outcome.AUDITED:
            yield from _finding("audited", review, result, "cyan")


def _finding(label: str, review: Reviewed, result: Result, style: str) -> Iterator[Line]:
    yield f"  {label} {result.rule}", style
    for path in (result.finding.path, *result.also):
        place = f" ({review.place(path)})" if review.document.origin else ""
        yield f"    at {path}{place}{', found by shape' if result.by_shape else ''}", ""
    for other in review.others(result) if review.document.origin else ():
        yield f"    see {other.identity[0].kind} {other.name} ({other.start})", ""
    yield from _wrapped("", result.finding.message, "", indent=4)
    if result.exempted is not None:
        yield from _wrapped("Reason: ", result.exempted, "", indent=4)
    elif result.finding.hint:
        yield from _wrapped("Fix: ", result.finding.hint, "", indent=4)
    if result.ratcheted:
        yield from _wrapped("Not refused: ", f"{result.ratcheted}.", "", indent=4)


def _wrapped(mark: str, sentence: str, style: str, indent: int = 2) -> Iterator[Line]:
    pad = " " * indent
    after = pad + " " * (len(mark) if len(mark) == 2 else 2)
    for line in textwrap.wrap(
        f"{mark}{sentence}", _width(), initial_indent=pad, subsequent_indent=after, break_on_hyphens=False
    ):
        yield line, style


def _width() -> int:
    """The columns of the text: those of the terminal, from 40 to 100."""
    return max(40, min(100, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else 100
