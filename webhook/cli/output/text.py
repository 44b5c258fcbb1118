"""Decisions as text for a person: a block for each object with findings or changes, then totals."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from policies.kube.names import plural
from webhook.admission import messages
from webhook.admission.coverage import Reading
from webhook.admission.decision import Result
from webhook.cli.reviewed import Outcome, Reviewed, outcome_of
from webhook.cli.terminal import Line, width

Shown: TypeAlias = tuple[str, Result, str]
"""A finding with its label, such as `warning`, and its style."""

_MOST_PLACES: Final = 5
"""Other places of a finding that are named."""
_TOTALS: Final = (Outcome.REFUSED, Outcome.WARNED, Outcome.AUDITED, Outcome.EXEMPTED)
_STAGE: Final = "(?:dev|development|test|testing|qa|uat|preview|stage|staging|prod|production)"
_IN_NAME: Final = re.compile(rf"\b{_STAGE}-(?=[a-z0-9])|(?<=[a-z0-9])-{_STAGE}\b")
"""The part of a name that overlays of one base add (`namePrefix: dev-`, `nameSuffix: -dev`)."""
_READINGS: Final = {Reading.NO_PODS: "without pods"}


class _First(NamedTuple):
    """The first object with a finding, in texts: a review would keep the whole object."""

    file: str
    name: str
    place: str


class _Repeats:
    """The findings of files by rule, message, kind and name of the object; names without a word for a stage.

    Several kustomizations of one base, and several environments, repeat a finding. It is printed once, with
    its other places. Two findings of one file are never the same: they are about two of its objects.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], tuple[_First, dict[str, None]]] = {}
        self._heads: set[tuple[object, ...]] = set()
        self._notes: dict[tuple[object, ...], dict[str, None]] = {}

    def add(self, review: Reviewed) -> None:
        """Add the findings about an object."""
        own = _First(review.document.source, review.document.name, review.place())
        for result in review.decision.results:
            first, places = self._found.setdefault(_key(review, result), (own, {}))
            if own.file != first.file:
                at = review.place(result.finding.path)
                places[at if own.name == first.name else f"{own.name} ({at})"] = None

    def of(self, review: Reviewed, result: Result) -> tuple[dict[str, None], str]:
        """The other places of an added finding, which later ones join, and its first place if that is in
        another file."""
        first, places = self._found[_key(review, result)]
        return places, "" if review.document.source == first.file else first.place

    def of_notes(self, review: Reviewed, notes: Iterable[Line]) -> dict[str, None] | None:
        """The other objects of a kind with these notes and nothing else, which later ones join; None if an
        earlier one has them."""
        key = (review.kind, *notes)
        if key not in self._notes:
            self._notes[key] = {}
            return self._notes[key]
        self._notes[key][f"{review.title.partition(' ')[2]} ({review.place()})"] = None
        return None

    def is_new(self, review: Reviewed, head: Iterable[Line]) -> bool:
        """Whether no object of that kind and name had these changes and notes."""
        key = (review.kind, _shared(review.document.name), *head)
        known = key in self._heads
        self._heads.add(key)
        return not known


def _key(review: Reviewed, result: Result) -> tuple[str, ...]:
    message, name = _shared(result.finding.message), _shared(review.document.name)
    return str(outcome_of(result)), result.rule, message, review.kind, name


def _shared(text: str) -> str:
    """A name, or a text with names, without words for stages such as `dev`."""
    return _IN_NAME.sub("", text)


def lines(reviews: Iterable[Reviewed], *, audited: bool = False) -> Iterator[Line]:
    """A block for each object with findings or changes, the findings by rule and by namespace, and a line of
    totals. `audited`: whether the blocks have the findings in mode audit.

    A finding that other files repeat is printed once, and counted once, but in each namespace.
    """
    objects = changed = warnings = every = denied = running = 0
    readings: Counter[Reading] = Counter()
    by_rule: dict[str, Counter[Outcome]] = {}
    by_namespace: dict[str, Counter[Outcome]] = {}
    repeats = _Repeats()
    blocks: list[Line | dict[str, None]] = []
    for review in reviews:
        objects += 1
        running += review.document.runs
        changed += bool(review.mutations)
        denied += not review.decision.allowed
        repeats.add(review)
        for found in review.decision.results:
            by_namespace.setdefault(review.document.namespace, Counter())[outcome_of(found)] += 1
            if not repeats.of(review, found)[1]:
                by_rule.setdefault(found.rule, Counter())[outcome_of(found)] += 1
        warned = review.warnings
        every += len(warned)
        warnings += sum(not repeats.of(review, found)[1] for found in warned)
        readings[review.coverage.reading] += 1
        blocks += _block(review, repeats, audited=audited)
        if review.document.runs:  # nothing repeats it
            yield from _printed(blocks)
            blocks.clear()
    yield from _printed(blocks)
    yield from _totals("Findings by rule", by_rule)
    if len(by_namespace) > 1:
        yield from _totals("Findings by namespace", by_namespace)
    if not audited and any(found[Outcome.AUDITED] for found in by_rule.values()):
        yield "Findings in mode audit don't change the answer; --audited prints them.", ""
    counts = (
        plural(objects, "object") + _not_read(readings),
        *([] if running else [f"{changed} changed"]),
        plural(warnings, "warning") + (f" ({every} with repetitions)" if every > warnings else ""),
        f"{denied} denied",
    )
    yield ", ".join(counts), "bold red" if denied else "bold green"


