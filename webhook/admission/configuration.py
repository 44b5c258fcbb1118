"""The policy as immutable values, and the settings for one object. `webhook.config.load` builds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, cast

import msgspec.structs
from msgspec import Struct

from policies.core import registry
from policies.core.contracts import Mutator, Rule
from policies.core.finding import Certainty, Mode, Profile
from policies.core.settings import (
    Field,
    Model,
    S,
    Settings,
    SettingsLookup,
    Thresholds,
    default_settings,
    fields_as_json,
)
from policies.core.workloads import Workload, known_workloads
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.metadata import labels_of
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.reading import read

REMEMBERED = 1024
"""Cached results for combinations of overrides, of which there are 2**n, and for namespaces."""


# --- models of rules.yaml and webhook.yaml ------------------------------------------------------


class RulesConfig(Model):
    """Key `rules.yaml`: the profile, a mode per rule, and the rules' thresholds."""

    profile: Profile = Field(Profile.STANDARD, description="sets the modes of all rules and policies")
    modes: dict[str, Mode] = Field(
        default_factory=dict, description="mode by rule id; takes precedence over the profile"
    )
    thresholds: Thresholds = Field(default_factory=Thresholds, description="limits that the rules use")


class LabelTerm(Model):
    """One term of a label selector."""

    key: str = Field(description="label key")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="how values are compared")
    values: tuple[str, ...] = Field((), description="values for In and NotIn")


class Selector(Model):
    """A Kubernetes label selector; every term must match."""

    match_labels: dict[str, str] = Field(
        default_factory=dict, description="labels that must have these values"
    )
    match_expressions: tuple[LabelTerm, ...] = Field((), description="further requirements")

    @cached_property
    def matches(self) -> Callable[[Mapping[str, str]], bool]:
        """Whether labels match."""
        return read(fields_as_json(self), LabelSelector).matches


class Override(Model):
    """Other modes and settings for some objects; all conditions given must match."""

    namespaces: tuple[str, ...] = Field((), description="globs of namespace names, one of which matches")
    namespace_selector: Selector | None = Field(None, description="selects by the namespace's labels")
    object_selector: Selector | None = Field(None, description="selects by the object's own labels")
    profile: Profile | None = Field(None, description="another profile for the selected objects")
    modes: dict[str, Mode] = Field(default_factory=dict, description="modes by policy id or rule id")
    settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="fields of a policy's settings to replace, by policy id"
    )
    until: date | None = Field(
        None, description="the last day (UTC, as 2030-12-31) on which it applies; absent: no end"
    )


class Namespaces(Model):
    """The namespaces that are reviewed."""

    include: tuple[str, ...] = Field(("*",), description="globs of namespaces that are reviewed")
    exclude: tuple[str, ...] = Field(
        ("kube-system", "kube-public", "kube-node-lease", "mlchassis-system"),
        description=(
            "globs of namespaces that the webhook does not change or judge; takes precedence over include"
        ),
    )

    def covers(self, namespace: str) -> bool:
        known = self._covered.get(namespace)
        if known is None:
            if len(self._covered) >= REMEMBERED:
                self._covered.clear()
            known = _any_glob(self.include, namespace) and not _any_glob(self.exclude, namespace)
            self._covered[namespace] = known
        return known

    @cached_property
    def _covered(self) -> dict[str, bool]:
        return {}


class ExemptionLimits(Model):
    """Limits of the annotation `mlchassis.dev/exempt`."""

    forbidden: tuple[str, ...] = Field((), description="globs of rule ids without exemptions")
    only_in: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="by rule id (or glob): the only namespaces (globs) with exemptions",
    )

    def allows(self, rule: str, namespace: str) -> bool:
        if _any_glob(self.forbidden, rule):
            return False
        limits = [globs for pattern, globs in self.only_in.items() if fnmatchcase(rule, pattern)]
        return all(_any_glob(globs, namespace) for globs in limits)


class ChangeMessages(Model):
    """Where added fields are shown. Metrics and audit annotations always have them."""

    warnings: bool = Field(
        True,
        description="whether warnings list the added fields, one line for each policy; for an update only "
        "the new ones",
    )
    annotation: bool = Field(
        True,
        description="whether pods get the annotation mlchassis.dev/changed with each added field, its "
        "policy and the reason, at most 1024 characters. Pod templates never get it",
    )


