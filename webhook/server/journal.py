"""The record of each answer: its metrics, its line of the log, its span, and whoever is to be notified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from prometheus_client import Counter

from policies.core.mode import Mode
from policies.kube.json import text
from webhook.admission import envelope as review
from webhook.admission.decision import Decision
from webhook.admission.envelope import Request
from webhook.admission.messages import Answer, Recalled
from webhook.server import metrics as m
from webhook.server.log import Line, verbose
from webhook.server.tracing import Off, Tracing

log = structlog.get_logger()

Notice = Callable[[Request, Decision], object]
"""Is called with each validated request and its decision, before the answer is sent; it must not block."""
_LOGGED: Final = ("changed", "denied")
"""The outcomes that a line of the log is written about."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """The record of an answer, written each time that it is given again."""

    tally: m.Tally
    line: Line | None
    name: str
    """As it was logged."""
    named: bool
    """Whether the request gave a name, which is the same in all replicas."""
    noticed: Decision | None
    """What a `Notice` may have to do with."""


class Journal:
    """Records answers, those that are given for the first time and those of the memo."""

    def __init__(
        self, metrics: m.Metrics, *, tracing: Tracing | None = None, notice: Notice | None = None
    ) -> None:
        self._metrics, self._notice = metrics, notice
        self._tracing = tracing or Off()

    def record(
        self, name: str, request: Request, answer: Answer, outcome: str, about: Mapping[str, object]
    ) -> None:
        """Record an answer of the endpoint `name`; `about` is what `described` says of its request."""
        self._metrics.request(name, outcome, request.kind.kind)
        if answer.decision is not None:
            self._count(answer.decision, request.namespace)
            if self._notice is not None and name == "validate":
                self._notice(request, answer.decision)
        if self._tracing.on:
            told = {f"chassis.{key}": value for key, value in described(request).items() if key != "uid"}
            self._tracing.about({"chassis.outcome": outcome, **told})
        if outcome in _LOGGED:
            log.info(outcome, **about, **_because(answer))
        elif verbose():
            results = answer.decision.results if answer.decision else ()
            findings = {result.rule: result.mode.value for result in results}
            log.debug(outcome, **about, findings=findings)

    def record_for_replicas(
        self, name: str, request: Request, answer: Answer, outcome: str, about: dict[str, Any]
    ) -> AnswerRecord:
        """What `record_again` needs to record the same answer to the next replica."""
        decision = answer.decision
        counters = [self._metrics.of_request(name, outcome, request.kind.kind)]
        if decision is not None:
            counters += self._counters(decision, request.namespace)
        line = Line(outcome, {**about, **_because(answer)}) if outcome in _LOGGED else None
        noticed = decision if name == "validate" and decision and decision.results else None
        named = request.name not in ("", text(request.object, "metadata", "name"))
        return AnswerRecord(self._metrics.tally(counters), line, str(about["name"]), named, noticed)

    def record_again(self, known: Recalled, body: bytes) -> None:
        """Record an answer that the memo gave."""
        record: AnswerRecord = known.note
        record.tally.increment()
        if record.line is not None:
            record.line.write(known.uid, record.name if record.named else known.name or record.name)
        if record.noticed is not None and self._notice is not None:
            self._notice(review.parse(body), record.noticed)

    def _count(self, decision: Decision, namespace: str) -> None:
        for counter in self._counters(decision, namespace):
            counter.inc()
        for crash in decision.crashes:
            self._metrics.errors.labels(crash.id).inc()
            log.error("policy failed", policy=crash.id, error=crash.error, trace=crash.trace)

    def _counters(self, decision: Decision, namespace: str) -> Iterator[Counter]:
        for change in decision.changes:
            if not change.template:
                yield self._metrics.of_mutation(change.policy, change.mode.value)
        if decision.coverage is not None and decision.coverage.missing:
            yield self._metrics.of_not_read(str(decision.coverage.kind), decision.coverage.reading.value)
        for result in decision.results:
            if result.exempted is not None:
                yield self._metrics.of_exemption(result.rule)
            else:
                yield from self._metrics.of_finding(result.rule, result.mode.value, namespace)


def _because(answer: Answer) -> dict[str, object]:
    """The policies that changed an object, or the rules that refused it."""
    if answer.decision is None:
        return {"why": answer.response.status.message} if answer.response.status else {}
    if not answer.response.allowed:
        return {"rules": sorted({result.rule for result in answer.decision.results if result.denies})}
    return {"policies": [change.policy for change in answer.decision.changes if change.mode is Mode.ENFORCE]}


def described(request: Request) -> dict[str, str | bool]:
    """How a request is named in the log."""
    name = request.name or text(request.object, "metadata", "name")
    if not name:
        name = text(request.object, "metadata", "generateName") + "*"
    return {
        "uid": request.uid,
        "operation": request.operation,
        "kind": str(request.kind),
        "namespace": request.namespace,
        "name": name,
        "user": request.username,
        "dryRun": request.dry_run,
    }
