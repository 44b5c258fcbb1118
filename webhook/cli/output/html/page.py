"""One HTML file from a stream of reviews: objects go to a temporary file as they come, their counts are kept.

Law: every text that a user wrote goes through `_e` or into a JSON block without `<`; the script makes only
text nodes of it. The page's Content-Security-Policy allows only its own script and style, and no fetch.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import orjson

from policies.core import registry
from policies.core.mode import Mode, Profile
from policies.kube.json import Json
from policies.kube.printable import printable, printable_lines
from webhook.admission.bounds import allowance, bounded
from webhook.cli import explain
from webhook.cli.output.html.card import card
from webhook.cli.output.html.summary import (
    EXEMPTED,
    Exempted,
    Profiles,
    Status,
    Step,
    Summary,
    accelerators_asked,
    status_of,
    supplies,
)
from webhook.cli.output.review import Review, Subject
from webhook.config.load import rules
from webhook.version import version

_SIGNS: Final[Mapping[str, str]] = {
    Status.REFUSED: "✕",
    Status.WARNED: "!",
    Status.UNREAD: "?",
    Status.CLEAN: "✓",
    Status.PODLESS: "·",
}
_OUTCOMES: Final[Mapping[str, str]] = {
    Mode.ENFORCE.value: "refuse",
    Mode.WARN.value: "warn",
    Mode.AUDIT.value: "audit",
    EXEMPTED: "exempted",
}
"""What the findings of each outcome do, in the order in which bars stack them."""
_NO_NAMESPACE: Final = "(no namespace)"


# --- the stream ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """The place of an object's row in the temporary file, and its sort key."""

    namespace: str
    rank: int
    title: str
    start: int
    length: int


class Report:
    """The objects of a stream, kept so that pages can be made of them: their rows in a file, their counts."""

    def __init__(self, subject: Subject, rows: BinaryIO) -> None:
        """`rows` is an empty file to write to and to read."""
        self._subject = subject
        self._profiles = Profiles(subject)
        self._entries: list[_Entry] = []
        self._rows = rows
        self.whole = Summary()
        self.by_namespace: dict[str, Summary] = {}

    def read(self, reviews: Iterable[Review]) -> Report:
        """Take down every object of a stream, once."""
        for review in reviews:
            decisions = self._profiles.decide(review)
            anchor = _anchor(review)
            templates = bounded(review.final, self._subject.config.workloads, allowance()).templates
            asked = accelerators_asked(review, templates, self._subject)
            mine = self.by_namespace.setdefault(review.document.namespace, Summary())
            for summary in (self.whole, mine):
                summary.add(review, decisions, anchor, asked)
            strict = decisions[Profile.STRICT]
            images = {each.image: None for template in templates for each in template.containers()}
            content = card(review, strict, templates, self._subject)
            row = _row(review, anchor, status_of(strict), images, content).encode()
            entry = _Entry(
                review.document.namespace,
                list(Status).index(status_of(review.decision)),
                review.title,
                self._rows.tell(),
                self._rows.write(row),
            )
            self._entries.append(entry)
        self._entries.sort(key=lambda each: (each.namespace, each.rank, each.title))
        return self

    def page(self, namespace: str | None = None) -> Iterator[str]:
        """The page of everything, or of one namespace, piece by piece."""
        summary = self.whole if namespace is None else self.by_namespace[namespace]
        entries = [each for each in self._entries if namespace in (None, each.namespace)]
        yield from _head(self._subject, summary, namespace)
        yield from _overview(self._subject, summary, None)
        yield from _toolbar(summary)
        yield from self._sections(entries, summary)
        yield _FOOT.format(version=_e(version()), script=_asset("page.js"))

    def index(self, names: Mapping[str, str]) -> Iterator[str]:
        """The page of everything without the objects, with a link to the page of each namespace.

        `names` has the file's name of each namespace.
        """
        yield from _head(self._subject, self.whole, None)
        yield from _overview(self._subject, self.whole, names)
        yield _FOOT.format(version=_e(version()), script=_asset("page.js"))

    def _sections(self, entries: Sequence[_Entry], summary: Summary) -> Iterator[str]:
        yield '<div id="list">'
        current: str | None = None
        for entry in entries:
            if entry.namespace != current:
                if current is not None:
                    yield "</section>"
                current = entry.namespace
                yield _section(current, summary.namespaces[current])
            self._rows.seek(entry.start)
            yield self._rows.read(entry.length).decode()
        yield "</section></div>" if current is not None else "<p>There is nothing to show.</p></div>"


