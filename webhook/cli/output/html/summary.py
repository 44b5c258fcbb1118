"""Counts of the objects: now, under each profile, by rule and by namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from policies.core.finding import Mode, Profile
from policies.kube.group_kinds import GroupKind
from policies.kube.json import mapping
from webhook.admission.configuration import Config
from webhook.admission.coverage import Coverage, Reading
from webhook.admission.decision import Decision, Result
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.cli.reviewed import Reviewed, Subject


class ReviewStatus(StrEnum):
    """The status of a reviewed object, the worst first."""

    REFUSED = "refused"
    WARNED = "warned"
    UNREAD = "unread"
    CLEAN = "clean"
    PODLESS = "podless"


MAX_REASONS: Final = 3
"""Reasons for one kind."""
EXEMPTED: Final = "exempted"
"""Used instead of the mode of an exempted finding."""


def status_of(decision: Decision) -> ReviewStatus:
    """The status of an object under a decision."""
    if not decision.allowed:
        return ReviewStatus.REFUSED
    warned = any(each.mode is Mode.WARN and each.exempted is None for each in decision.results)
    if warned or decision.crashes or decision.notes:
        return ReviewStatus.WARNED
    covered = decision.coverage
    if covered is None or covered.missing:
        return ReviewStatus.UNREAD
    return ReviewStatus.PODLESS if covered.reading is Reading.NO_PODS else ReviewStatus.CLEAN


def mode_of(result: Result) -> str:
    """The mode of a finding, or EXEMPTED."""
    return EXEMPTED if result.exempted is not None else result.mode.value


class Profiles:
    """Decides about an object under each profile, with the policy's other settings."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._configs: Mapping[Profile, Config] = {
            profile: subject.config.with_profile(profile) for profile in Profile
        }

    def decide(self, review: Reviewed) -> Mapping[Profile, Decision]:
        """One decision for each profile; the review has the one for the policy's own profile."""
        own = self._subject.config.rules.profile
        return {
            profile: review.decision
            if profile is own
            else decide(Review(review.request, config, self._subject.cluster))
            for profile, config in self._configs.items()
        }


class ProfileTotals(Struct):
    statuses: Counter[ReviewStatus] = field(default_factory=Counter)
    changed: int = 0
    refusing: Counter[str] = field(default_factory=Counter)
    """Refused objects by rule."""


class Exempted(Struct, frozen=True):
    namespace: str
    title: str
    anchor: str
    rule: str
    reason: str
    created: str
    """The time of the object's creation; empty if unknown."""
    written: str
    """The last change by the annotation's field manager; empty if unknown."""


class KindNotRead(Struct):
    """The objects of a kind that were not or only partly read, and why."""

    kind: str
    group: str
    none: int = 0
    partly: int = 0
    why: dict[str, None] = field(default_factory=dict)

    @property
    def objects(self) -> int:
        return self.none + self.partly

    def add(self, coverage: Coverage) -> None:
        self.none += coverage.reading is Reading.NOT
        self.partly += coverage.reading is Reading.PARTLY
        for each in coverage.unread:
            if len(self.why) < MAX_REASONS:
                self.why[str(each)] = None


class Summary(Struct):
    """The counts of many objects."""

    objects: int = 0
    changed: int = 0
    profiles: dict[Profile, ProfileTotals] = field(
        default_factory=lambda: {profile: ProfileTotals() for profile in Profile}
    )
    rules: dict[str, Counter[str]] = field(default_factory=dict)
    """Findings by rule and mode."""
    namespaces: dict[str, Counter[ReviewStatus]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    kinds_not_read: dict[GroupKind, KindNotRead] = field(default_factory=dict)
    exempted: list[Exempted] = field(default_factory=list)

    def add(self, review: Reviewed, decisions: Mapping[Profile, Decision], anchor: str) -> None:
        document, decision = review.document, review.decision
        namespace = document.namespace
        self.objects += 1
        self.changed += bool(review.mutations)
        self.kinds[review.kind] += 1
        if (coverage := review.coverage).missing:
            kind = coverage.kind
            known = self.kinds_not_read.setdefault(kind, KindNotRead(kind.kind, kind.group or "core"))
            known.add(coverage)
        self.namespaces.setdefault(namespace, Counter())[status_of(decision)] += 1
        for profile, decided in decisions.items():
            totals = self.profiles[profile]
            totals.statuses[status_of(decided)] += 1
            totals.changed += any(change.mode is Mode.ENFORCE for change in decided.changes)
            totals.refusing.update({result.rule for result in decided.results if result.denies})
        for result in decision.results:
            self.rules.setdefault(result.rule, Counter())[mode_of(result)] += 1
            if result.exempted is not None:
                created = str(mapping(document.obj, "metadata").get("creationTimestamp") or "")
                finding = (anchor, result.rule, result.exempted, created, document.exempted_at)
                self.exempted.append(Exempted(namespace, review.title, *finding))
