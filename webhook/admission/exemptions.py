"""Exemptions: the content of an object's annotation, and which of it is valid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec import Struct

from policies.core import registry
from policies.core.annotations import EXEMPT
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from policies.kube.names import did_you_mean, shortened
from webhook.admission.configuration import Config

_MAX_COMPARED: Final = 4
"""Unknown names in one annotation that get a suggestion."""
SOON: Final = 7
"""Days before the end of an exemption from which a warning announces it."""
_UNTIL: Final = re.compile(r"(?:^|\s)until=(\S*)$")


class ExemptionState(StrEnum):
    """Whether an exemption is valid, or why it is not."""

    COUNTS = "counts"
    ENDS_SOON = "ends soon"
    ENDED = "ended"
    NO_DATE = "no date"
    NO_REASON = "no reason"
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"


class Exemption(Struct, frozen=True):
    """One `rule-id=reason until=2026-12-31` of an annotation."""

    rule: str
    """Id of the rule or policy."""
    reason: str
    """The text after `=`, including the date."""
    until: date | None
    """The last day on which it is valid, in UTC; None if it has no end."""
    state: ExemptionState
    note: str = ""
    """A sentence for the user, if there is a problem."""

    @property
    def counts(self) -> bool:
        return self.state in (ExemptionState.COUNTS, ExemptionState.ENDS_SOON)


def exemptions_in(annotations: Mapping[str, str], config: Config, namespace: str) -> Iterator[Exemption]:
    """Every exemption in an annotation, in order, with its state."""
    written = annotations.get(EXEMPT)
    unknown = 0
    for part in filter(None, map(str.strip, written.split(";") if isinstance(written, str) else ())):
        rule, _, reason = (piece.strip() for piece in part.partition("="))
        ends = _UNTIL.search(reason)
        until = _date(ends[1]) if ends else None
        made = partial(Exemption, rule, reason, until)
        if config.rule(rule) is None and rule not in registry.mutators():
            if retired := registry.retired_rules().get(rule):
                yield made(ExemptionState.UNKNOWN, f"{EXEMPT}: {retired.note}")
                continue
            unknown += 1
            known = (*registry.mutators(), *registry.rules(), *config.own_rules)
            hint = did_you_mean(rule, known) if unknown <= _MAX_COMPARED else ""
            yield made(ExemptionState.UNKNOWN, f"{EXEMPT}: there is no rule or policy {rule!r}{hint}")
        elif not reason[: ends.start() if ends else None].strip():
            yield made(
                ExemptionState.NO_REASON,
                f"{EXEMPT}: {rule} isn't exempted, because the reason is missing: use {rule}=<reason>",
            )
        elif not may_exempt(rule, config, namespace):
            yield made(ExemptionState.FORBIDDEN, f"{EXEMPT}: {rule} can't be exempted here")
        elif ends and until is None:
            what = shortened(ends[1], 40)
            yield made(
                ExemptionState.NO_DATE,
                f"{EXEMPT}: {rule} isn't exempted, because until={what} isn't a date: use until=2030-12-31",
            )
        elif until is not None and until < config.today:
            yield made(
                ExemptionState.ENDED,
                f"{EXEMPT}: {rule} is no longer exempted: the exemption ended on {until}",
            )
        elif until is not None and (until - config.today).days <= SOON:
            yield made(ExemptionState.ENDS_SOON, f"{EXEMPT}: the exemption from {rule} ends on {until}")
        else:
            yield made(ExemptionState.COUNTS)


def _date(written: str) -> date | None:
    try:
        return date.fromisoformat(written) if len(written) == len("2030-12-31") else None
    except ValueError:
        return None


class Exemptions(Struct, frozen=True):
    """The valid exemptions of an annotation, and sentences about problems."""

    reasons: Mapping[str, str]
    """By id of the rule or policy."""
    notes: tuple[str, ...]

    @classmethod
    def read(cls, annotations: Mapping[str, str], config: Config, namespace: str) -> Exemptions:
        if EXEMPT not in annotations:
            return _NO_EXEMPTIONS
        found = list(exemptions_in(annotations, config, namespace))
        reasons = {each.rule: each.reason for each in found if each.counts}
        return cls(reasons, tuple(each.note for each in found if each.note))


_NO_EXEMPTIONS: Final = Exemptions({}, ())


def exemption(policy_id: str, obj: Json, config: Config, namespace: str) -> str | None:
    """The reason of an object's exemption from a policy; None if it has none."""
    return Exemptions.read(annotations_of(obj), config, namespace).reasons.get(policy_id)


def may_exempt(name: str, config: Config, namespace: str) -> bool:
    """Whether an exemption from a rule or policy would be valid in a namespace."""
    rule = config.rule(name)
    return (rule is None or rule.document.exemptable) and config.webhook.exemptions.allows(name, namespace)
