"""The texts of a decision: the response for the API server, its warnings and audit annotations."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import orjson

from policies.core.contracts import Family
from policies.core.finding import Mode
from policies.kube.field_paths import field_path
from policies.kube.json import Json, dig
from policies.kube.names import plural, shortened
from webhook.admission.answer import Response, allowed, denied, patched
from webhook.admission.decision import Change, Crash, Decision, Result
from webhook.admission.json_patch import steps_of
from webhook.admission.printable import printable

MESSAGE_WIDTH = 78
MAX_PLACES = 4
"""Further places of a finding that a denial lists."""
MESSAGE_LENGTH = 32_000
"""Characters of a denial: controllers copy it into a condition, whose message may have 32,768."""
AUDIT_LENGTH = 16 * 1024
"""Characters of an audit annotation, so that tools can process the line of the audit log."""
AUDIT_TEXT = 1024
"""Characters of one text in an audit annotation, so that a long one does not displace others."""


def respond(decision: Decision) -> Response:
    """The answer to the request that was decided."""
    warnings, audit = list(warnings_of(decision)), audit_of(decision)
    if not decision.allowed:
        return denied(denial(decision), warnings=warnings, audit=audit)
    if decision.patch:
        return patched(decision.patch, warnings, audit)
    return allowed(warnings, audit)


# --- warnings --------------------------------------------------------------------------------


def warnings_of(decision: Decision) -> Iterator[str]:
    """The warnings of an answer. Findings and changes are left out if a controller sent the request."""
    for crash in decision.distinct_crashes:
        yield f"{crash.id}: it failed on this object and was skipped ({crash.error}). Please report it"
    yield from decision.notes
    if decision.owned:
        return
    for result in decision.warnings:
        cited = f" See {reference(result, decision.docs_url)}" if decision.docs_url else ""
        yield sentence(result) + cited
    if decision.lists_changes:
        yield from filter(None, map(warning_line, listed_changes(decision.changes)))


def listed_changes(changes: Iterable[Change]) -> Iterator[Change]:
    """The changes that warnings list."""
    return (change for change in changes if change.mode in (Mode.ENFORCE, Mode.WARN))


def warning_line(change: Change) -> str:
    """The new additions of a policy and the first reason; empty if there are none."""
    reasons = [reason for reason in change.reasons.local() if reason.path]
    if change.known:
        reasons = [each for each in change.reasons if (each.path, each.why) not in change.known]
        if not reasons:
            return ""
    fields = dict.fromkeys(_leaf(reason.path) for reason in reasons)
    line = f"{change.mutator} {verb(change)} {', '.join(fields) or ', '.join(places(change))}"
    if not reasons:
        return line
    first = reasons[0]
    several = len(fields) > 1 and any(each.why != first.why for each in reasons)
    of = f"; {_leaf(first.path)}" if several else ""
    return f"{line}{of}: {first.why}"


_FIELD: Final = re.compile(r"[^.\[]+(?:\[.*?\](?=\.|$))?")
_SPELLED_OUT: Final = ("DuringExecution", "preStop")
"""Suffixes of field names that say little without their parent's name."""


def _leaf(path: str) -> str:
    """The last field of a path, an annotation by its key: `startupProbe`, `tolerations`, `nodeAffinity`."""
    fields: list[str] = _FIELD.findall(path)
    *others, last = fields
    if last.endswith(_SPELLED_OUT) and others:
        last = others[-1]
    name, _, element = last.partition("[")
    return element.removesuffix("]") if name in ("annotations", "initContainers", "volumes") else name


def sentence(result: Result) -> str:
    """A finding in one line: rule, reason, fix, path."""
    finding = result.finding
    not_refused = f" Not refused: {result.ratcheted}." if result.ratcheted else ""
    place = f"{finding.path}, found by shape" if result.by_shape else finding.path
    if result.also:
        place = f"{place}, and {len(result.also)} more"
    return " ".join(f"{result.rule}: {finding.message} {finding.hint} ({place}){not_refused}".split())


def describe(change: Change) -> str:
    """A change in one line: `standard-probes added spec.containers[api].{livenessProbe, startupProbe}`."""
    return f"{heading(change)} {', '.join(places(change))}"


def heading(change: Change) -> str:
    """Policy and verb of a change: `standard-probes will add to the pods`."""
    return f"{change.mutator} {verb(change)}{' to the pods' if change.template else ''}"


def verb(change: Change) -> str:
    if change.mode is not Mode.ENFORCE:
        return "would add"
    return "will add" if change.template else "added"


def places(change: Change) -> list[str]:
    """The changed fields, with list elements by name and siblings in braces."""
    groups: dict[str, list[str]] = {}
    for operation in change.patch:
        parent, leaf = _place(change.before, operation)
        groups.setdefault(parent, []).append(leaf)
    return [
        f"{parent}.{{{', '.join(leaves)}}}" if len(leaves) > 1 else _joined(parent, leaves[0])
        for parent, leaves in groups.items()
    ]


