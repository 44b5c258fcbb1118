"""One HTML file from a stream of reviews. Only counts stay in memory; rows go to a temporary file."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import orjson
from msgspec import Struct

from policies.core.finding import Profile
from webhook.cli.output import pages
from webhook.cli.output.html.card import card
from webhook.cli.output.html.summary import Profiles, ReviewStatus, Summary, accelerators_requested, status_of
from webhook.cli.output.html.view import Section, View, counts_in_words, row
from webhook.cli.reviewed import Reviewed, Subject


class _Entry(Struct, frozen=True):
    """The place of an object's row in the temporary file, and its sort key."""

    namespace: str
    rank: int
    title: str
    start: int
    length: int


class Report:
    """The rows of reviewed objects in a temporary file, and their counts."""

    def __init__(self, subject: Subject, rows: BinaryIO) -> None:
        """`rows`: an empty file for writing and reading."""
        self._subject = subject
        self._profiles = Profiles(subject)
        self._entries: list[_Entry] = []
        self._rows = rows
        self.whole = Summary()
        self.by_namespace: dict[str, Summary] = {}

    def read(self, reviews: Iterable[Reviewed]) -> Report:
        """Write a row for every object, and count it."""
        for review in reviews:
            decisions = self._profiles.decide(review)
            anchor = _anchor(review)
            pods = self._subject.pods(review)
            accelerators = accelerators_requested(review, pods)
            own = self.by_namespace.setdefault(review.document.namespace, Summary())
            for summary in (self.whole, own):
                summary.add(review, decisions, anchor, accelerators)
            strict = decisions[Profile.STRICT]
            images = dict.fromkeys(each.image for template, _ in pods for each in template.containers())
            content = card(review, strict, pods)
            written = pages.render(
                "html/row.html", row=row(review, anchor, status_of(strict), images, content)
            ).encode()
            entry = _Entry(
                review.document.namespace,
                list(ReviewStatus).index(status_of(review.decision)),
                review.title,
                self._rows.tell(),
                self._rows.write(written),
            )
            self._entries.append(entry)
        self._entries.sort(key=lambda each: (each.namespace, each.rank, each.title))
        return self

    def page(self, namespace: str | None = None) -> Iterator[str]:
        """The page of all namespaces or of one, in pieces."""
        summary = self.whole if namespace is None else self.by_namespace[namespace]
        entries = [each for each in self._entries if namespace in (None, each.namespace)]
        view = View(self._subject, summary, namespace, None)
        return pages.stream("html/page.html", view=view, sections=self._sections(entries, summary))

    def index(self, names: Mapping[str, str]) -> Iterator[str]:
        """The page without objects, with links to the page of each namespace. `names`: the files by
        namespace."""
        return pages.stream("html/page.html", view=View(self._subject, self.whole, None, names), sections=())

    def _sections(self, entries: Sequence[_Entry], summary: Summary) -> Iterator[Section]:
        for namespace, here in groupby(entries, key=lambda each: each.namespace):
            yield Section(namespace, counts_in_words(summary.namespaces[namespace]), map(self._row, here))

    def _row(self, entry: _Entry) -> str:
        self._rows.seek(entry.start)
        return self._rows.read(entry.length).decode()


def pieces(reviews: Iterable[Reviewed], subject: Subject) -> Iterator[str]:
    """The page of all namespaces, in pieces; all reviews are read before the first."""
    with tempfile.TemporaryFile() as rows:
        yield from Report(subject, rows).read(reviews).page()


def split(reviews: Iterable[Reviewed], subject: Subject, directory: Path) -> int:
    """Write `index.html` and a page for each namespace into a directory; the number of namespaces."""
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


def _anchor(review: Reviewed) -> str:
    document = review.document
    steps = document.origin and document.origin.steps
    identity = orjson.dumps([document.source, document.index, steps, *map(str, document.identity)])
    return f"w-{hashlib.sha256(identity).hexdigest()[:12]}"