def _block(review: Reviewed, repeats: _Repeats, *, audited: bool) -> list[Line | dict[str, None]]:
    """The lines about an object, and after each finding its other places; empty if there is nothing to say,
    or other places of earlier findings say it."""
    notes = [*note_lines(review)]
    head = [*change_lines(review), *notes]
    block: list[Line | dict[str, None]] = [*head]
    if notes == head != [] and not review.document.runs and not any(shown(review, audited=audited)):
        others = repeats.of_notes(review, notes)
        return [] if others is None else [*_headed(review, block), others, ("", "")]
    says_more = not review.document.runs and repeats.is_new(review, head)
    repeated = False
    for label, result, style in shown(review, audited=audited):
        places, first = repeats.of(review, result)
        repeated |= bool(first)
        says_more |= not first
        if first:
            block.append((f"  {label} {result.rule}, as in {first}", style))
        else:
            block += [*_finding(label, review, result, style), places]
    if not block or (repeated and not says_more):
        return []
    return [*_headed(review, block), ("", "")]


def _headed(review: Reviewed, block: Iterable[Line | dict[str, None]]) -> Iterator[Line | dict[str, None]]:
    """A block below the verdict and the name of its object."""
    style, verdict = _verdict(review)
    yield f"{verdict} {review.title} ({review.place()})", f"bold {style}"
    yield from block


def _printed(blocks: Iterable[Line | dict[str, None]]) -> Iterator[Line]:
    """Lines, and the other places of findings in one sentence."""
    for each in blocks:
        if isinstance(each, tuple):
            yield each
        elif each:
            named = [*each][:_MOST_PLACES]
            more = f", and {len(each) - len(named)} more" if len(each) > len(named) else ""
            yield from _wrapped(
                "", f"The same in {plural(len(each), 'other place')}: {', '.join(named)}{more}", "", 4
            )


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
    """The fields that the policies add, each with its reason; the same for several templates once."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for change in messages.listed_changes(review.changes):
        reasons = [*change.reasons.local()]
        why = [text for each in reasons for text in (each.path, each.why)]
        head = messages.heading(change) if reasons else messages.describe(change)
        grouped.setdefault((head, *why), []).append(change.template)
    several = len({place for places in grouped.values() for place in places}) > 1
    for (head, *why), places in grouped.items():
        of = f" of {', '.join(places)}" if several and why and places[0] else ""
        yield from _wrapped("+ ", f"{head}{of}", "cyan")
        for path, reason in zip(why[::2], why[1::2], strict=True):
            yield from _wrapped(f"{path}: ", reason, "", indent=4)


def finding_lines(review: Reviewed, *, audited: bool = False) -> Iterator[Line]:
    yield from note_lines(review)
    for label, result, style in shown(review, audited=audited):
        yield from _finding(label, review, result, style)


def note_lines(review: Reviewed) -> Iterator[Line]:
    """Crashes, unread parts and notes."""
    for crash in review.decision.distinct_crashes:
        yield f"  ! {crash.id} failed on this object: {crash.error}", "red"
    if review.unread:
        yield from _wrapped("! ", review.unread, "yellow")
    for note in review.decision.notes:
        if note not in review.unread:
            yield from _wrapped("! ", note, "yellow")


def shown(review: Reviewed, *, audited: bool) -> Iterator[Shown]:
    """The findings of an object. `audited`: whether those in mode audit are among them."""
    for result in review.warnings:
        yield "warning", result, "yellow"
    for result in review.refusals:
        yield "refused", result, "red"
    for result in review.decision.results:
        if result.exempted is not None:
            yield "exempted", result, "magenta"
        elif audited and outcome_of(result) is Outcome.AUDITED:
            yield "audited", result, "cyan"


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
        f"{mark}{sentence}", width(), initial_indent=pad, subsequent_indent=after, break_on_hyphens=False
    ):
        yield line, style