def pieces(reviews: Iterable[Review], subject: Subject) -> Iterator[str]:
    """The page of everything, in pieces; the first comes after the last review has been read."""
    with tempfile.TemporaryFile() as rows:
        yield from Report(subject, rows).read(reviews).page()


def split(reviews: Iterable[Review], subject: Subject, directory: Path) -> int:
    """Write `index.html` and a page for each namespace into a directory; how many namespaces there are."""
    with tempfile.TemporaryFile() as rows:
        report = Report(subject, rows).read(reviews)
        names = {namespace: _file_name(namespace) for namespace in sorted(report.by_namespace)}
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / "index.html", report.index(names))
        for namespace, name in names.items():
            _write(directory / name, report.page(namespace))
    return len(names)


def _write(file: Path, parts: Iterable[str]) -> None:
    with file.open("w", encoding="utf-8") as out:
        out.writelines(parts)


def _file_name(namespace: str) -> str:
    """A unique file name for a namespace, always below the directory."""
    if not namespace:
        return "no-namespace.html"
    name = quote(namespace, safe="")
    if len(name) > 100:
        name = f"{name[:60]}-{hashlib.sha256(namespace.encode()).hexdigest()[:12]}"
    return f"ns-{name}.html"


# --- the head --------------------------------------------------------------------------------------


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a page's policy names the one script or style that it lets run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _head(subject: Subject, summary: Summary, namespace: str | None) -> Iterator[str]:
    allowed = (
        f"default-src 'none'; script-src {_digest(_asset('page.js'))}; "
        f"style-src {_digest(_asset('page.css'))}; base-uri 'none'; form-action 'none'"
    )
    place = "" if namespace is None else f" · {namespace or _NO_NAMESPACE}"
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_e(allowed)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{_e(subject.source + place)} · ML Chassis report</title>"
        f"<style>{_asset('page.css')}</style></head><body>\n"
        '<a class="skip" href="#workloads">Skip to the objects</a>\n'
    )
    made = datetime.fromtimestamp(subject.now, UTC)
    facts = (
        ("Source", subject.source),
        *((("Namespace", namespace or _NO_NAMESPACE),) if namespace is not None else ()),
        ("Policy", subject.policy),
        ("Digest", subject.config.digest or "built in"),
        ("Profile", subject.config.rules.profile.value),
    )
    described = "".join(f"<div><dt>{_e(term)}</dt><dd>{_e(value)}</dd></div>" for term, value in facts)
    yield (
        f'<header>{_MARK}<div class="title"><p class="brand">ML Chassis</p>'
        f"<h1>{_count(summary.objects, 'object')}{_e(place)}</h1></div>"
        f'<dl class="about">{described}<div><dt>Made</dt><dd><time datetime="{made:%Y-%m-%dT%H:%M:%SZ}">'
        f"{made:%Y-%m-%d %H:%M} UTC</time></dd></div></dl></header>\n"
    )


_MARK: Final = (
    '<svg class="mark" viewBox="0 0 32 32" width="40" height="40" aria-hidden="true">'
    '<rect x="3" y="11" width="26" height="7" rx="2" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<path d="M8 11V7h10l4 4" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<circle cx="9" cy="22" r="4" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<circle cx="23" cy="22" r="4" fill="none" stroke="currentColor" stroke-width="2"/></svg>'
)

