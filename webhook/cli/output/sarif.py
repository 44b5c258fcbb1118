"""Findings as SARIF 2.1.0 for code hosts. Source: docs.oasis-open.org/sarif/sarif/v2.1.0

GitHub requires more than the schema: a URI in every location (GH1001), no thread flows outside a result
(GH1002), and a region with a first line (GH1003), which objects in a cluster do not have.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import orjson

from policies.core import registry
from policies.core.finding import Mode
from policies.kube.field_paths import named
from policies.kube.json import Json
from webhook.admission import messages
from webhook.admission.decision import Result
from webhook.cli import explain
from webhook.cli.reviewed import Reviewed, Subject
from webhook.cli.terminal import as_json
from webhook.config.load import rules
from webhook.manifests.files import Document
from webhook.version import version

_LEVELS: Final[Mapping[Mode, str]] = {
    Mode.ENFORCE: "error",
    Mode.WARN: "warning",
    Mode.AUDIT: "note",
    Mode.OFF: "none",
}
HOME: Final = "https://github.com/ml-chassis/ml-chassis"
FINGERPRINT: Final = "chassisFinding/v1"
"""Identifies a finding by rule, object and field, with names instead of indices, so that it survives
edits."""


def pieces(reviews: Iterable[Reviewed], subject: Subject) -> Iterator[str]:
    ids = {name: index for index, name in enumerate((*rules(), *registry.mutators()))}
    results: list[Json] = []
    notifications: list[Json] = []
    seen: Counter[str] = Counter()
    for review in reviews:
        results += [_result(review, result, ids, seen) for result in review.decision.results]
        for crash in review.decision.distinct_crashes:
            message = f"{crash.id} failed on {review.title}: {crash.error}"
            notifications.append(_notification(review, "error", message))
        if review.unread:
            notifications.append(_notification(review, "warning", f"{review.title}: {review.unread}"))
    driver = {
        "name": "ML Chassis",
        "version": version(),
        "informationUri": HOME,
        "rules": list(_rules(subject.config.webhook.docs_url or f"{HOME}/blob/main/docs")),
    }
    run: Json = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    if notifications:
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": notifications}]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    yield as_json(log)


def _rules(docs: str) -> Iterator[Json]:
    """All rules and policies, in the order of `ruleIndex`."""
    for rule in rules().values():
        document = rule.document
        yield {
            "id": rule.id,
            "name": "".join(word.capitalize() for word in rule.id.split("-")),
            "shortDescription": {"text": explain.sentence(document.what)},
            "fullDescription": {"text": document.why},
            "help": {"text": document.remediation},
            "helpUri": messages.page_of(rule.id, document.family, docs),
            "defaultConfiguration": {"level": _LEVELS[document.modes.standard]},
            "properties": {"tags": [document.family.value]},
        }
    for name, policy in registry.mutators().items():
        yield {
            "id": name,
            "name": "".join(word.capitalize() for word in name.split("-")),
            "shortDescription": {"text": explain.summary(policy)},
            "helpUri": messages.page_of(name, None, docs),
            "defaultConfiguration": {"level": "warning"},
            "properties": {"tags": ["policy"]},
        }


def _result(review: Reviewed, result: Result, ids: Mapping[str, int], seen: Counter[str]) -> Json:
    finding = result.finding
    fingerprint = _fingerprint(review, result)
    seen[fingerprint] += 1
    entry: Json = {
        "ruleId": result.rule,
        "ruleIndex": ids[result.rule],
        "level": _LEVELS[result.mode],
        "message": {"text": _without_links(f"{finding.message} {finding.hint}".strip())},
        "locations": [_location(review, finding.path)],
        "partialFingerprints": {FINGERPRINT: f"{fingerprint}:{seen[fingerprint]}"},
    }
    if others := review.others(result):
        entry["relatedLocations"] = [_related(number, other) for number, other in enumerate(others, 1)]
    if result.exempted is not None:
        entry["suppressions"] = [{"kind": "inSource", "justification": result.exempted}]
    return entry


def _without_links(text: str) -> str:
    """Escape links: viewers interpret `[text](target)` in a message (SARIF 2.1.0, 3.11.6)."""
    return text.replace("](", "\\](")


def _fingerprint(review: Reviewed, result: Result) -> str:
    place = [*map(str, review.document.identity), *named(review.final, result.finding.path)]
    return hashlib.sha256(orjson.dumps([result.rule, place])).hexdigest()[:16]


def _location(review: Reviewed, path: str) -> Json:
    physical: Json = {"artifactLocation": _artifact(review.document)}
    if lines := review.lines(path):
        physical["region"] = {"startLine": lines.first, "endLine": lines.last if lines.exact else lines.first}
    return {
        "physicalLocation": physical,
        "logicalLocations": [{"fullyQualifiedName": f"{review.title}: {path}"}],
    }


def _related(number: int, other: Document) -> Json:
    """Where another object of a finding is."""
    name = f"{other.identity[0].kind} {other.name}"
    physical: Json = {"artifactLocation": _artifact(other)}
    if other.origin is not None:
        physical["region"] = {"startLine": other.origin.first_line}
    return {"id": number, "message": {"text": name}, "physicalLocation": physical}


def _artifact(document: Document) -> Json:
    """The file, relative to the working directory if it was named so; the cluster of a running object."""
    source = document.source
    if document.origin is None:
        return {"uri": quote(source)}
    if Path(source).is_absolute():
        return {"uri": Path(source).as_uri()}
    return {"uri": quote(Path(source).as_posix()), "uriBaseId": "%SRCROOT%"}


def _notification(review: Reviewed, level: str, message: str) -> Json:
    return {
        "level": level,
        "message": {"text": _without_links(message)},
        "locations": [_location(review, "")],
    }