def _place(obj: Json, operation: Json) -> tuple[str, str]:
    """The parent and the last name of the field that an operation changes."""
    steps = steps_of(operation["path"])
    spelled: list[str] = []
    value: object = obj
    for number, step in enumerate(steps, 1):
        if isinstance(value, list) and step.isascii() and step.isdigit():
            added = number == len(steps) and operation["op"] == "add"
            value = operation["value"] if added else dig(value, int(step))
            spelled[-1:] = [f"{spelled[-1]}[{_element(value, step)}]"] if spelled else [f"[{step}]"]
        else:
            value = value.get(step) if type(value) is dict else None
            spelled.append(step if step.isalnum() else field_path((step,)))
    *parents, leaf = spelled or [""]
    return ".".join(parents), leaf


def _joined(parent: str, leaf: str) -> str:
    return f"{parent}{leaf}" if not parent or leaf.startswith("[") else f"{parent}.{leaf}"


def _element(value: object, index: str) -> str:
    """A list element's name, or its index."""
    if isinstance(value, dict):
        for key in ("name", "key", "mountPath"):
            if isinstance(name := value.get(key), str):
                return name
    return index


# --- denials ---------------------------------------------------------------------------------


def denial(decision: Decision) -> str:
    """All refusals with reasons, MESSAGE_WIDTH columns wide; those beyond MESSAGE_LENGTH are counted."""
    refused = decision.refusals
    crashed = [crash for crash in decision.crashes if crash.denies]
    count = len(refused) + len(crashed)
    blocks = [plural(count, "finding")]
    length = 0
    for number, block in enumerate(_blocks(refused, crashed, decision.docs_url)):
        length += len(block) + 2
        if length > MESSAGE_LENGTH:
            blocks.append(f"and {count - number} more: chassis review lists them")
            break
        blocks.append(block)
    if refused and all(result.exemptable for result in refused):
        rules = list(dict.fromkeys(result.rule for result in refused))
        reasons = f"{rules[0]}=<reason>" if len(rules) == 1 else "<rule>=<reason>; <rule>=<reason>"
        blocks.append(f'To admit it anyway, add this annotation:\n  mlchassis.dev/exempt: "{reasons}"')
    return "\n\n".join(blocks)


def _blocks(refused: Iterable[Result], crashed: Iterable[Crash], docs_url: str) -> Iterator[str]:
    for number, result in enumerate(refused, 1):
        yield _block(number, result, docs_url)
    for crash in crashed:
        text = f"{crash.id}: the rule failed ({crash.error}), and the policy sets onError: deny."
        yield _fill(text, "  ")


def _block(number: int, result: Result, docs_url: str) -> str:
    finding, more = result.finding, len(result.also) - MAX_PLACES
    return "\n".join(
        (
            f"{number}. {result.rule}",
            *(f"   at {printable(path)}" for path in (finding.path, *result.also[:MAX_PLACES])),
            *([f"   and {more} more"] if more > 0 else []),
            _fill(finding.message, "   "),
            _fill(f"Fix: {finding.hint}", "   "),
            _fill(f"See: {reference(result, docs_url)}", "   "),
        )
    )


def _fill(text: str, indent: str) -> str:
    return textwrap.fill(
        printable(text.replace("\n", " ")),
        MESSAGE_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def reference(result: Result, docs_url: str = "") -> str:
    """The documentation of a rule: the URL if the docs are published, else the command."""
    if docs_url:
        return page_of(result.rule, result.family, docs_url)
    return f"chassis explain {result.rule}"


def page_of(name: str, family: Family | None, docs: str) -> str:
    """The page of a rule, or the section of a mutator, which has no family."""
    page = f"rules/{name}.md" if family else f"policies.md#{name}"
    return f"{docs.rstrip('/')}/{page}"


# --- audit -----------------------------------------------------------------------------------


def audit_of(decision: Decision) -> dict[str, str]:
    """The audit annotations: `findings`, `mutations` and `exemptions` are JSON lists, `coverage` is a
    sentence about unread parts."""
    findings = [
        {"rule": v.rule, "mode": v.mode, "path": _cut(v.finding.path), "message": _cut(v.finding.message)}
        for v in decision.results
        if v.exempted is None
    ]
    mutations = [
        {"policy": c.mutator, "mode": c.mode, "fields": places(c)} for c in decision.changes if not c.template
    ]
    exemptions = [
        {"rule": v.rule, "path": _cut(v.finding.path), "reason": _cut(v.exempted)}
        for v in decision.results
        if v.exempted is not None
    ]
    annotations: dict[str, Sequence[object]] = {
        "findings": findings,
        "mutations": mutations,
        "exemptions": exemptions,
    }
    found = {key: _json(items) for key, items in annotations.items() if items}
    if decision.coverage is not None and decision.coverage.missing:
        found["coverage"] = _cut(decision.coverage.sentence)
    return found


def _cut(text: str) -> str:
    return shortened(text, AUDIT_TEXT)


def _json(items: Sequence[object]) -> str:
    """A JSON list of the items that fit in AUDIT_LENGTH, and the number of the rest."""
    whole = orjson.dumps(items).decode()
    if len(whole) < AUDIT_LENGTH:
        return whole
    rendered = [orjson.dumps(item).decode() for item in items]
    kept, size = 0, 0
    while kept < len(rendered) and size + len(rendered[kept]) < AUDIT_LENGTH:
        size += len(rendered[kept]) + 1
        kept += 1
    if kept < len(rendered):
        rendered[kept:] = [f'{{"more":{len(rendered) - kept}}}']
    return f"[{','.join(rendered)}]"
