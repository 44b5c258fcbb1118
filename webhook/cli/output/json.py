"""Decisions as one JSON array, an element for each object, findings in every mode included."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

import orjson

from policies.kube.json import Json, text
from webhook.admission.json_patch import diff
from webhook.admission.printable import printable_json
from webhook.cli.reviewed import Reviewed, Subject
from webhook.manifests.files import Document


def pieces(reviews: Iterable[Reviewed], _: Subject) -> Iterator[str]:
    before = "[\n"
    for review in reviews:
        rendered = orjson.dumps(record(review), option=orjson.OPT_INDENT_2).decode()
        yield before + textwrap.indent(printable_json(rendered), "  ")
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def identity(document: Document) -> Json:
    """The place and name of an object."""
    return {
        "source": document.source,
        "document": document.index,
        "apiVersion": text(document.obj, "apiVersion"),
        "kind": text(document.obj, "kind"),
        "namespace": document.namespace,
        "name": document.name,
    }


def record(review: Reviewed) -> Json:
    document, decision = review.document, review.decision
    return {
        **identity(document),
        "allowed": decision.allowed,
        "reading": review.coverage.reading.value,
        "unread": [{"path": each.path, "why": each.why} for each in review.coverage.unread],
        "foundByShape": list(review.coverage.by_shape),
        "findings": [
            {
                "rule": result.rule,
                "mode": result.mode.value,
                "path": result.finding.path,
                "message": result.finding.message,
                "hint": result.finding.hint,
                "exempted": result.exempted,
                "others": [identity(other) for other in review.others(result)],
            }
            for result in decision.results
        ],
        "failures": [{"id": crash.id, "error": crash.error} for crash in decision.distinct_crashes],
        "notes": list(decision.notes),
        "mutations": review.mutations,
        "reasons": [
            {
                "policy": reason.policy,
                "mode": mode.value,
                "path": reason.path,
                "why": reason.why,
                "setting": reason.setting or None,
                "annotation": reason.annotation or None,
            }
            for mode, reason in review.reasons
        ],
        "projected": decision.projected is not None,
        "patch": diff(document.obj, review.final),
        "object": review.final,
    }
