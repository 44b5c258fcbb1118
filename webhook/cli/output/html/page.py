"""One HTML file from a stream of reviews. Only counts stay in memory; rows go to a temporary file.

Jinja escapes every text, after `printable` has replaced its control characters. The script puts data
only into text nodes. The page loads no other file, and its Content-Security-Policy allows only its own script
and style.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct

from policies.core.finding import Profile
from webhook.admission.printable import printable, printable_lines
from webhook.cli.output.html.card import card
from webhook.cli.output.html.summary import Profiles, ReviewStatus, Summary, status_of
from webhook.cli.output.html.view import Section, View, counted, counts_in_words, row
from webhook.cli.reviewed import Reviewed, Subject
from webhook.version import version


class _Entry(Struct, frozen=True):
    """The place of an object's row in the temporary file, and its sort key."""

    namespace: str
    rank: int
    title: str
    start: int
    length: int


def pieces(reviews: Iterable[Reviewed], subject: Subject) -> Iterator[str]:
    """The page, in pieces; all reviews are read before the first."""
    summary = Summary()
    with tempfile.TemporaryFile() as rows:
        entries = sorted(
            _entries(reviews, subject, summary, rows), key=attrgetter("namespace", "rank", "title")
        )
        sections = _sections(entries, summary, rows)
        page = _environment().get_template("page.html")
        yield from page.generate(view=View(subject, summary), sections=sections)


def _entries(
    reviews: Iterable[Reviewed], subject: Subject, summary: Summary, rows: BinaryIO
) -> Iterator[_Entry]:
    """Count every object, and write its row."""
    profiles = Profiles(subject)
    template = _environment().get_template("row.html")
    for review in reviews:
        decisions = profiles.decide(review)
        anchor = _anchor(review)
        summary.add(review, decisions, anchor)
        pods = subject.pods(review)
        strict = decisions[Profile.STRICT]
        images = dict.fromkeys(each.image for template, _ in pods for each in template.containers())
        content = card(review, strict, pods)
        written = template.render(row=row(review, anchor, status_of(strict), images, content)).encode()
        rank = list(ReviewStatus).index(status_of(review.decision))
        start, length = rows.tell(), rows.write(written)
        yield _Entry(review.document.namespace, rank, review.title, start, length)


def _sections(entries: Iterable[_Entry], summary: Summary, rows: BinaryIO) -> Iterator[Section]:
    def read(entry: _Entry) -> str:
        rows.seek(entry.start)
        return rows.read(entry.length).decode()

    for namespace, here in groupby(entries, key=attrgetter("namespace")):
        yield Section(namespace, counts_in_words(summary.namespaces[namespace]), map(read, here))


def _anchor(review: Reviewed) -> str:
    document = review.document
    steps = document.origin and document.origin.steps
    identity = orjson.dumps([document.source, document.index, steps, *map(str, document.identity)])
    return f"w-{hashlib.sha256(identity).hexdigest()[:12]}"


# --- templates ---------------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        auto_reload=False,
        finalize=_printable,
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals.update(asset=_asset, version=version())
    made.filters.update(counted=counted, digest=_digest, number=_number, lines=printable_lines, shown=_shown)
    made.policies.update({"json.dumps_function": _json, "json.dumps_kwargs": {}})
    return made


@cache
def _asset(name: str) -> str:
    return Path(__file__).parent.joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a Content-Security-Policy identifies a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _number(number: int) -> str:
    return f"{number:,}"


def _printable(value: Any) -> Any:
    """A value of a template: text on one line, without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _shown(value: Any) -> Any:
    """JSON without control characters in its texts."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return printable_lines(value) if isinstance(value, str) else value


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
