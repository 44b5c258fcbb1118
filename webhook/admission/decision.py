"""The decision about one object, from which answers, outputs and metrics are made."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.contracts import Family
from policies.core.finding import Finding, Mode
from policies.core.reasons import NO_REASONS, Reasons
from policies.kube.json import Json
from policies.kube.names import shortened
from webhook.admission.coverage import Coverage
from webhook.admission.json_patch import Operation


@dataclass(frozen=True, slots=True)
class Change:
    """The change by one mutator, or the change that it would make if its mode were enforce."""

    mutator: str
    """Its id."""
    mode: Mode
    patch: Sequence[Operation]
    before: Json
    template: str = ""
    """Field path of the projected pod template; empty for the object itself."""
    reasons: Reasons = field(default=NO_REASONS, compare=False, repr=False)
    """The reason for each field."""
    known: frozenset[tuple[str, str]] = frozenset()
    """Path and text of the reasons that the object had before an update."""


class Result(Struct, frozen=True):
    """A finding with its mode and outcome."""

    rule: str
    """Its id; that of a mutator for its advice."""
    finding: Finding
    mode: Mode
    exempted: str | None = None
    """The reason of a valid exemption."""
    ratcheted: str = ""
    """Why an enforced finding is only warned about."""
    exemptable: bool = True
    """Whether an exemption would be valid here."""
    family: Family | None = None
    """The family of the rule; None for a mutator."""
    by_shape: bool = False
    """Whether it is about a pod spec that was found by its structure in an unknown kind."""
    also: tuple[str, ...] = ()
    """Further field paths with the same finding; only `once_each` sets them."""

    @property
    def denies(self) -> bool:
        return self.mode is Mode.ENFORCE and self.exempted is None


def once_each(results: Iterable[Result]) -> list[Result]:
    """The results for people: a finding that several pod templates of the object share is one result."""
    found: dict[tuple[object, ...], Result] = {}
    for each in results:
        key = each.rule, each.finding.message, each.finding.hint, each.mode, each.exempted, each.ratcheted
        first = found.get(key)
        found[key] = each if first is None else replace(first, also=(*first.also, each.finding.path))
    return list(found.values())


MAX_RESULTS: Final = 50
"""Findings in an answer; refusals come first."""
_MAX_LENGTH: Final = 2000
"""Characters of a finding's text, which may contain names of any length."""


def with_short_texts(finding: Finding) -> Finding:
    """The finding with texts of bounded length."""
    if len(finding.message) <= _MAX_LENGTH and len(finding.hint) <= _MAX_LENGTH:
        return finding
    message, hint = shortened(finding.message, _MAX_LENGTH), shortened(finding.hint, _MAX_LENGTH)
    return replace(finding, message=message, hint=hint)


def most_important(
    results: Sequence[Result], notes: Sequence[str]
) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """The first MAX_RESULTS results, refusals preferred, in their order; and the notes, with one that counts
    the rest."""
    more = len(results) - MAX_RESULTS
    if more <= 0:
        return tuple(results), tuple(notes)
    order = sorted(range(len(results)), key=lambda index: not results[index].denies)
    kept = tuple(results[index] for index in sorted(order[:MAX_RESULTS]))
    return kept, (*notes, f"{MAX_RESULTS} of {len(results):,} findings are shown")


class Crash(Struct, frozen=True):
    """An exception of a mutator or rule: a bug in the webhook."""

    id: str
    error: str
    trace: str
    denies: bool = False


class Decision(Struct, frozen=True):
    """The decision about one object."""

    object: Json
    """The object after the enforced mutations."""
    patch: Sequence[Operation] = ()
    changes: tuple[Change, ...] = ()
    results: tuple[Result, ...] = ()
    crashes: tuple[Crash, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about the request itself, such as an invalid exemption."""
    projected: Json | None = None
    """A workload with its pod templates as the pod-level mutators will change its pods."""
    owned: bool = False
    """Whether a controller created the object, so nobody reads the warnings."""
    lists_changes: bool = True
    """Whether the warnings list the additions."""
    docs_url: str = ""
    coverage: Coverage | None = None
    """The read and unread parts of the object; None after `mutate`."""

    @property
    def warnings(self) -> list[Result]:
        """The findings that warn, each once."""
        return once_each(each for each in self.results if each.mode is Mode.WARN and each.exempted is None)

    @property
    def refusals(self) -> list[Result]:
        """The findings that refuse the object, each once."""
        return once_each(each for each in self.results if each.denies)

    @property
    def distinct_crashes(self) -> list[Crash]:
        """The crashes, each once: a mutator that crashes in its changes often does so in its advice."""
        return list({(crash.id, crash.error): crash for crash in self.crashes}.values())

    @property
    def allowed(self) -> bool:
        return not any(result.denies for result in self.results) and not any(c.denies for c in self.crashes)


def not_denying(crash: Crash) -> Crash:
    """The same crash, which no longer refuses the object."""
    return replace(crash, denies=False)


def crash_from(name: str, error: Exception, *, denies: bool = False) -> Crash:
    """The record of an exception that a mutator or a rule raised."""
    trace = "".join(traceback.format_exception(error))
    return Crash(name, f"{type(error).__name__}: {error}", trace, denies)