_FOOT: Final = (
    "</main><footer><p>Made by chassis {version}. This file loads no other file.</p>"
    "</footer><script>{script}</script></body></html>\n"
)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# --- the overview ----------------------------------------------------------------------------------


def _overview(subject: Subject, summary: Summary, names: Mapping[str, str] | None) -> Iterator[str]:
    yield '<nav aria-label="Sections"><ul>'
    shown = [
        ("plan", "Plan", True),
        ("rules", "Rules", bool(summary.rules)),
        ("namespaces", "Namespaces", bool(summary.places)),
        ("owners", "Pages", names is not None),
        ("exemptions", "Exemptions", bool(summary.exempted)),
        ("accelerators", "Accelerators", _has_accelerators(subject, summary)),
        ("workloads", "Objects", names is None),
    ]
    yield "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, there in shown if there)
    yield "</ul></nav>\n<main>\n"
    yield from _tiles(subject, summary, link=names is None)
    yield from _plan(subject, summary)
    if summary.rules:
        yield from _by_rule(summary, link=names is None)
    if summary.places:
        yield from _heat_map(summary, names)
    if names is not None:
        yield from _owners(summary, names)
    if summary.exempted:
        yield from _exemptions(subject, summary, names)
    if _has_accelerators(subject, summary):
        yield from _accelerators(subject, summary)


def _tiles(subject: Subject, summary: Summary, *, link: bool) -> Iterator[str]:
    now = summary.steps[subject.config.rules.profile].statuses
    strict = summary.steps[Profile.STRICT].statuses
    words = {
        Status.REFUSED: "would be refused",
        Status.WARNED: "would be warned about",
        Status.UNREAD: "not reviewed as a whole",
        Status.CLEAN: "clean",
        Status.PODLESS: "without pods",
    }
    yield '<section class="tiles" aria-label="Now and under strict">'
    for status, what in words.items():
        number = f'<span class="sign" aria-hidden="true">{_SIGNS[status]}</span>{now[status]:,}'
        label = f'<span class="number">{number}</span> <span class="what">{what}</span>'
        under = f'<span class="under">{strict[status]:,} under strict</span>'
        yield _tile(status.value, f"{label} {under}", link=link)
    exempted = sum(counts[EXEMPTED] for counts in summary.rules.values())
    changed = f'<span class="number">{summary.changed:,}</span> <span class="what">changed by policies</span>'
    under = f'<span class="under">{_count(exempted, "finding")} exempted</span>'
    yield _tile("changed", f"{changed} {under}", link=link) + "</section>\n"


def _tile(show: str, content: str, *, link: bool) -> str:
    if not link:
        return f'<div class="tile {show}">{content}</div>'
    return f'<a class="tile {show}" href="#workloads" data-show="{show}">{content}</a>'


def _plan(subject: Subject, summary: Summary) -> Iterator[str]:
    yield (
        '<section id="plan" class="panel" aria-labelledby="plan-h"><h2 id="plan-h">The way to strict</h2>'
        "<p>The same objects under each profile, explicit modes of the policy still in force.</p>"
        f'{_scroll("plan-h")}<table class="plan"><thead><tr>'
        '<th scope="col">Profile</th><th scope="col" class="wide">Objects</th>'
        + "".join(f'<th scope="col" class="n">{status.value.capitalize()}</th>' for status in Status)
        + '<th scope="col" class="n">Changed</th>'
        '<th scope="col">What this step newly refuses</th></tr></thead><tbody>'
    )
    before: Step | None = None
    for profile, step in summary.steps.items():
        counts = [(status.value, step.statuses[status]) for status in Status]
        now = ' <span class="now">now</span>' if profile is subject.config.rules.profile else ""
        cells = "".join(f'<td class="n">{count:,}</td>' for _, count in counts)
        yield (
            f'<tr><th scope="row">{profile.value}{now}</th><td>{_bar(counts, summary.objects)}</td>{cells}'
            f'<td class="n">{step.changed:,}</td><td>{_newly(before, step)}</td></tr>'
        )
        before = step
    yield f"</tbody></table></div>{_legend([status.value for status in Status])}</section>\n"


