"""Decisions as JUnit XML, a test case for each object: refusals are failures, warnings are its output."""

from __future__ import annotations

import xml.etree.ElementTree as ET  # writes XML, never parses any
from collections.abc import Iterable, Iterator

from webhook.admission import messages
from webhook.admission.coverage import Reading
from webhook.admission.printable import printable, printable_lines
from webhook.cli.reviewed import Reviewed, Subject


def pieces(reviews: Iterable[Reviewed], _: Subject) -> Iterator[str]:
    suite = ET.Element("testsuite", name="chassis", errors="0")
    for review in reviews:
        case = add_case(suite, review.document.source, review.title)
        if not review.decision.allowed:
            rules = ", ".join(result.rule for result in review.refusals) or "failed"
            add_failure(case, rules, messages.denial(review.decision))
        elif review.unread and review.coverage.reading is Reading.NOT:
            ET.SubElement(case, "skipped", message=printable(review.unread))
        warnings = [messages.sentence(result) for result in review.warnings]
        if review.unread and review.coverage.reading is Reading.PARTLY:
            warnings.append(review.unread)
        if warnings:
            ET.SubElement(case, "system-out").text = printable_lines("\n".join(warnings))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    yield rendered(suite)


def add_case(suite: ET.Element, classname: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=printable(classname), name=printable(name))


def add_failure(case: ET.Element, message: str, details: str) -> None:
    ET.SubElement(case, "failure", message=printable(message)).text = printable_lines(details)


def rendered(root: ET.Element) -> str:
    """The XML of a suite, or of several in a `testsuites` element, with the numbers of tests and failures."""
    for suite in root.iter("testsuite"):
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
