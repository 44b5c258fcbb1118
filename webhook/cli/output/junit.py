"""Decisions as JUnit XML: a refusal is a failure, warnings go to the output of the test case."""

from __future__ import annotations

import xml.etree.ElementTree as ET  # writes XML, never parses any
from collections.abc import Iterable, Iterator

from policies.core.coverage import Reading
from policies.kube.printable import printable, printable_lines
from webhook.admission import messages
from webhook.cli.output.review import Review


def pieces(reviews: Iterable[Review]) -> Iterator[str]:
    """A test case per object: a refusal is a failure, warnings go to its output."""
    suite = ET.Element("testsuite", name="chassis", tests="0", failures="0", errors="0", skipped="0")
    for review in reviews:
        case = ET.SubElement(
            suite, "testcase", classname=printable(review.document.source), name=printable(review.title)
        )
        if not review.decision.allowed:
            failure = ET.SubElement(
                case, "failure", message=", ".join(v.rule for v in review.refusals) or "failed"
            )
            failure.text = printable_lines(messages.denial(review.decision))
        elif review.unread and review.coverage.reading is Reading.NOT:
            ET.SubElement(case, "skipped", message=printable(review.unread))
        said = [messages.sentence(result) for result in review.warnings]
        if review.unread and review.coverage.reading is Reading.PARTLY:
            said.append(review.unread)
        if said:
            output = ET.SubElement(case, "system-out")
            output.text = printable_lines("\n".join(said))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    yield ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
