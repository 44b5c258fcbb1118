"""Converts a policy, the files or the keys of a ConfigMap, to a `Config`, or errors with paths. No I/O.

`policies.kube.yaml_text` reads the YAML itself, and its errors have lines.

A valid policy must stay valid after an upgrade: settings and rules of earlier releases are removed before
validation, and one sentence reports each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from itertools import islice
from types import MappingProxyType
from typing import Any

from msgspec import structs

from policies.core import registry
from policies.core.contracts import Rule
from policies.core.settings import MAX_PROBLEMS, Invalid, Model, Settings, default_settings
from policies.kube.json import Json
from policies.kube.names import did_you_mean
from policies.kube.yaml_text import BadDocument, load_policy
from webhook.admission.configuration import (
    Config,
    Override,
    Problem,
    RulesConfig,
    WebhookConfig,
    checked,
    raw_settings,
)
from webhook.config.policy_config_invalid import policy_config_invalid
from webhook.errors import UserError

LARGEST = 256 * 1024
"""Characters of a policy. Real ones have a hundredth of it. Parsing 1 MiB, the size of a full ConfigMap,
would block every review for seconds."""


class PolicyError(UserError):
    """The policy does not load."""

    problems: tuple[Problem, ...]


def models() -> dict[str, type[Model]]:
    """The model of every key that a policy may have."""
    own = {f"{policy.id}.yaml": policy.settings for policy in registry.mutators().values()}
    return {**own, "rules.yaml": RulesConfig, "webhook.yaml": WebhookConfig}


def load(files: Mapping[str, str]) -> Config:
    """The configuration of a policy (key -> YAML text). Absent keys have their defaults.

    Raises PolicyError with all problems, up to MAX_PROBLEMS.
    """
    if sum(map(len, files.values())) > LARGEST:
        largest = max(files, key=lambda name: len(files[name]))
        raise PolicyError(Problem(largest, "", f"the policy is larger than {LARGEST // 1024} KiB in total"))
    known, values = models(), {}
    problems: list[Problem] = []
    notes: list[Problem] = []
    for name, text in files.items():
        if len(problems) >= MAX_PROBLEMS:
            break
        if name not in known:
            problems.append(Problem(name, "", f"unknown key{did_you_mean(name, known)}"))
            continue
        try:
            data, retired = without_retired(name, load_policy(text))
            values[name] = checked(known[name], data)
            notes += retired
        except BadDocument as error:
            problems.append(Problem(name, "", str(error)))
        except Invalid as error:
            problems.extend(
                Problem(name, path, message + _elsewhere(path, message, known))
                for path, message in error.problems
            )
    modes, webhook = values.get("rules.yaml"), values.get("webhook.yaml")
    modes = modes if isinstance(modes, RulesConfig) else default_settings(RulesConfig)
    webhook = webhook if isinstance(webhook, WebhookConfig) else default_settings(WebhookConfig)
    problems.extend(islice(_unknown_ids(modes, webhook), MAX_PROBLEMS))
    by_model = {known[name]: value for name, value in values.items()}
    overridden = tuple(_overridden(webhook, by_model, problems))
    if problems:
        raise PolicyError(*problems[:MAX_PROBLEMS])
    digest = sha256("\0".join(f"{name}\0{files[name]}" for name in sorted(files)).encode()).hexdigest()[:12]
    return Config(modes, webhook, by_model, overridden, digest, own_rules(), tuple(notes))


@cache
def own_rules(namespace: str = "") -> Mapping[str, Rule]:
    """The rules of the webhook itself, by id. `namespace`: the webhook's own; empty: unknown."""
    own = policy_config_invalid(problems_of, namespace)
    return MappingProxyType({own.id: own})


@cache
def rules() -> Mapping[str, Rule]:
    """All rules by id, sorted by family."""
    every = sorted([*registry.rules().values(), *own_rules().values()], key=registry.sort_key)
    return MappingProxyType({rule.id: rule for rule in every})


def problems_of(files: Mapping[str, str]) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """The problems of a policy, and the removed settings in a policy without problems."""
    try:
        return (), load(files).notes
    except PolicyError as error:
        return error.problems, ()


def schema() -> Json:
    """The JSON Schema (2020-12) of a whole policy: one property per key."""
    from policies.core.pydantic_models import json_schemas  # which loads pydantic

    keys, definitions = json_schemas(models())
    describe_retired(definitions)
    ids = [*rules(), *registry.retired_rules()]
    for model, known_ids in ((RulesConfig, ids), (Override, [*ids, *registry.mutators()])):
        properties = definitions[model.__name__]["properties"]
        properties["modes"]["propertyNames"] = {"enum": sorted(known_ids)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ML Chassis policy",
        "description": "One property per key of the ConfigMap (or file of the directory).",
        "type": "object",
        "additionalProperties": False,
        "properties": keys,
        "$defs": definitions,
    }


