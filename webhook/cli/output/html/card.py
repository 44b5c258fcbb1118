"""The details of one object on the page: findings, injected fields, the probes' timeline."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from policies.core.annotations import EXEMPT
from policies.core.facts import Facts
from policies.core.finding import Mode
from policies.core.reasons import in_words
from policies.core.target import PodTemplate
from policies.kube.field_paths import named
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.names import shortened
from webhook.admission import messages
from webhook.admission.decision import Decision, Result
from webhook.admission.json_patch import diff, steps_of
from webhook.cli.output.html.timeline import timelines
from webhook.cli.output.yaml import dump, for_reading
from webhook.cli.reviewed import Reviewed, named_in
from webhook.manifests.positions import Origin

CONTEXT_LINES: Final = 2
"""Lines of context above and below."""
MAX_MARKED: Final = 14
"""Lines of one field."""
MAX_ROWS: Final = 240
"""Lines of one diff."""
MAX_ROW_LENGTH: Final = 240
"""Characters of one line."""


def card(review: Reviewed, strict: Decision, pods: Iterable[tuple[PodTemplate, Facts]]) -> Json:
    """The content of an object's card; empty if there are no details."""
    decision = review.decision
    written = review.document.origin or Origin(dump(_described(review.document.obj)))
    shown = {
        "notes": [
            *(f"{crash.id} failed on this object: {crash.error}" for crash in decision.distinct_crashes),
            *decision.notes,
            *filter(None, [review.unread]),
        ],
        "findings": [_finding(result, review, strict, written) for result in decision.results],
        "would": [messages.describe(each) for each in decision.changes if each.mode is Mode.WARN],
        "diff": _diff(review),
        "exempt": _exemption(review),
    }
    if shown["diff"] or shown["findings"]:
        shown["probes"] = [
            {
                "container": each.container,
                **{
                    name: seconds if seconds is None else [seconds, in_words(seconds)]
                    for name, seconds in (
                        ("expected", each.expected),
                        ("startup", each.startup),
                        ("livenessOnly", each.liveness_only),
                        ("readiness", each.readiness),
                        ("liveness", each.liveness),
                    )
                },
                "wrong": [each.kills_the_start, each.restarts_first],
                "text": each.sentences,
            }
            for each in timelines(pods)
        ]
    return {key: value for key, value in shown.items() if value}


def _described(obj: Json) -> Json:
    """The written fields of an object, without those that the cluster adds."""
    return {key: value for key, value in obj.items() if key != "status"}


# --- findings ------------------------------------------------------------------------------------


def _finding(result: Result, review: Reviewed, strict: Decision, written: Origin) -> Json:
    finding = result.finding
    stricter = next((each for each in strict.results if each.finding == finding), result)
    lines = written.lines(named(review.final, finding.path))
    first, last = lines.first, min(lines.last, lines.first + MAX_MARKED - 1)
    if not lines.exact:
        last = first  # the parent of the field
    start = max(1, first - CONTEXT_LINES)
    rows = written.rows[start - 1 : last + CONTEXT_LINES]
    shown: Json = {
        "rule": result.rule,
        "mode": result.mode.value,
        "path": finding.path,
        "message": finding.message,
        "hint": finding.hint,
        "names": list(named_in(finding.message)),
        "line": first if review.document.origin else None,
        "start": start,
        "marked": [first, last],
        "rows": [shortened(row, MAX_ROW_LENGTH) for row in rows],
        "more": lines.last - last if lines.exact else 0,
    }
    if result.exempted is not None:
        shown["exempted"] = result.exempted
    if result.ratcheted:
        shown["ratcheted"] = result.ratcheted
    if stricter.denies and not result.denies and result.exempted is None:
        shown["strict"] = True
    return shown


def _exemption(review: Reviewed) -> Json | None:
    """The annotation that exempts the object, and for a running object the command."""
    names = dict.fromkeys(
        each.rule
        for each in review.decision.results
        if each.exempted is None and each.exemptable and each.mode in (Mode.ENFORCE, Mode.WARN)
    )
    if not names:
        return None
    obj = review.document.obj
    before = annotations_of(obj).get(EXEMPT)
    parts = [before] if isinstance(before, str) and before else []
    value = "; ".join([*parts, *(f"{name}=<why this is safe here>" for name in names)])
    shown = {"yaml": dump({"metadata": {"annotations": {EXEMPT: value}}})}
    if review.document.runs:
        target = f"{str(kind_of(obj)).lower()}/{review.document.name}"
        command = ["kubectl", "annotate", target, f"{EXEMPT}={value}"]
        command += ["-n", review.document.namespace] if review.document.namespace else []
        command += ["--overwrite"] if parts else []
        shown["command"] = shlex.join(command)
    return shown


# --- injected fields -------------------------------------------------------------------------------


def _diff(review: Reviewed) -> list[list[str]]:
    """Rows of sign, line, and policy with reason: the added lines and the lines around them. A row of three
    dots replaces omitted lines."""
    final = Origin(dump(_described(for_reading(review.final, review.document.obj))))
    added: dict[int, str] = {}
    for operation in diff(_described(review.document.obj), _described(review.final)):
        lines = final.lines(steps_of(operation["path"]))
        added.update(dict.fromkeys(range(lines.first, lines.last + 1), ""))
    for change in review.decision.changes:
        for reason in change.reasons if change.mode is Mode.ENFORCE else ():
            first = final.lines(named({}, reason.path)).first
            if first in added:
                before = f"{added[first]}; " if added[first] else ""
                added[first] = f"{before}{reason.policy}: {reason.why}"
    return list(_hunks(final.rows, added)) if added else []


def _hunks(rows: Sequence[str], added: dict[int, str]) -> Iterator[list[str]]:
    near = {number + away for number in added for away in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    before = 0
    for count, number in enumerate(sorted(n for n in near if 1 <= n <= len(rows))):
        if count == MAX_ROWS:
            yield ["…", "", "chassis review -o diff shows the rest"]
            return
        if number != before + 1:
            yield ["…", "", ""]
        sign = "+" if number in added else " "
        yield [sign, shortened(rows[number - 1], MAX_ROW_LENGTH), added.get(number, "")]
        before = number
