"""The two contracts: a mutating policy and a rule. Nothing here knows a particular one.

A mutating policy is a settings model, a pure function and its metadata in one file of its subject's folder; a
rule is a pure function with its documentation in a file under its subject's `rules`. `policies.core.registry`
finds both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol

from policies.core.facts import Facts, Resource
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode, Profile
from policies.core.settings import S
from policies.core.target import Target
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json


@dataclass(frozen=True, slots=True)
class Mutator(Generic[S]):
    """A mutating policy.

    `mutate(obj, settings, facts)` returns the object as it should be: the same object when
    nothing is to change, else a copy that shares what did not change (`policies.kube.json` has the
    helpers). It must be idempotent. `advise` sees the object that `mutate` returned and yields
    what a person should know beside the change; its findings are warnings at most.
    The module's docstring is the policy's documentation.
    """

    id: str
    settings: type[S]
    mutate: Callable[[Json, S, Facts], Json] | None = None
    advise: Callable[[Json, S, Facts], Iterable[Finding]] | None = None
    kinds: tuple[GroupKind, ...] = ()
    on_update: tuple[GroupKind, ...] = ()
    """The kinds that it changes on UPDATE too: pods and jobs are mostly immutable once they exist."""
    needs: tuple[Resource, ...] = ()
    after: tuple[str, ...] = ()
    """Ids of the policies whose changes this one must see."""


class Family(StrEnum):
    """Why a rule exists; each family has its page in docs/rules."""

    DEADLOCK = "deadlock"
    CASCADE = "cascade"
    JOBS = "jobs"


class Check(Protocol):
    """The function of a rule: everything it finds in one object, in any order."""

    def __call__(self, target: Target, facts: Facts, /) -> Iterable[Finding]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A validating rule with its documentation: the one truth behind hints, explain and docs."""

    id: str
    family: Family
    check: Check
    standard: Mode
    """Mode under the profile `standard`; under `observe` every rule is at `audit`."""
    strict: Mode
    likely: tuple[Mode, Mode] | None = None
    """Modes (standard, strict) for LIKELY findings where they differ: the W of an E/W rule."""
    kinds: tuple[GroupKind, ...] | None = None
    """The kinds it looks at; None: whatever holds a pod template."""
    needs: tuple[Resource, ...] = ()
    exemptable: bool = True
    """False where an exemption would only hide what stays broken."""
    what: str
    """One sentence: what is flagged."""
    why: str
    """Why it hangs, cascades or loses work; with the mechanism named."""
    mend: str
    """How to mend it, in general; a finding's own hint is more specific."""
    source: str
    """Where this comes from: documentation, issue or incident, as a reference a reader can find."""
    bad: str
    """Smallest YAML that the rule flags."""
    good: str
    """The same YAML, mended."""

    def mode(self, profile: Profile, certainty: Certainty = Certainty.SURE) -> Mode:
        """The mode of a finding under a profile, before explicit modes."""
        if profile is Profile.OBSERVE:
            return Mode.AUDIT
        sure = self.standard if profile is Profile.STANDARD else self.strict
        if certainty is Certainty.UNDECIDED:
            return sure.at_most(Mode.WARN)
        if certainty is Certainty.LIKELY and self.likely:
            return self.likely[profile is Profile.STRICT]
        return sure
