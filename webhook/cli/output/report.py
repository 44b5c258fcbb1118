"""What `chassis review` and `chassis scan` print: decisions as text, diff, JSON, YAML, JUnit XML or SARIF.

Law: reviews are taken one by one and let go, so that a cluster need not fit in memory.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import textwrap
import xml.etree.ElementTree as ET  # writes XML, never parses any
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import orjson
import yaml

from policies.core import registry
from policies.core.mode import Mode
from policies.kube.json import Json, text
from webhook.admission import messages as answer
from webhook.admission.engine import Change, Decision, Result
from webhook.admission.patch import diff
from webhook.config.documents import NUMBERS
from webhook.kube.offline import Document

Line = tuple[str, str]
"""A line of text with its style: a colour's name, `bold`, or empty."""


@dataclass(frozen=True, slots=True)
class Review:
    """One document with what was decided about it."""

    document: Document
    decision: Decision

    @property
    def final(self) -> Json:
        """The object as stored; a workload with its pods as they will be made."""
        projected = self.decision.projected
        return self.decision.object if projected is None else projected

    @property
    def title(self) -> str:
        place = f"{self.document.namespace}/" if self.document.namespace else ""
        return f"{text(self.document.obj, 'kind')} {place}{self.document.name}"

    @property
    def warnings(self) -> list[Result]:
        return [v for v in self.decision.results if v.mode is Mode.WARN and v.exempted is None]

    @property
    def refusals(self) -> list[Result]:
        return [v for v in self.decision.results if v.denies]

    @property
    def mutations(self) -> list[str]:
        """Ids of the policies that changed the object or its pods, in order, each once."""
        return list(dict.fromkeys(c.policy for c in self.decision.changes if c.mode is Mode.ENFORCE))

    @property
    def changes(self) -> list[Change]:
        """What the policies change or would change; of a running object what it has to do without.

        What is enforced in the pods of a running workload they get when they are made: that is no news.
        """
        if not self.document.runs:
            return list(self.decision.changes)
        return [
            change if change.mode is not Mode.ENFORCE else replace(change, mode=Mode.WARN)
            for change in self.decision.changes
            if change.mode is not Mode.ENFORCE or not change.template
        ]


# --- for people ----------------------------------------------------------------------------------


def text_lines(reviews: Iterable[Review]) -> Iterator[Line]:
    """A block per object that there is something to say of, then a line that counts."""
    objects = changed = warnings = denied = running = 0
    for review in reviews:
        objects += 1
        running += review.document.runs
        changed += bool(review.mutations)
        warnings += len(review.warnings)
        denied += not review.decision.allowed
        block = [*_changes(review), *_findings(review)]
        if block:
            style = "green" if review.decision.allowed else "red"
            result = "admitted" if review.decision.allowed else "DENIED"
            yield f"{result} {review.title} ({review.document.source})", f"bold {style}"
            yield from block
            yield "", ""
    counts = (
        _plural(objects, "object"),
        *([] if running else [f"{changed} changed"]),
        _plural(warnings, "warning"),
        f"{denied} denied",
    )
    yield ", ".join(counts), "bold red" if denied else "bold green"


def _changes(review: Review) -> Iterator[Line]:
    for change in review.changes:
        if change.mode in (Mode.ENFORCE, Mode.WARN):
            yield from _wrapped("+ ", answer.describe(change), "cyan")


def _findings(review: Review) -> Iterator[Line]:
    for crash in review.decision.crashes:
        yield f"  ! {crash.id} failed on this object: {crash.error}", "red"
    for note in review.decision.notes:
        yield from _wrapped("! ", note, "yellow")
    for result in review.warnings:
        yield from _finding("warning", result, "yellow")
    for result in review.refusals:
        yield from _finding("refused", result, "red")


def _finding(label: str, result: Result, style: str) -> Iterator[Line]:
    yield f"  {label} {result.rule}", style
    yield f"    at {result.finding.path}", ""
    yield from _wrapped("", result.finding.message, "", indent=4)
    if result.finding.hint:
        yield from _wrapped("Mend: ", result.finding.hint, "", indent=4)
    if result.spared:
        yield from _wrapped("Not refused: ", f"{result.spared}.", "", indent=4)


def _wrapped(mark: str, sentence: str, style: str, indent: int = 2) -> Iterator[Line]:
    pad = " " * indent
    after = pad + " " * (len(mark) if len(mark) == 2 else 2)
    for line in textwrap.wrap(
        f"{mark}{sentence}", _width(), initial_indent=pad, subsequent_indent=after, break_on_hyphens=False
    ):
        yield line, style