def _newly(before: Step | None, step: Step) -> str:
    earlier = before.refusing if before else Counter[str]()
    more = {
        name: count - earlier[name] for name, count in step.refusing.most_common() if count > earlier[name]
    }
    shown = [
        f'<a href="#rule-{_e(name)}">{_e(name)}</a>&nbsp;{count:,}' for name, count in list(more.items())[:4]
    ]
    if len(more) > 4:
        shown.append(f"{_count(len(more) - 4, 'more rule')}")
    return ", ".join(shown) or '<span class="none">nothing</span>'


def _bar(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """A bar of stacked parts; the numbers are next to it, so it is hidden from a screen reader."""
    x, drawn = 0.0, ""
    for name, count in parts:
        width = 100 * count / whole if whole else 0
        if count:
            drawn += f'<rect class="{name}" x="{x:.2f}" width="{width:.2f}" height="10"/>'
        x += width
    return (
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
    )


def _scroll(heading: str) -> str:
    """A region around a table that may be wider than the screen; the keyboard can scroll it."""
    return f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{heading}">'


def _legend(names: Iterable[str]) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">'
        f'<rect class="{name}" width="10" height="10" rx="2"/></svg> {_OUTCOMES.get(name, name)}</li>'
        for name in names
    )
    return f'<ul class="legend" aria-hidden="true">{keys}</ul>'


def _by_rule(summary: Summary, *, link: bool) -> Iterator[str]:
    yield (
        '<section id="rules" class="panel" aria-labelledby="rules-h"><h2 id="rules-h">Findings by rule</h2>'
        f"{_legend(_OUTCOMES)}"
    )
    ordered = sorted(summary.rules.items(), key=lambda item: (*_weight(item[1]), item[0]))
    most = max(counts.total() for counts in summary.rules.values())
    for name, counts in ordered:
        said = ", ".join(f"{counts[each]:,} {word}" for each, word in _OUTCOMES.items() if counts[each])
        bar = _bar([(each, counts[each]) for each in _OUTCOMES], most)
        show = f'<p><a href="#workloads" data-rule="{_e(name)}">Show these objects</a></p>' if link else ""
        yield (
            f'<details class="rule" id="rule-{_e(name)}"><summary><code>{_e(name)}</code>{bar}'
            f'<span class="n">{said}</span></summary>{_rule_text(name)}{show}</details>'
        )
    yield "</section>\n"


def _weight(counts: Counter[str]) -> tuple[int, ...]:
    """What sorts the gravest first: refusals, then warnings, and so on."""
    return tuple(-counts[outcome] for outcome in _OUTCOMES)


def _rule_text(name: str) -> str:
    rule = rules().get(name)
    if rule is None:
        mutators = registry.mutators()
        what = explain.summary(mutators[name]) if name in mutators else ""
        return f"<p>{_e(what)}</p>"
    document = rule.document
    parts = (("What", document.what), ("Why", document.why), ("Remediation", document.remediation))
    described = "".join(
        f"<dt>{term}</dt><dd>{_e(explain.sentence(' '.join(value.split())))}</dd>" for term, value in parts
    )
    examples = "".join(
        f"<figure><figcaption>{title}</figcaption><pre>{escape(value.strip())}</pre></figure>"
        for title, value in (("Bad", document.bad), ("Good", document.good))
    )
    return f'<dl>{described}</dl><div class="pair">{examples}</div>'