class WebhookConfig(Model):
    """Key `webhook.yaml`: scope, exemptions, overrides and what to do when we ourselves fail."""

    namespaces: Namespaces = Field(default_factory=Namespaces, description="the namespaces that are reviewed")
    exemptions: ExemptionLimits = Field(
        default_factory=ExemptionLimits, description="limits of the exempt annotation"
    )
    on_error: Literal["allow", "deny"] = Field(
        "allow", description="the answer if a rule itself fails: `allow` admits the object with a warning"
    )
    changes: ChangeMessages = Field(
        default_factory=ChangeMessages, description="where added fields are shown"
    )
    overrides: tuple[Override, ...] = Field(
        (), description="exceptions; if several match, the last one takes precedence"
    )
    workloads: tuple[Workload, ...] = Field(
        (),
        description="further kinds with pod templates, or better paths for known ones; your own "
        "kinds must also be in the rules of the ValidatingWebhookConfiguration",
    )
    controllers: tuple[str, ...] = Field(
        (),
        description="globs of further user names of controllers: objects that they create for an owner are "
        "never refused. Service accounts, nodes and Kubernetes' own components are known",
    )
    fast_path: bool = Field(
        True,
        description="whether repeated requests are answered without aiohttp, JSON and the engine; `false` "
        "has the effect of `--fast-path=off` within a second",
    )
    docs_url: str = Field("", description="where docs/ is published, for links in messages; empty: no links")


# --- the snapshot ------------------------------------------------------------------------------


class Problem(Struct, frozen=True):
    """One thing wrong with a policy: the key (file), the path inside it, one sentence."""

    file: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.path}: {self.message}" if self.path else f"{self.file}: {self.message}"


class Effective(Struct, frozen=True):
    """The settings in force for one object: profile, modes and settings after overrides."""

    profile: Profile
    modes: Mapping[str, Mode]
    values: Mapping[type[Model], Model]
    alternatives: tuple[Effective, ...] = ()
    """The settings if an undecided override matched, for each of them. Overrides are undecided if the labels
    of the namespace are unknown. Combinations give no other mode, because the last override wins."""

    @property
    def settings(self) -> SettingsLookup:
        """Returns the settings of a mutator, or the thresholds of rules: `values` has all of them."""
        return cast(SettingsLookup, self.values.__getitem__)

    def mutator_mode(self, mutator: Mutator[Any]) -> Mode:
        """The mode of a mutator; at most `warn` if an undecided override could change it."""
        default = Mode.AUDIT if self.profile is Profile.OBSERVE else Mode.ENFORCE
        mode = self.modes.get(mutator.id, default)
        if self.alternatives and any(other.mutator_mode(mutator) is not mode for other in self.alternatives):
            return mode.at_most(Mode.WARN)
        return mode

    def rule_mode(self, rule: Rule, certainty: Certainty = Certainty.CERTAIN) -> Mode:
        """The mode of one finding. An undecided finding never denies."""
        mode = self.modes.get(rule.id) or rule.mode(self.profile, certainty)
        if certainty.is_open or self.alternatives:
            return mode.at_most(Mode.WARN)
        return mode


