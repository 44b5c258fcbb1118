"""Whole objects in other objects, which their controllers apply as they are: as fields, or as YAML.

A text may have placeholders, `{{inputs.parameters.workers}}`, whose values nobody knows before it is applied.
It is read several times, each time with other values, and only what all readings share is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from policies.core.pod_templates import pod_templates
from policies.core.workloads import Applied, Workload
from policies.kube.field_paths import every_value_at, field_path, maps_at, value_at
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, text
from policies.kube.objects.kinds import type_of
from policies.kube.objects.reading import WrongTypeError, read
from policies.kube.yaml_text import EMBEDDED, BadDocument, load_all

Spend: TypeAlias = Callable[[int], None]
"""Spends steps of a review's budget; raises the caller's own exception if none are left."""

MAX_OBJECTS: Final = 8
"""Objects of one object that are read."""
MAX_TEXT: Final = 32 * 1024
"""Characters of a text that is read."""
_MAX_PLACEHOLDERS: Final = 64
"""Different placeholders of a text that is read."""
_MAX_CORRECTIONS: Final = 8
"""Values of a reading that are exchanged because their fields need another type."""
_PLACEHOLDER: Final = re.compile(r"\{\{[^{}]*\}\}")
_STAND_IN: Final = "unknown{}z"
_NUMBERS: Final = (1, 4099)
"""What placeholders of numbers may be: the smallest usual number, and more than anybody writes."""
_CHARACTERS_A_STEP: Final = 2
"""A step is a microsecond, in which the reader of YAML reads so many."""


class AppliedObject(Struct, frozen=True):
    """A whole object in another one."""

    path: str
    """Field path of the object, or of the text that contains it."""
    how: Applied
    readings: tuple[Json, ...]
    """The object with different values of its placeholders; one without any. All have the same kind. None: it
    is there, and can't be read."""
    placeholders: Mapping[str, str]
    """What is in the first reading in place of a placeholder, with that placeholder."""

    @property
    def obj(self) -> Json:
        return self.readings[0]

    @property
    def title(self) -> str:
        """Its kind and name, as they are written."""
        name = text(self.obj, "metadata", "name") or text(self.obj, "metadata", "generateName")
        return f"{kind_of(self.obj).kind} {self.written(name)}".rstrip()

    def written(self, shown: str) -> str:
        """A text of the first reading with its placeholders."""
        for token, placeholder in self.placeholders.items():
            shown = shown.replace(token, placeholder)
        return shown

    def is_unknown(self, shown: str) -> bool:
        """Whether a text of the first reading depends on a placeholder."""
        return any(token in shown for token in self.placeholders)

    def is_unknown_at(self, path: str) -> bool:
        """Whether the scalar at a field path of the first reading, or one in the list there, depends on a
        placeholder."""
        value = value_at(self.obj, path)
        return any(self.is_unknown(each) for each in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, str):
            yield each


def applied_objects(
    obj: Json, workload: Workload, workloads: Mapping[GroupKind, Workload], spend: Spend
) -> Iterator[AppliedObject]:
    """The objects that the controller of a kind applies. Raises what `spend` does."""
    found = 0
    for how in workload.applied:
        for above, node in maps_at(obj, how.at):
            if any(node.get(key) not in values for key, values in how.when.items()):
                continue
            if any(node.get(key) for key in how.unless):
                continue
            for steps, value in every_value_at(node, how.object):
                path = field_path((*above, *steps))
                for each in _read(path, how, value, workloads, spend):
                    found += 1
                    if found > MAX_OBJECTS:
                        yield AppliedObject(path, how, (), {})
                        return
                    yield each


def _read(
    path: str, how: Applied, value: Any, workloads: Mapping[GroupKind, Workload], spend: Spend
) -> Iterator[AppliedObject]:
    if not how.as_text:
        if isinstance(value, dict) and kind_of(value).kind:
            yield AppliedObject(path, how, (value,), {})
        return
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        return
    spend(len(value) // _CHARACTERS_A_STEP)
    names = list(dict.fromkeys(_PLACEHOLDER.findall(value)))
    if len(names) > _MAX_PLACEHOLDERS:
        return
    tokens = {name: _STAND_IN.format(number) for number, name in enumerate(names)}
    if any(token in value for token in tokens.values()):
        return
    written = _Text(value, tokens)
    placeholders = {token: name for name, token in tokens.items()}
    for index, document in enumerate(written.documents(tokens)):
        if not kind_of(document).kind or "items" in document:  # a list of objects
            yield AppliedObject(path, how, (), {})
            continue
        if not names:
            yield AppliedObject(path, how, (document,), {})
            continue
        readings = [
            _corrected(written, index, start, workloads, spend)
            for start in (tokens, *(dict.fromkeys(names, str(number)) for number in _NUMBERS))
        ]
        whole = [each for each in readings if each is not None and kind_of(each) == kind_of(document)]
        yield AppliedObject(path, how, tuple(whole) if len(whole) == len(readings) else (), placeholders)


class _Text(Struct, frozen=True):
    """A text with placeholders."""

    content: str
    tokens: Mapping[str, str]
    """What stands in for each placeholder in the first reading."""
    parsed: dict[tuple[str, ...], Sequence[Any]] = field(default_factory=dict)
    """The documents by the values of the placeholders: all documents of a text begin with the same ones."""

    def documents(self, values: Mapping[str, str]) -> Sequence[Any]:
        """The maps of the text with these values of its placeholders; none if it is not YAML."""
        key = tuple(values.values())
        if key not in self.parsed:
            self.parsed[key] = self._parse(values)
        return self.parsed[key]

    def _parse(self, values: Mapping[str, str]) -> Sequence[Any]:
        filled = _PLACEHOLDER.sub(lambda found: values[found[0]], self.content)
        try:
            found = list(load_all(filled, EMBEDDED, []))
        except BadDocument:
            return ()
        return [each for each in found if isinstance(each, dict)][: MAX_OBJECTS + 1]


def _corrected(
    written: _Text,
    index: int,
    start: Mapping[str, str],
    workloads: Mapping[GroupKind, Workload],
    spend: Spend,
) -> Json | None:
    """A document with the values `start` of its placeholders, and others where a field needs another type;
    None if there is none with the right types."""
    values, tokens = dict(start), written.tokens
    named = {token: name for name, token in tokens.items()}
    first = written.documents(tokens)[index]
    for _ in range(_MAX_CORRECTIONS):
        spend(len(written.content) // _CHARACTERS_A_STEP)
        documents = written.documents(values)
        if index >= len(documents):
            return None
        obj: Json = documents[index]
        wrong = _wrong_field(obj, workloads)
        if wrong is None:
            return obj
        name = named.get(str(value_at(first, wrong)))
        if name is None:
            return None
        values[name] = str(_NUMBERS[0]) if values[name] == tokens[name] else tokens[name]
    return None


def _wrong_field(obj: Json, workloads: Mapping[GroupKind, Workload]) -> str | None:
    """The field path of a value of a wrong type; None if there is none."""
    try:
        read(obj, type_of(kind_of(obj)))
    except WrongTypeError as error:
        return error.path
    for template in pod_templates(obj, workloads):
        try:
            _ = template.typed
        except WrongTypeError as error:
            return template.path_in_object(error.path)
    return None