def _elsewhere(path: str, message: str, known: Mapping[str, type[Model]]) -> str:
    """The key that has a field which this key lacks, as the end of a sentence."""
    if message != "unknown field":
        return ""
    places = [
        key for key, model in known.items() if any(each.encode_name == path for each in structs.fields(model))
    ]
    return f"; it is a field of {places[0]}" if len(places) == 1 else ""


def _unknown_ids(rules_config: RulesConfig, webhook: WebhookConfig) -> Iterator[Problem]:
    rule_ids, policy_ids = {**registry.rules(), **own_rules()}, registry.mutators()
    for name in rules_config.modes:
        if name not in rule_ids:
            meant = did_you_mean(name, rule_ids)
            if name in policy_ids:
                meant = f"; the mode of this policy is the field mode of {name}.yaml"
            yield Problem("rules.yaml", f"modes.{name}", f"there is no such rule{meant}")
    known = [*rule_ids, *policy_ids]
    known_or_retired = [*known, *registry.retired_rules()]
    for place, patterns in (
        ("forbidden", webhook.exemptions.forbidden),
        ("onlyIn", webhook.exemptions.only_in),
    ):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in known_or_retired):
                message = f"{pattern} isn't a rule or policy{did_you_mean(pattern, known)}"
                yield Problem("webhook.yaml", f"exemptions.{place}", message)
    for index, override in enumerate(webhook.overrides):
        for name in override.modes:
            if name not in rule_ids and name not in policy_ids:
                yield Problem(
                    "webhook.yaml",
                    f"overrides.{index}.modes.{name}",
                    f"there is no such rule or policy{did_you_mean(name, known)}",
                )


def _overridden(
    webhook: WebhookConfig, values: Mapping[type[Model], Model], problems: list[Problem]
) -> Iterator[Mapping[str, Model]]:
    known = registry.mutators()
    for index, override in enumerate(webhook.overrides):
        replaced: dict[str, Model] = {}
        for name, fields in override.settings.items():
            path = f"overrides.{index}.settings.{name}"
            if len(problems) >= MAX_PROBLEMS:
                return
            if name not in known:
                problems.append(
                    Problem("webhook.yaml", path, f"there is no such policy{did_you_mean(name, known)}")
                )
                continue
            model = known[name].settings
            base = raw_settings(values[model]) if model in values else {}
            try:
                replaced[name] = checked(model, base | fields)
            except Invalid as error:
                problems.extend(
                    Problem("webhook.yaml", f"{path}.{below}", message) for below, message in error.problems
                )
        yield replaced


def without_retired(file: str, data: Any) -> tuple[Any, list[Problem]]:
    """The content of one key without retired settings and rules, and a note on each; other data as it is."""
    if not isinstance(data, dict):
        return data, []
    if file == "rules.yaml":
        rule_notes: list[Problem] = []
        return _without_rules(data, file, "", rule_notes), rule_notes
    for policy in registry.mutators().values():
        if file == f"{policy.id}.yaml":
            return _without(data, policy.settings, file, "")
    if file == "webhook.yaml" and isinstance(data.get("overrides"), list):
        notes: list[Problem] = []
        overrides = [_override(item, index, notes) for index, item in enumerate(data["overrides"])]
        return {**data, "overrides": overrides}, notes
    return data, []


def _override(item: Any, index: int, notes: list[Problem]) -> Any:
    if not isinstance(item, dict):
        return item
    item = _without_rules(item, "webhook.yaml", f"overrides.{index}.", notes)
    settings = item.get("settings")
    if not isinstance(settings, dict):
        return item
    kept, known = {}, registry.mutators()
    for name, fields in settings.items():
        if name in known and isinstance(fields, dict):
            path = f"overrides.{index}.settings.{name}."
            fields, found = _without(fields, known[name].settings, "webhook.yaml", path)
            notes.extend(found)
        kept[name] = fields
    return {**item, "settings": kept}


def _without_rules(data: Json, file: str, path: str, notes: list[Problem]) -> Json:
    modes, retired = data.get("modes"), registry.retired_rules()
    if not isinstance(modes, dict) or retired.keys().isdisjoint(modes):
        return data
    notes.extend(
        Problem(file, f"{path}modes.{name}", retired[name].note) for name in modes if name in retired
    )
    return {**data, "modes": {name: mode for name, mode in modes.items() if name not in retired}}


def _without(data: Json, model: type[Settings], file: str, path: str) -> tuple[Json, list[Problem]]:
    found = [name for name in model.retired if name in data]
    if not found:
        return data, []
    kept = {name: value for name, value in data.items() if name not in found}
    if any(str(data[name]) in model.retired[name].off_with for name in found):
        kept["mode"] = "off"
    return kept, [Problem(file, path + name, model.retired[name].instead) for name in found]


def describe_retired(definitions: Mapping[str, Json]) -> None:
    """Add the retired settings to the JSON Schemas of their models, so that editors and Helm accept them."""
    for policy in registry.mutators().values():
        for name, retired in policy.settings.retired.items():
            properties = definitions[policy.settings.__name__]["properties"]
            properties[name] = {"deprecated": True, "description": retired.instead}