def utc_today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class Config:
    """A valid policy."""

    rules: RulesConfig = field(default_factory=RulesConfig)
    webhook: WebhookConfig = field(default_factory=WebhookConfig)
    values: Mapping[type[Model], Model] = field(default_factory=dict)
    overridden: tuple[Mapping[str, Model], ...] = ()
    """The settings that each override replaces, by mutator id."""
    digest: str = ""
    """A short hash of the text, for logs and `chassis_policy_info`."""
    own_rules: Mapping[str, Rule] = field(default_factory=dict)
    """The rules of the webhook itself, by id."""
    notes: tuple[Problem, ...] = ()
    """Removed settings in the text."""
    today: date = field(default_factory=utc_today, compare=False)
    """The day, in UTC, that decides which exemptions and overrides have ended."""

    def rule(self, rule_id: str) -> Rule | None:
        return registry.rules().get(rule_id) or self.own_rules.get(rule_id)

    def with_profile(self, profile: str) -> Config:
        """The same policy with another profile. Explicit modes win over the profile."""
        rules = msgspec.structs.replace(self.rules, profile=Profile(profile))
        return replace(self, rules=rules)

    def value(self, model: type[S], /) -> S:
        """The value of a key by its model, before overrides."""
        own: dict[type[Model], Model] = {RulesConfig: self.rules, WebhookConfig: self.webhook}
        known = own.get(model) or self.values.get(model)
        return known if isinstance(known, model) else default_settings(model)

    @cached_property
    def workloads(self) -> Mapping[GroupKind, Workload]:
        return {workload.group_kind: workload for workload in (*known_workloads(), *self.webhook.workloads)}

    @cached_property
    def _by_match(self) -> dict[tuple[frozenset[int], frozenset[int]], Effective]:
        return {}

    def effective(
        self, obj: Json, namespace: str = "default", namespace_labels: Mapping[str, str] | None = None
    ) -> Effective:
        """The settings in force for an object. `namespace_labels` None: unknown."""
        if not self.webhook.overrides:
            return self._base
        selections = [
            _selects(each, obj, namespace, namespace_labels)
            if each.until is None or each.until >= self.today
            else False
            for each in self.webhook.overrides
        ]
        matched = frozenset(index for index, selected in enumerate(selections) if selected)
        undecided = frozenset(index for index, selected in enumerate(selections) if selected is None)
        key = (matched, undecided)
        if key not in self._by_match:
            if len(self._by_match) >= REMEMBERED:
                self._by_match.clear()
            alternatives = tuple(self._under(matched | {index}) for index in undecided)
            self._by_match[key] = msgspec.structs.replace(self._under(matched), alternatives=alternatives)
        return self._by_match[key]

    @cached_property
    def _base(self) -> Effective:
        """The settings in force without overrides."""
        return self._under(())

    def _under(self, matched: Iterable[int]) -> Effective:
        """The settings in force under the overrides with these indices: the last one that sets an id wins."""
        matched = sorted(matched)
        profile, modes = self.rules.profile, self._explicit_modes()
        values = {each.settings: default_settings(each.settings) for each in registry.mutators().values()}
        values[Thresholds] = self.rules.thresholds
        values |= self.values
        for index in matched:
            override = self.webhook.overrides[index]
            if override.profile is not None:
                profile, modes = override.profile, {}
            modes.update(override.modes)
            for policy_id, settings in self.overridden[index].items():
                merged = values[type(settings)] = self._merged(policy_id, matched, index)
                if isinstance(merged, Settings) and merged.mode and "mode" in override.settings[policy_id]:
                    modes[policy_id] = merged.mode
        return Effective(profile, modes, values)

    def _explicit_modes(self) -> dict[str, Mode]:
        modes = dict(self.rules.modes)
        for policy in registry.mutators().values():
            own = self.values.get(policy.settings)
            if isinstance(own, Settings) and own.mode is not None:
                modes[policy.id] = own.mode
        return modes

    def _merged(self, policy_id: str, matched: Sequence[int], last: int) -> Model:
        """A policy's settings under several matching overrides, field by field."""
        model = registry.mutators()[policy_id].settings
        raw = raw_settings(self.values[model]) if model in self.values else {}
        for index in matched:
            if index <= last:
                raw |= self.webhook.overrides[index].settings.get(policy_id, {})
        result: Model = checked(model, raw)
        return result


def checked(model: type[S], data: Any) -> S:
    """A value from plain data that a user wrote. Raises Invalid."""
    from policies.core.pydantic_models import validated  # which loads pydantic

    return validated(model, data)


def raw_settings(value: Model) -> dict[str, Any]:
    """What the user wrote, as plain data."""
    found: dict[str, Any] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {key: _plain(getattr(value, name)) for name, key in names if name in value.given}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)


def _any_glob(globs: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _selects(
    override: Override, obj: Json, namespace: str, namespace_labels: Mapping[str, str] | None
) -> bool | None:
    """Whether an override applies to an object; None if it depends on labels of the namespace that are
    unknown."""
    if override.namespaces and not _any_glob(override.namespaces, namespace):
        return False
    if override.object_selector is not None and not override.object_selector.matches(labels_of(obj)):
        return False
    if override.namespace_selector is not None:
        return None if namespace_labels is None else override.namespace_selector.matches(namespace_labels)
    return True
