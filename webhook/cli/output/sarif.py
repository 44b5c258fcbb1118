"""Findings as SARIF 2.1.0, as code hosts take it. Source: docs.oasis-open.org/sarif/sarif/v2.1.0"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

import orjson

from policies.core.mode import Mode
from policies.kube.json import Json
from webhook.admission.decision import Result
from webhook.cli.output.review import Review
from webhook.config.load import rules

_LEVELS: Final[Mapping[Mode, str]] = {
    Mode.ENFORCE: "error",
    Mode.WARN: "warning",
    Mode.AUDIT: "note",
    Mode.OFF: "none",
}


def pieces(reviews: Iterable[Review]) -> Iterator[str]:
    """SARIF 2.1.0, as code hosts take it. Source: docs.oasis-open.org/sarif/sarif/v2.1.0"""
    results = [_result(review, result) for review in reviews for result in review.decision.results]
    used = {result["ruleId"] for result in results}
    driver = {
        "name": "ML Chassis",
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.document.what},
                "fullDescription": {"text": rule.document.why},
                "help": {"text": rule.document.remediation},
            }
            for rule in rules().values()
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
