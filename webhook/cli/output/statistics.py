"""Decisions in numbers: findings by rule, refusals, and objects that could not be read in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from msgspec import Struct, field

from policies.core.pod_templates import pod_templates
from policies.kube.json import Json
from policies.kube.names import plural
from webhook.admission.configuration import Config
from webhook.admission.coverage import is_fragment
from webhook.cli.reviewed import Reviewed, Subject
from webhook.cli.terminal import Line, as_json


class Statistics(Struct):
    """The numbers of a review or scan. Workloads are objects with pod templates, and pods."""

    objects: int = 0
    workloads: int = 0
    changed: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    """By rule."""
    messages: set[tuple[str, str]] = field(default_factory=set)
    """The rule and message of each warning: overlays of one base repeat them."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By rule."""
    denied: int = 0
    """Objects that would be refused."""
    partial: list[str] = field(default_factory=list)
    """The places of fragments, such as kustomize patches."""
    kinds_not_read: Counter[str] = field(default_factory=Counter)
    """Objects of unknown kinds, by apiVersion and kind."""
    unread: list[str] = field(default_factory=list)
    """Files that could not be read, with the reason."""
    now: float = 0
    """The time of the review, in seconds since the epoch."""

    def add(self, review: Reviewed, config: Config) -> None:
        obj = review.document.obj
        self.objects += 1
        self.workloads += bool(pod_templates(obj, config.workloads))
        self.changed += bool(review.mutations)
        self.warnings.update(result.rule for result in review.warnings)
        self.messages.update((result.rule, result.finding.message) for result in review.warnings)
        self.refusals.update(result.rule for result in review.refusals)
        self.denied += not review.decision.allowed
        if is_fragment(obj, config.workloads):
            self.partial.append(review.place())
        if review.coverage.unknown:
            self.kinds_not_read[f"{obj.get('apiVersion')} {obj.get('kind')}"] += 1

    def per_hundred(self, count: int) -> float:
        return round(100 * count / self.workloads, 2) if self.workloads else 0.0

    def json(self) -> str:
        record = {
            "made": datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds"),
            "objects": self.objects,
            "workloads": self.workloads,
            "changed": self.changed,
            "warnings": {**self._rated(self.warnings), "distinct": self._counted(len(self.messages))},
            "refusals": {**self._rated(self.refusals), "objects": self.denied},
            "partial": self.partial,
            "kindsNotRead": dict(self.kinds_not_read.most_common()),
            "unread": self.unread,
        }
        return as_json(record)

    def _rated(self, by_rule: Counter[str]) -> Json:
        total = by_rule.total()
        return {
            **self._counted(total),
            "byRule": {
                rule: {"count": count, "per100Workloads": self.per_hundred(count)}
                for rule, count in by_rule.most_common()
            },
        }

    def _counted(self, total: int) -> Json:
        return {"total": total, "per100Workloads": self.per_hundred(total)}

    def lines(self) -> Iterator[Line]:
        yield f"{plural(self.workloads, 'workload')} in {plural(self.objects, 'object')}", "bold"
        yield "", ""
        once = len(self.messages)
        distinct = f"; each message once: {once:,}, {self.per_hundred(once):.1f} per 100 workloads"
        for name, by_rule, more in (("Warnings", self.warnings, distinct), ("Refusals", self.refusals, "")):
            total = by_rule.total()
            yield f"{name}: {total:,}, {self.per_hundred(total):.1f} per 100 workloads{more}", "bold"
            width = max(map(len, by_rule), default=0)
            for rule, count in by_rule.most_common():
                yield f"  {rule:{width}}  {count:6,}  {self.per_hundred(count):6.2f}", ""
            yield "", ""
        yield f"Objects that would be refused: {self.denied}", "red" if self.denied else ""
        yield from _listed("Fragments, completed elsewhere", self.partial)
        counted = (f"{kind}: {count:,}" for kind, count in self.kinds_not_read.most_common())
        yield from _listed("Kinds not read", [*counted])
        yield from _listed("Could not be read", self.unread)


def _listed(heading: str, items: list[str]) -> Iterator[Line]:
    yield f"{heading}: {len(items):,}", ""
    for each in items[:_MAX_LISTED]:
        yield f"  {each}", ""
    if len(items) > _MAX_LISTED:
        yield f"  and {len(items) - _MAX_LISTED:,} more (-o json lists all)", ""


_MAX_LISTED = 10


def statistics(reviews: Iterable[Reviewed], subject: Subject) -> Statistics:
    figures = Statistics(unread=list(subject.not_read), now=subject.now)
    for review in reviews:
        figures.add(review, subject.config)
    return figures
