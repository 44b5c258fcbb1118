"""The record of each answer: metrics, a log line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import structlog
from msgspec import Struct
from prometheus_client import Counter

from policies.core.finding import Mode
from policies.kube.json import text
from webhook.admission.answer import Answer
from webhook.admission.envelope import Request
from webhook.server import metrics as m
from webhook.server.log import Line, verbose

log = structlog.get_logger()

_LOGGED: Final = ("changed", "denied")
"""The outcomes that get a log line at level info."""

LogFields = dict[str, str | bool]


class Answered(Struct, frozen=True):
    """A request that was answered at an endpoint."""

    endpoint: str
    request: Request
    answer: Answer
    outcome: str
    fields: LogFields
    """The `log_fields` of the request, and the endpoint."""


class AnswerRecord(Struct, frozen=True):
    """The record of an answer, prepared for the next replicas that get the same answer."""

    tally: m.Tally
    line: Line | None
    name: str
    """The object's name in the first log line."""
    named: bool
    """Whether `name` comes from the request: then it is the same for all replicas."""

    def record_again(self, uid: str, name: str) -> None:
        """Record the answer to another replica: see `webhook.admission.answer.Note`."""
        self.tally.increment()
        if self.line is not None:
            self.line.write(uid, self.name if self.named else name or self.name)


class Journal:
    """Records answers, new ones and those of the memo."""

    def __init__(self, metrics: m.Metrics) -> None:
        self._metrics = metrics

    def record(self, answered: Answered) -> None:
        """Record an answer."""
        decision, outcome, fields = answered.answer.decision, answered.outcome, answered.fields
        for counter in self._counters(answered):
            counter.inc()
        if decision is not None:
            for crash in decision.crashes:
                self._metrics.errors.labels(crash.id).inc()
                log.error("policy failed", policy=crash.id, error=crash.error, trace=crash.trace)
        if outcome in _LOGGED:
            log.info(outcome, **fields, **_reasons(answered.answer))
        elif verbose():
            results = decision.results if decision else ()
            findings = {result.rule: result.mode.value for result in results}
            log.debug(outcome, **fields, findings=findings)

    def record_for_replicas(self, answered: Answered) -> AnswerRecord:
        """The record for the next replicas that get this answer."""
        request, outcome, fields = answered.request, answered.outcome, answered.fields
        line = Line(outcome, {**fields, **_reasons(answered.answer)}) if outcome in _LOGGED else None
        named = request.name not in ("", text(request.object, "metadata", "name"))
        tally = self._metrics.tally(list(self._counters(answered)))
        return AnswerRecord(tally, line, str(fields["name"]), named)

    def _counters(self, answered: Answered) -> Iterator[Counter]:
        request, decision = answered.request, answered.answer.decision
        yield self._metrics.of_request(answered.endpoint, answered.outcome, request.kind.kind)
        if decision is None:
            return
        for change in decision.changes:
            if not change.template:
                yield self._metrics.of_mutation(change.mutator, change.mode.value)
        if decision.coverage is not None and decision.coverage.missing:
            yield self._metrics.of_not_read(str(decision.coverage.kind), decision.coverage.reading.value)
        for result in decision.results:
            if result.exempted is not None:
                yield self._metrics.of_exemption(result.rule)
            else:
                yield from self._metrics.of_finding(result.rule, result.mode.value, request.namespace)


def _reasons(answer: Answer) -> dict[str, object]:
    """The policies that changed an object, or the rules that refused it."""
    if answer.decision is None:
        return {"why": answer.response.status.message} if answer.response.status else {}
    if not answer.response.allowed:
        return {"rules": sorted({result.rule for result in answer.decision.results if result.denies})}
    return {"policies": [change.mutator for change in answer.decision.changes if change.mode is Mode.ENFORCE]}


def log_fields(request: Request) -> LogFields:
    """The fields of a log line that identify a request."""
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
