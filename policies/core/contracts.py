"""The contracts of mutators and rules, and the names of `policies.core` that every rule needs.

A mutator is a settings model, a pure function, and a page `<id>.md` in its subject's folder. A rule is a pure
function in a module of its subject's `rules`, with its modes and texts in a YAML file next to it; rules with
one check share a module. `policies.core.registry` finds both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from policies.core.data import load_one
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding, Mode, Profile
from policies.core.pod_view import PodFeature
from policies.core.reasons import NO_REASONS, Reasons
from policies.core.settings import Field, Model, S
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json

__all__ = [
    "Certainty",
    "Check",
    "Facts",
    "Family",
    "Finding",
    "Findings",
    "Modes",
    "Mutate",
    "Mutator",
    "PodFeature",
    "PodTemplate",
    "Rule",
    "RuleDocument",
    "Target",
    "rule",
]

Findings: TypeAlias = Iterator[Finding]
"""The result of a rule, or of `advise`."""
S_contra = TypeVar("S_contra", bound=Model, contravariant=True)


class Mutate(Protocol[S_contra]):
    """The function of a mutator: the object with the added fields, and a reason for each."""

    def __call__(
        self, obj: Json, settings: S_contra, facts: Facts, reasons: Reasons = NO_REASONS, /
    ) -> Json: ...


class Mutator(Struct, Generic[S], frozen=True):
    """A mutator.

    `mutate(obj, settings, facts, reasons)` returns the same object, or a copy that shares the unchanged parts
    (`policies.kube.json` has the helpers), and gives `reasons` one for each field that it adds. It must be
    idempotent. `advise` receives the object that `mutate` returned, and yields findings that warn at most.
    """

    id: str
    settings: type[S]
    mutate: Mutate[S] | None = None
    advise: Callable[[Json, S, Facts], Iterable[Finding]] | None = None
    kinds: tuple[GroupKind, ...] = ()
    on_update: tuple[GroupKind, ...] = ()
    """The kinds that it also changes on UPDATE: most fields of existing pods and Jobs are immutable."""
    after: tuple[str, ...] = ()
    """Ids of the mutators that run before this one."""


class Family(StrEnum):
    """A group of rules: a heading of docs/rules/README.md."""

    DEADLOCK = "deadlock"
    CASCADE = "cascade"
    JOBS = "jobs"
    SERVERS = "servers"


class Check(Protocol):
    """The function of a rule: its findings in one object, in any order."""

    def __call__(self, target: Target, facts: Facts, /) -> Iterable[Finding]: ...


class Modes(Model):
    """A rule's mode under each profile."""

    observe: Mode = Mode.AUDIT
    standard: Mode
    strict: Mode

    def under(self, profile: Profile) -> Mode:
        if profile is Profile.OBSERVE:
            return self.observe
        return self.standard if profile is Profile.STANDARD else self.strict


Text = Annotated[str, Field(min_length=1)]


class RuleDocument(Model):
    """The YAML file of a rule: the source of `chassis explain` and of the documentation."""

    family: Family
    modes: Modes
    likely: Modes | None = Field(
        None, description="modes of LIKELY findings; without them, these warn at most"
    )
    exemptable: bool = Field(True, description="false where an exemption would only hide what stays broken")
    what: Text = Field(description="one sentence: what is flagged")
    why: Text = Field(description="why it hangs, cascades or loses work; names the mechanism")
    remediation: Text = Field(description="what to do, in general; a finding's own hint is more specific")
    source: Text = Field(description="the documentation, issue or incident behind it, for a reader to find")
    evidence: Text | None = Field(
        None,
        description="Markdown below docs/: where the hazard was shown, or why it was not; unset if an "
        "experiment on the real node has a row in docs/evidence.md",
    )
    since: Text = Field("0.1.0", description="the first release that has the rule")
    bad: Text = Field(description="smallest YAML that the rule flags")
    good: Text = Field(description="the same YAML after the remediation")


class Rule(Struct, frozen=True, dict=True):
    """A validating rule. Its modes and texts are loaded from its YAML file at first use."""

    id: str
    check: Check
    kinds: tuple[GroupKind, ...] | None
    """The kinds that it checks; None: all kinds with a pod template."""
    load: Callable[[], RuleDocument]
    requires: frozenset[PodFeature] = frozenset()
    """It is not called for objects whose pods lack one of these."""
    unowned: bool = False
    """It is not called for objects that a controller makes: it judges what they are made from."""
    at_once: bool = False
    """It judges whether the pods fit into the cluster as it is when they are created."""
    also: tuple[GroupKind, ...] = ()
    """Kinds whose objects it checks, too, whatever their pods have: their operators complete them."""

    @cached_property
    def document(self) -> RuleDocument:
        return self.load()

    def applies(self, kind: GroupKind, *, has_pods: bool) -> bool:
        """Whether it checks the objects of a kind. `has_pods`: such an object has a pod template."""
        if self.kinds is not None:
            return kind in self.kinds
        return has_pods or kind in self.also

    def mode(self, profile: Profile, certainty: Certainty = Certainty.CERTAIN) -> Mode:
        """The mode of a finding under a profile, before explicit modes."""
        document = self.document
        mode = document.modes.under(profile)
        likely = mode.at_most(Mode.WARN) if document.likely is None else document.likely.under(profile)
        if certainty is Certainty.LIKELY:
            return likely
        if certainty is Certainty.DOUBTFUL:
            mode = mode.at_most(likely)
        return mode if certainty is Certainty.CERTAIN else mode.at_most(Mode.WARN)


def rule(
    module: str,
    check: Check,
    kinds: tuple[GroupKind, ...] | None = None,
    requires: Iterable[PodFeature] = (),
    *,
    name: str = "",
    unowned: bool = False,
    at_once: bool = False,
    also: tuple[GroupKind, ...] = (),
) -> Rule:
    """The rule of a module: `RULE = rule(__name__, check)` in `tcp_probe.py` has the id `tcp-probe`, and its
    texts are in `tcp-probe.yaml`. `name` is the id of a rule that shares its module with others."""
    package, _, stem = module.rpartition(".")
    rule_id = name or stem.replace("_", "-")
    load = partial(load_one, RuleDocument, package, f"{rule_id}.yaml")
    return Rule(rule_id, check, kinds, load, frozenset(requires), unowned, at_once, also)
