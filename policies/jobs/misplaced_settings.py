"""Settings at a place where their controller does not read them, in an object or in one that it names."""

from __future__ import annotations

from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, Target
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.kube.field_paths import field_path, maps_at, value_at
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json


class Misplaced(Model):
    """An entry of `misplaced_settings.yaml`. Kinds are written as `Kind.group`."""

    kinds: tuple[str, ...] = Field(min_length=1, description="the kinds of the reviewed objects")
    named: str = Field("", description="the kind of another object that has the setting; empty: its own")
    name: str = Field("", description="the path of that object's name")
    at: str = Field(description="the path of the map with the settings")
    keys: tuple[str, ...] = Field(min_length=1, description="the settings")
    unless: tuple[str, ...] = Field((), description="other keys of the map with which they are read")
    reads: str = Field("", description="the kind whose objects have the settings at the same path instead")
    why: str = Field(description="a sentence about what reads it instead, without its full stop")
    instead: str = Field(description="what to do")
    source: str = Field(description="the thread or code that shows it")


@data.table
def _settings() -> dict[GroupKind, list[Misplaced]]:
    found: dict[GroupKind, list[Misplaced]] = {}
    for each in data.load_list(Misplaced, __package__, "misplaced_settings.yaml"):
        for kind in each.kinds:
            found.setdefault(GroupKind.parse(kind), []).append(each)
    return found


def kinds_with_misplaced_settings() -> tuple[GroupKind, ...]:
    return tuple(_settings())


def misplaced_settings(target: Target, facts: Facts) -> Findings:
    for known in _settings().get(target.kind, ()):
        other = known.named and _named(known, target, facts)
        for steps, found in maps_at(other or target.obj, known.at) if other or not known.named else ():
            key = next((each for each in known.keys if each in found), None)
            if key is None or any(each in found for each in known.unless) or _is_read(known, key, facts):
                continue
            where = (
                f"{known.named} {value_at(target.obj, known.name)} has {key}" if other else f"This is {key}"
            )
            yield Finding(
                known.name if other else f"{field_path(steps)}.{key}",
                f"{where}, but {known.why}.",
                known.instead,
            )


def _is_read(known: Misplaced, key: str, facts: Facts) -> bool:
    """Whether an object of the namespace has the setting where it is read."""
    whole, place = facts.whole, (known.reads, known.at, facts.namespace)
    if whole is None or not known.reads:
        return False
    return key in whole.cache.once_for(place, _settings_of, known, facts.namespace, whole)


def _settings_of(known: Misplaced, namespace: str, whole: WholeObjects) -> frozenset[str]:
    objects = whole.every(GroupKind.parse(known.reads), namespace)
    return frozenset(key for each in objects for _, found in maps_at(each, known.at) for key in found)


def _named(known: Misplaced, target: Target, facts: Facts) -> Json | None:
    name = value_at(target.obj, known.name)
    if facts.whole is None or not isinstance(name, str):
        return None
    return facts.whole.named(GroupKind.parse(known.named), facts.namespace, name)