def _heat_map(summary: Summary, names: Mapping[str, str] | None) -> Iterator[str]:
    columns = sorted(summary.rules, key=lambda name: (*_weight(summary.rules[name]), name))
    totals: dict[str, Counter[str]] = {}
    for (namespace, _), counts in summary.places.items():
        totals.setdefault(namespace, Counter()).update(counts)
    lines = sorted(totals, key=lambda namespace: (*_weight(totals[namespace]), namespace))
    most = max(counts.total() for counts in summary.places.values())
    yield (
        '<section id="namespaces" class="panel" aria-labelledby="ns-h">'
        '<h2 id="ns-h">Namespaces and rules</h2><p>Findings in each namespace; ✕ where one refuses. '
        "The deeper the shade, the more.</p>"
        f'{_scroll("ns-h")}<table class="heat"><thead><tr>'
        '<th scope="col">Namespace</th>'
    )
    yield "".join(f'<th scope="col" class="rot"><span>{_e(name)}</span></th>' for name in columns)
    yield '<th scope="col" class="rot"><span>all</span></th></tr></thead><tbody>'
    for namespace in lines:
        href = f"#{_e(_namespace_id(namespace))}" if names is None else _e(quote(names[namespace]))
        yield f'<tr><th scope="row"><a href="{href}">{_e(namespace or _NO_NAMESPACE)}</a></th>'
        yield "".join(
            _cell(summary.places.get((namespace, name)), namespace, name, most, link=names is None)
            for name in columns
        )
        yield f'<td class="n">{totals[namespace].total():,}</td></tr>'
    yield "</tbody></table></div></section>\n"


