"""Settings of earlier releases: a valid policy must stay valid after an upgrade.

They are removed before validation, and one sentence reports each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.core import registry
from policies.core.settings import Settings
from policies.kube.json import Json
from webhook.admission.configuration import Problem


def without_retired(file: str, data: Any) -> tuple[Any, list[Problem]]:
    """The content of one key without retired settings, and a note on each; other data as it is."""
    if not isinstance(data, dict):
        return data, []
    for policy in registry.mutators().values():
        if file == f"{policy.id}.yaml":
            return _without(data, policy.settings, file, "")
    if file == "webhook.yaml" and isinstance(data.get("overrides"), list):
        notes: list[Problem] = []
        overrides = [_override(item, index, notes) for index, item in enumerate(data["overrides"])]
        return {**data, "overrides": overrides}, notes
    return data, []


def _override(item: Any, index: int, notes: list[Problem]) -> Any:
    settings = item.get("settings") if isinstance(item, dict) else None
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
