"""The view models of the templates: the counts of a summary in the order and words of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote

from policies.core import registry
from policies.core.finding import Mode, Profile
from policies.kube.json import Json
from webhook.cli import explain
from webhook.cli.output.html.summary import (
    EXEMPTED,
    KindNotRead,
    ProfileTotals,
    ReviewStatus,
    Summary,
    status_of,
)
from webhook.cli.reviewed import Reviewed, Subject
from webhook.config.load import rules

SIGNS: Final[Mapping[str, str]] = {
    ReviewStatus.REFUSED: "✕",
    ReviewStatus.WARNED: "!",
    ReviewStatus.UNREAD: "?",
    ReviewStatus.CLEAN: "✓",
    ReviewStatus.PODLESS: "·",
}
WORDS: Final[Mapping[ReviewStatus, str]] = {
    ReviewStatus.REFUSED: "refused",
    ReviewStatus.WARNED: "warned",
    ReviewStatus.UNREAD: "not fully read",
    ReviewStatus.CLEAN: "clean",
    ReviewStatus.PODLESS: "no pods",
}
"""The one name of each status."""
VERBS: Final[Mapping[str, str]] = {
    Mode.ENFORCE.value: "refuse",
    Mode.WARN.value: "warn",
    Mode.AUDIT.value: "audit",
    EXEMPTED: "exempted",
}
"""The verb for each mode, in the order of the bars."""
MODES: Final = (
    *((status.value, words.capitalize()) for status, words in WORDS.items()),
    ("strict", "Refused under strict"),
    ("changed", "Changed by policies"),
    ("audit", "With audited findings"),
    (EXEMPTED, "With exemptions"),
)
TAGS: Final = (
    ("strict", "refused under strict"),
    ("unread", WORDS[ReviewStatus.UNREAD]),
    (EXEMPTED, EXEMPTED),
    ("changed", "changed"),
)
"""The marks that a row shows."""


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1,024 objects`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def titled(namespace: str) -> str:
    return namespace or "(no namespace)"


# --- one object ------------------------------------------------------------------------------------


class ObjectRow(NamedTuple):
    anchor: str
    kind: str
    name: str
    status: ReviewStatus
    place: str
    """The file and line; empty for a running object."""
    marks: Sequence[str]
    rules: Sequence[str]
    images: Sequence[str]
    card: Json

    @property
    def sign(self) -> str:
        return SIGNS[self.status]

    @property
    def words(self) -> str:
        return WORDS[self.status]

    @property
    def tags(self) -> list[tuple[str, str]]:
        return [(mark, words) for mark, words in TAGS if mark in self.marks]


def row(review: Reviewed, anchor: str, strict: ReviewStatus, images: Iterable[str], card: Json) -> ObjectRow:
    results, status = review.decision.results, status_of(review.decision)
    marks = {
        "strict": strict is ReviewStatus.REFUSED and status is not ReviewStatus.REFUSED,
        "unread": review.coverage.missing and status is not ReviewStatus.UNREAD,
        "changed": bool(review.mutations),
        "audit": any(each.mode is Mode.AUDIT and each.exempted is None for each in results),
        EXEMPTED: any(each.exempted is not None for each in results),
    }
    return ObjectRow(
        anchor=anchor,
        kind=review.kind,
        name=review.document.name,
        status=status,
        place="" if review.document.runs else review.place(),
        marks=[mark for mark, applies in marks.items() if applies],
        rules=list(dict.fromkeys(result.rule for result in results)),
        images=list(images),
        card=card,
    )


# --- all of them -----------------------------------------------------------------------------------


class Segment(NamedTuple):
    """A part of a bar; x and width in percent."""

    name: str
    x: float
    width: float


class Tile(NamedTuple):
    show: str
    """The filter of its link."""
    number: int
    words: str
    under: str
    sign: str = ""


class ProfileRow(NamedTuple):
    """The counts under one profile, and the rules that refuse more than under the profile before."""

    profile: str
    now: bool
    bar: Sequence[Segment]
    counts: Sequence[int]
    changed: int
    newly: Sequence[tuple[str, int]]


class RuleRow(NamedTuple):
    name: str
    bar: Sequence[Segment]
    counts: str
    described: Sequence[tuple[str, str]]
    examples: Sequence[tuple[str, str]]
    summary: str


class Age(NamedTuple):
    """A time and how many days ago it was; None if unknown."""

    written: str
    days: int | None


class ExemptionRow(NamedTuple):
    href: str
    title: str
    rule: str
    reason: str
    created: Age
    written: Age


class Section(NamedTuple):
    namespace: str
    counts: str
    rows: Iterable[str]
    """Rendered by `row.html`."""

    @property
    def id(self) -> str:
        return f"ns-{quote(self.namespace, safe='')}" if self.namespace else "no-namespace"

    @property
    def title(self) -> str:
        return titled(self.namespace)


class View:
    """The page."""

    statuses: Final = [status.value for status in ReviewStatus]
    status_words: Final = [WORDS[status] for status in ReviewStatus]
    status_keys: Final = [(status.value, WORDS[status]) for status in ReviewStatus]
    verbs: Final = VERBS

    def __init__(self, subject: Subject, summary: Summary) -> None:
        self._subject = subject
        self._summary = summary
        self.source = subject.source
        self.objects = summary.objects
        self.made = datetime.fromtimestamp(subject.now, UTC)
        self.about = [
            ("Source", subject.source),
            ("Policy", subject.policy),
            ("Digest", subject.config.digest or "built in"),
            ("Profile", subject.config.rules.profile.value),
        ]
        self.not_read = list(subject.not_read)
        self.kinds_not_read: list[KindNotRead] = sorted(
            summary.kinds_not_read.values(), key=lambda each: (-each.objects, each.kind, each.group)
        )
        self.tiles = list(self._tiles())
        self.steps = list(self._steps())
        self.rules = list(self._rules())
        self.exemptions = list(self._exemptions())
        self.filters = {
            "namespaces": [(each, titled(each)) for each in sorted(summary.namespaces)],
            "kinds": [(each, each) for each in sorted(summary.kinds)],
            "rules": [(each, each) for each in sorted(summary.rules)],
            "modes": MODES,
        }
        self.contents = [
            (anchor, title)
            for anchor, title, shown in (
                ("plan", "Plan", True),
                ("not-read", "Not read", self.not_read or self.kinds_not_read),
                ("rules", "Rules", self.rules),
                ("exemptions", "Exemptions", self.exemptions),
                ("workloads", "Objects", True),
            )
            if shown
        ]

    def _tiles(self) -> Iterator[Tile]:
        now = self._summary.profiles[self._subject.config.rules.profile].statuses
        strict = self._summary.profiles[Profile.STRICT].statuses
        for status, words in WORDS.items():
            under = f"{strict[status]:,} under strict"
            yield Tile(status.value, now[status], words, under, SIGNS[status])
        exempted = sum(counts[EXEMPTED] for counts in self._summary.rules.values())
        under = f"{counted(exempted, 'finding')} exempted"
        yield Tile("changed", self._summary.changed, "changed by policies", under)

    def _steps(self) -> Iterator[ProfileRow]:
        before = ProfileTotals()
        for profile, totals in self._summary.profiles.items():
            counts = _by_status(totals.statuses)
            yield ProfileRow(
                profile.value,
                profile is self._subject.config.rules.profile,
                bar(zip(self.statuses, counts, strict=True), self.objects),
                counts,
                totals.changed,
                [
                    (rule, count - before.refusing[rule])
                    for rule, count in totals.refusing.most_common()
                    if count > before.refusing[rule]
                ],
            )
            before = totals

    def _rules(self) -> Iterator[RuleRow]:
        most = max((counts.total() for counts in self._summary.rules.values()), default=0)
        every = self._summary.rules.items()
        for name, counts in sorted(every, key=lambda item: (*_weight(item[1]), item[0])):
            rule, mutator = rules().get(name), registry.mutators().get(name)
            document = rule.document if rule else None
            yield RuleRow(
                name,
                bar([(each, counts[each]) for each in VERBS], most),
                ", ".join(f"{counts[each]:,} {word}" for each, word in VERBS.items() if counts[each]),
                [
                    (term, explain.sentence(" ".join(text.split())))
                    for term, text in (
                        ("What", document.what),
                        ("Why", document.why),
                        ("Remediation", document.remediation),
                    )
                ]
                if document
                else [],
                [("Bad", document.bad.strip()), ("Good", document.good.strip())] if document else [],
                explain.summary(mutator) if mutator else "",
            )

    def _exemptions(self) -> Iterator[ExemptionRow]:
        ordered = sorted(self._summary.exempted, key=lambda each: (each.namespace, each.title, each.rule))
        for each in ordered:
            created, written = (_age(when, self._subject.now) for when in (each.created, each.written))
            yield ExemptionRow(f"#{each.anchor}", each.title, each.rule, each.reason, created, written)


def counts_in_words(counts: Counter[ReviewStatus]) -> str:
    """Such as `2 refused, 1 clean`."""
    return ", ".join(f"{counts[status]:,} {WORDS[status]}" for status in ReviewStatus if counts[status])


def bar(parts: Iterable[tuple[str, int]], whole: int) -> list[Segment]:
    """The parts of a bar, side by side."""
    drawn, x = [], 0.0
    for name, count in parts:
        drawn.append(Segment(name, x, 100 * count / whole if whole else 0))
        x += drawn[-1].width
    return drawn


def _by_status(counts: Counter[ReviewStatus]) -> list[int]:
    return [counts[status] for status in ReviewStatus]


def _weight(counts: Counter[str]) -> tuple[int, ...]:
    """A sort key, most severe first: refusals, then warnings, and so on."""
    return tuple(-counts[mode] for mode in VERBS)


def _age(when: str, now: float) -> Age:
    try:
        seconds = now - datetime.fromisoformat(when).timestamp()
    except (ValueError, OverflowError):
        return Age(when, None)
    return Age(when, max(0, int(seconds // 86400)))