def _cell(counts: Counter[str] | None, namespace: str, rule: str, most: int, *, link: bool) -> str:
    if counts is None:
        return "<td></td>"
    refusing = counts[Mode.ENFORCE.value]
    shade = min(4, 1 + 4 * (counts.total() - 1) // max(most, 4))
    sign = '<span class="sign">✕</span>' if refusing else ""
    said = f"{_count(counts.total(), 'finding')} of {rule} in {namespace or _NO_NAMESPACE}"
    said += f", {refusing:,} refuse" if refusing else ""
    number = f"{sign}{counts.total():,}"
    if link:
        number = (
            f'<a href="#workloads" data-ns="{_e(namespace)}" data-rule="{_e(rule)}" '
            f'aria-label="{_e(said)}">{number}</a>'
        )
    return f'<td class="h{shade}" title="{_e(said)}">{number}</td>'


def _owners(summary: Summary, names: Mapping[str, str]) -> Iterator[str]:
    yield (
        '<section id="owners" class="panel" aria-labelledby="owners-h"><h2 id="owners-h">A page for each '
        f'namespace</h2>{_scroll("owners-h")}<table><thead><tr><th scope="col">Namespace</th>'
    )
    yield "".join(f'<th scope="col" class="n">{status.value.capitalize()}</th>' for status in Status)
    yield "</tr></thead><tbody>"
    for namespace, name in names.items():
        cells = "".join(f'<td class="n">{summary.namespaces[namespace][status]:,}</td>' for status in Status)
        link = f'<a href="{_e(quote(name))}">{_e(namespace or _NO_NAMESPACE)}</a>'
        yield f'<tr><th scope="row">{link}</th>{cells}</tr>'
    yield "</tbody></table></div></section>\n"


def _exemptions(subject: Subject, summary: Summary, names: Mapping[str, str] | None) -> Iterator[str]:
    yield (
        '<section id="exemptions" class="panel" aria-labelledby="ex-h"><h2 id="ex-h">Exemptions</h2>'
        "<p>Age is that of the object, and of the last change by the annotation's author: the exemption "
        "is at most as old as the object.</p>"
        f"{_scroll('ex-h')}<table><thead><tr>"
        '<th scope="col">Object</th><th scope="col">Rule</th><th scope="col">Reason</th>'
        '<th scope="col">Object made</th><th scope="col">Annotation last touched</th></tr></thead><tbody>'
    )
    for each in sorted(summary.exempted, key=lambda it: (it.namespace, it.title, it.rule)):
        page = "" if names is None else quote(names[each.namespace])
        yield (
            f'<tr><th scope="row"><a href="{_e(page)}#{each.anchor}">{_e(each.title)}</a></th>'
            f"<td><code>{_e(each.rule)}</code></td><td>{_e(each.reason)}</td>{_ages(each, subject.now)}</tr>"
        )
    yield "</tbody></table></div></section>\n"


def _ages(each: Exempted, now: float) -> str:
    return "".join(f"<td>{_age(when, now)}</td>" for when in (each.created, each.written))


def _age(when: str, now: float) -> str:
    try:
        seconds = now - datetime.fromisoformat(when).timestamp()
    except (ValueError, OverflowError):
        return '<span class="none">not known</span>'
    days = max(0, int(seconds // 86400))
    return f'<time datetime="{_e(when)}">{_count(days, "day")} ago</time>' if days else "today"


def _has_accelerators(subject: Subject, summary: Summary) -> bool:
    return bool(summary.asked or supplies(subject))


def _accelerators(subject: Subject, summary: Summary) -> Iterator[str]:
    there = supplies(subject)
    known = there or {}
    yield (
        '<section id="accelerators" class="panel" aria-labelledby="acc-h"><h2 id="acc-h">Accelerators</h2>'
        "<p>Requests of the objects with all their replicas, next to the capacity of the nodes."
        f"{'' if there is not None else ' The nodes are not known.'}</p>"
        f'{_scroll("acc-h")}<table><thead><tr><th scope="col">Resource</th>'
        '<th scope="col" class="n">Asked for</th>'
        '<th scope="col" class="n">Objects</th><th scope="col" class="n">On nodes</th>'
        '<th scope="col" class="n">Nodes</th><th scope="col" class="n">Most on one</th>'
        '<th scope="col" class="wide">Share</th></tr></thead><tbody>'
    )
    for resource in sorted({*summary.asked, *known}):
        asked, supply = summary.asked[resource], known.get(resource)
        on_nodes = (
            "".join(f'<td class="n">{n:,}</td>' for n in (supply.total, supply.nodes, supply.largest))
            if supply
            else '<td class="n">0</td>' * 3
            if there is not None
            else '<td class="n">?</td>' * 3
        )
        total = supply.total if supply else 0
        short = there is not None and asked > total
        share = _bar([("clean", min(asked, total)), ("refused", max(0, asked - total))], max(asked, total))
        lack = f'<span class="lack">✕ {asked - total:,} too few</span>' if short else ""
        yield (
            f'<tr><th scope="row"><code>{_e(resource)}</code></th><td class="n">{asked:,}</td>'
            f'<td class="n">{summary.asking[resource]:,}</td>{on_nodes}'
            f"<td>{share if there is not None else ''}{lack}</td></tr>"
        )
    yield "</tbody></table></div></section>\n"


# --- the objects -----------------------------------------------------------------------------------


def _toolbar(summary: Summary) -> Iterator[str]:
    yield (
        '<section id="workloads" aria-labelledby="w-h"><h2 id="w-h">Objects</h2>'
        "<noscript><p>Filters and the details of an object need this file's own script.</p></noscript>"
        '<form id="filter" role="search" aria-label="Filter the objects">'
        '<label class="grow">Text<input type="search" id="f-text" autocomplete="off" spellcheck="false" '
        'placeholder="name, image, message …"></label>'
    )
    namespaces = sorted(summary.namespaces)
    yield _select("ns", "Namespace", [(each, each or _NO_NAMESPACE) for each in namespaces])
    yield _select("kind", "Kind", [(each, each) for each in sorted(summary.kinds)])
    yield _select("rule", "Rule", [(each, each) for each in sorted(summary.rules)])
    modes = (
        ("refused", "Refused"),
        ("warned", "Warned"),
        ("unread", "Not reviewed as a whole"),
        ("clean", "Clean"),
        ("podless", "Without pods"),
        ("strict", "Refused under strict"),
        ("changed", "Changed by policies"),
        ("audit", "With audited findings"),
        (EXEMPTED, "With exemptions"),
    )
    yield _select("show", "Mode", modes)
    yield (
        '<div class="buttons"><button type="reset">Clear</button>'
        '<button type="button" id="open" title="At most 200 at once">Open shown</button></div>'
        '<p id="shown" role="status" aria-live="polite"></p></form>\n'
    )


def _select(name: str, label: str, options: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f'<option value="={_e(value)}">{_e(shown)}</option>' for value, shown in options)
    return f'<label>{label}<select id="f-{name}"><option value="">All</option>{listed}</select></label>'


def _namespace_id(namespace: str) -> str:
    return f"ns-{quote(namespace, safe='')}" if namespace else "no-namespace"


def _section(namespace: str, counts: Counter[Status]) -> str:
    name = _e(_namespace_id(namespace))
    said = ", ".join(f"{counts[status]:,} {status.value}" for status in Status if counts[status])
    return (
        f'<section class="ns" id="{name}" data-ns="{_e(namespace)}" aria-labelledby="{name}-h">'
        f'<h3 id="{name}-h"><a href="#{name}">{_e(namespace or _NO_NAMESPACE)}</a> '
        f"<small>{said}</small></h3>\n"
    )


def _anchor(review: Review) -> str:
    document = review.document
    identity = orjson.dumps(
        [
            document.source,
            document.index,
            document.origin and document.origin.steps,
            *map(str, document.identity),
        ]
    )
    return f"w-{hashlib.sha256(identity).hexdigest()[:12]}"


def _row(review: Review, anchor: str, strict: Status, images: Iterable[str], content: Json) -> str:
    document, status = review.document, status_of(review.decision)
    results = review.decision.results
    names = list(dict.fromkeys(result.rule for result in results))
    marks = {
        "strict": strict is Status.REFUSED and status is not Status.REFUSED,
        "changed": bool(review.mutations),
        "audit": any(each.mode is Mode.AUDIT and each.exempted is None for each in results),
        EXEMPTED: any(each.exempted is not None for each in results),
    }
    said = " ".join(mark for mark, there in marks.items() if there)
    shown = [
        f'<span class="st {status.value}">',
        f'<span aria-hidden="true">{_SIGNS[status]}</span> {status.value}</span>',
        f'<span class="name"><span class="kind">{_e(review.kind)}</span> <b>{_e(document.name)}</b></span>',
        '<span class="tags">',
        *(f'<span class="tag">{_e(name)}</span>' for name in names[:3]),
        *([f'<span class="tag">+{len(names) - 3}</span>'] if len(names) > 3 else []),
        *(['<span class="tag strict">refused under strict</span>'] if marks["strict"] else []),
        *(['<span class="tag exempted">exempted</span>'] if marks[EXEMPTED] else []),
        *(['<span class="tag changed">changed</span>'] if marks["changed"] else []),
        "</span>",
        f'<span class="src">{"" if document.runs else _e(review.place())}</span>',
    ]
    data = (
        f'id="{anchor}" data-k="{_e(review.kind)}" data-s="{status.value}" data-f="{said}" '
        f'data-r="{_e(" ".join(names))}" data-i="{_e(" ".join(images))}"'
    )
    if not content:
        return f'<div class="w" {data}><div class="line">{"".join(shown)}</div></div>\n'
    block = f'<script type="application/json">{_block(content)}</script>'
    return f'<details class="w" {data}><summary class="line">{"".join(shown)}</summary>{block}</details>\n'


def _block(content: Json) -> str:
    """JSON that can't end its HTML element, without effects where the page shows it."""
    return orjson.dumps(_shown(content)).decode().replace("<", "\\u003c")


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return printable_lines(value) if isinstance(value, str) else value


def _e(text: str) -> str:
    """A line of text for the page."""
    return escape(printable(text))
