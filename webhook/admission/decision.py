"""The decision about one object: values, from which answers, outputs and metrics are made."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from policies.core.contracts import Family
from policies.core.coverage import Coverage
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.reasons import UNREAD, Reasons
from policies.kube.json import Json
from webhook.admission.patch import Operation


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one mutating policy, or the change it would make if its mode were enforce."""

    policy: str
    mode: Mode
    patch: Sequence[Operation]
    before: Json
    template: str = ""
    """Field path of the pod template that was projected; empty for the object itself."""
    why: Reasons = field(default=UNREAD, compare=False, repr=False)
    """A reason for each field, with its path in the object."""
    known: frozenset[tuple[str, str]] = frozenset()
    """Path and words of the reasons that held before an update, which brings nothing new there."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with its mode and outcome."""

    rule: str
    finding: Finding
    mode: Mode
    exempted: str | None = None
    """The reason given for an exemption that counts."""
    ratcheted: str = ""
    """Why a finding that would be enforced is only warned about."""
    exemptable: bool = True
    """Whether an exemption would count here."""
    family: Family | None = None
    """The family of the rule; None if it is a mutator's."""
    by_shape: bool = False
    """Whether it is about a pod spec of an unknown kind, found by its structure."""

    @property
    def denies(self) -> bool:
        return self.mode is Mode.ENFORCE and self.exempted is None


@dataclass(frozen=True, slots=True)
class Crash:
    """A policy or rule that failed on this object: a bug of ours, never the user's."""

    id: str
    error: str
    trace: str
    denies: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that was decided about one object; `webhook.admission.messages` puts it into words."""

    object: Json
    """The object after the mutations that were enforced."""
    patch: Sequence[Operation] = ()
    changes: tuple[Change, ...] = ()
    results: tuple[Result, ...] = ()
    crashes: tuple[Crash, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about the request itself, such as an exemption that does not count."""
    projected: Json | None = None
    """A workload with its pod templates as the pod-level policies will leave its pods."""
    owned: bool = False
    """Whether a controller made the object, so that no person reads the warnings."""
    says_changes: bool = True
    """Whether the warnings list the additions."""
    docs_url: str = ""
    coverage: Coverage | None = None
    """What of the object was read; None where only its mutations were asked for."""

    @property
    def allowed(self) -> bool:
        return not any(result.denies for result in self.results) and not any(c.denies for c in self.crashes)


def harmless(crash: Crash) -> Crash:
    """The same crash, which refuses nothing."""
    return replace(crash, denies=False)


def crash_of(name: str, error: Exception, *, denies: bool = False) -> Crash:
    """The record of an exception that a mutator or a rule raised."""
    trace = "".join(traceback.format_exception(error))
    return Crash(name, f"{type(error).__name__}: {error}", trace, denies)