def _width() -> int:
    """Columns of text for people: the terminal's, within reason."""
    return max(40, min(100, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else 100


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def diff_lines(reviews: Iterable[Review]) -> Iterator[Line]:
    """A unified diff per changed object, its findings as comments above it."""
    for review in reviews:
        findings = list(_findings(review))
        before, after = (dump(obj).splitlines() for obj in (review.document.obj, review.final))
        name = f"{review.document.place} {review.title}"
        changes = list(difflib.unified_diff(before, after, name, f"{name} (reviewed)", lineterm=""))
        if findings:
            yield f"# {review.title}", "bold"
            yield from ((f"#{line}", style) for line, style in findings)
        for line in changes:
            yield line, _DIFF_STYLES.get(line[:1], "") if not line.startswith(("---", "+++")) else "bold"


_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


# --- for programs -------------------------------------------------------------------------------


def as_json(reviews: Iterable[Review]) -> Iterator[str]:
    """One array, one element per object, findings in every mode included."""
    before = "[\n"
    for review in reviews:
        rendered = orjson.dumps(record(review), option=orjson.OPT_INDENT_2).decode()
        yield before + textwrap.indent(rendered, "  ")
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def record(review: Review) -> Json:
    """What `-o json` says of one object."""
    document, decision = review.document, review.decision
    return {
        "source": document.source,
        "document": document.index,
        "apiVersion": text(document.obj, "apiVersion"),
        "kind": text(document.obj, "kind"),
        "namespace": document.namespace,
        "name": document.name,
        "allowed": decision.allowed,
        "findings": [
            {
                "rule": result.rule,
                "mode": result.mode.value,
                "path": result.finding.path,
                "message": result.finding.message,
                "hint": result.finding.hint,
                "exempted": result.exempted,
            }
            for result in decision.results
        ],
        "mutations": review.mutations,
        "projected": decision.projected is not None,
        "patch": diff(document.obj, review.final),
        "object": review.final,
    }


def as_yaml(reviews: Iterable[Review]) -> Iterator[str]:
    """The objects as they would be stored, those that are denied commented out."""
    for number, review in enumerate(reviews):
        yield f"---\n{_commented(review)}" if number else _commented(review)


def _commented(review: Review) -> str:
    rendered = dump(review.final)
    if review.decision.allowed:
        return rendered
    refused = ", ".join(result.rule for result in review.refusals)
    return f"# denied: {refused}\n" + "".join(f"# {line}\n" for line in rendered.splitlines())


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _starts in NUMBERS:
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _starts)


def dump(obj: Json) -> str:
    """An object as YAML, keys in the order in which they were written; text that kubectl would read as a
    number, such as the commit `12e4567`, is quoted."""
    rendered: str = yaml.dump(obj, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return rendered


def as_junit(reviews: Iterable[Review]) -> Iterator[str]:
    """A test case per object: a refusal is a failure, warnings go to its output."""
    suite = ET.Element("testsuite", name="chassis", tests="0", failures="0")
    for review in reviews:
        case = ET.SubElement(
            suite, "testcase", classname=_printable(review.document.source), name=_printable(review.title)
        )
        if not review.decision.allowed:
            failure = ET.SubElement(
                case, "failure", message=", ".join(v.rule for v in review.refusals) or "failed"
            )
            failure.text = _printable(answer.denial(review.decision))
        if review.warnings:
            output = ET.SubElement(case, "system-out")
            output.text = _printable("\n".join(answer.sentence(result) for result in review.warnings))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    yield ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(value: str) -> str:
    """Text without the control characters that XML 1.0 has no spelling for."""
    return "".join(
        c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff") else "?"
        for c in value
    )


_LEVELS: Final[Mapping[Mode, str]] = {
    Mode.ENFORCE: "error",
    Mode.WARN: "warning",
    Mode.AUDIT: "note",
    Mode.OFF: "none",
}


def as_sarif(reviews: Iterable[Review]) -> Iterator[str]:
    """SARIF 2.1.0, as code hosts take it. Source: docs.oasis-open.org/sarif/sarif/v2.1.0"""
    results = [_result(review, result) for review in reviews for result in review.decision.results]
    used = {result["ruleId"] for result in results}
    driver = {
        "name": "ML Chassis",
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.what},
                "fullDescription": {"text": rule.why},
                "help": {"text": rule.mend},
            }
            for rule in registry.rules().values()
            if rule.id in used
        ],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    yield orjson.dumps(log, option=orjson.OPT_INDENT_2).decode() + "\n"


def _result(review: Review, result: Result) -> Json:
    finding, source = result.finding, review.document.source
    place = {
        "physicalLocation": {"artifactLocation": {"uri": quote(source) if review.document.runs else source}},
        "logicalLocations": [{"fullyQualifiedName": f"{review.title}: {finding.path}"}],
    }
    entry: Json = {
        "ruleId": result.rule,
        "level": _LEVELS[result.mode],
        "message": {"text": f"{finding.message} {finding.hint}".strip()},
        "locations": [place],
    }
    if result.exempted is not None:
        entry["suppressions"] = [{"kind": "inSource", "justification": result.exempted}]
    return entry


_FOR_PROGRAMS: Final[Mapping[str, Callable[[Iterable[Review]], Iterable[str]]]] = {
    "json": as_json,
    "yaml": as_yaml,
    "junit": as_junit,
    "sarif": as_sarif,
}
_FOR_PEOPLE: Final[Mapping[str, Callable[[Iterable[Review]], Iterable[Line]]]] = {
    "text": text_lines,
    "diff": diff_lines,
}


# --- printing ------------------------------------------------------------------------------------


def show(reviews: Iterable[Review], output: str) -> Tally:
    """Print reviews, as they come, in one of the formats of `--output`; what there was among them."""
    tally = Tally()
    if output in _FOR_PROGRAMS:
        for piece in _FOR_PROGRAMS[output](tally.seeing(reviews)):
            sys.stdout.write(piece)
    else:
        _show_lines(_FOR_PEOPLE[output](tally.seeing(reviews)))
    return tally


@dataclass
class Tally:
    """Whether anything was denied, or warned of."""

    denied: bool = False
    warned: bool = False

    def seeing(self, reviews: Iterable[Review]) -> Iterator[Review]:
        for review in reviews:
            self.denied |= not review.decision.allowed
            self.warned |= bool(review.warnings or review.decision.crashes)
            yield review


def _show_lines(lines: Iterable[Line]) -> None:
    """Print lines; in colour on a terminal only."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        for line, _ in lines:
            print(line)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line, style in lines:
        console.print(Text(line, style=style), soft_wrap=True)
