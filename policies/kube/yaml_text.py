"""YAML and JSON text to plain JSON values, as kubectl reads them.

A duplicate key in a policy is an error. In a manifest its last value counts, as for Helm and kubectl, and the
caller is informed.

There are no tags, objects and dates: a JSON parser could have returned the result. In policies only `true`
and `false` are booleans, so `mode: off` is text.

The values are built from the events of PyYAML's parser. PyYAML's own way takes three times as long, since it
builds a node for each value first. It also expands aliases without a limit, and refuses an anchor that is
defined again (YAML 1.2.2, 3.2.2.2: an alias means the last definition before it).
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml
from msgspec import Struct, field

from policies.kube.json import MAX_LEVELS, Json

Parser: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML built without libyaml is slower."""


class BadDocument(ValueError):
    """The text is not YAML with an equivalent in JSON; the message is one sentence with the line."""


MAX_VALUES = 1_000_000
"""Values of a stream with expanded aliases: a few lines can expand to gigabytes."""


# --- scalars ---------------------------------------------------------------------------------------


def _null(_: str, __: int) -> None:
    return None


def _text(text: str, _: int) -> str:
    return text


def _bool(text: str, line: int) -> bool:
    if not _BOOLEAN.match(text):
        raise BadDocument(f"line {line}: {text[:80]!r} isn't a boolean")
    return text.lower() in ("yes", "true", "on")


def _binary(text: str, line: int) -> str:
    """The text that kubectl decodes from `!!binary`."""
    try:
        return base64.b64decode(text).decode()
    except ValueError:  # also an error of base64 or UTF-8
        raise BadDocument(f"line {line}: !!binary does not contain UTF-8 text") from None


_WHOLE: Final = 2**53
"""Larger floats are not exact."""


def _float(text: str, line: int) -> float:
    """A number with a point or an exponent. kubectl sends 1e1 and 2.0 as the whole numbers 10 and 2."""
    if not (_FLOAT.match(text) or _INTEGER.match(text)):  # only a tag can claim it, here and below
        raise BadDocument(f"line {line}: {text[:80]!r} isn't a number")
    value = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise BadDocument(f"line {line}: {text} isn't a valid JSON number")
    return int(value) if value.is_integer() and abs(value) < _WHOLE else value


def _int(text: str, line: int) -> int | float | str:
    """A whole number. Beyond 64 bits kubectl sends decimal digits as a float, and others as text."""
    if not _INTEGER.match(text):
        raise BadDocument(f"line {line}: {text[:80]!r} isn't a number")
    plain = text.replace("_", "")
    digits = plain.lstrip("+-")
    if len(digits) > 100:
        raise BadDocument(f"line {line}: the number is too long")
    decimal = digits.isascii() and digits.isdigit()
    value = int(plain, 8) if decimal and len(digits) > 1 and digits[0] == "0" else int(plain, 0)
    if -(2**63) <= value < 2**64:
        return value
    return float(plain) if decimal else text


_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_TRUE_FALSE = re.compile(r"^(?:true|false)$")
_BOOLEAN = re.compile(r"^(?i:yes|no|true|false|on|off)$")
_PLAIN_BOOLEAN = re.compile(
    r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$"
)
_INTEGER = re.compile(r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
)


NUMBERS: Final = (
    ("int", _INTEGER, list("-+0123456789")),
    ("float", _FLOAT, list("-+0123456789.")),
)
"""The patterns of numbers, with their first characters. They match more than PyYAML's patterns, so that
writers of YAML quote such texts."""

_SCALARS: Final[Mapping[str, Callable[[str, int], Any]]] = {
    "null": _null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _text,
    "timestamp": _text,
    "binary": _binary,
}
"""The value of a text and its line, by its tag."""


class Dialect(Struct, frozen=True):
    """How a text without quotes is read, and whether there are aliases."""

    resolvers: Mapping[str, Sequence[tuple[str, re.Pattern[str]]]]
    """Tags and their patterns, by the first character of a text."""
    aliases: bool

    @classmethod
    def of(cls, booleans: re.Pattern[str], starts: str, *, aliases: bool) -> Dialect:
        found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        for tag, pattern, firsts in (
            ("null", _NULL, ["~", "n", "N", ""]),
            ("bool", booleans, list(starts)),
            *NUMBERS,
        ):
            for first in firsts:
                found.setdefault(first, []).append((tag, pattern))
        return cls(found, aliases)

    def value(self, text: str, line: int) -> Any:
        """The value of a scalar without quotes."""
        for tag, pattern in self.resolvers.get(text[:1], ()):
            if pattern.match(text):
                return _SCALARS[tag](text, line)
        return text


MANIFESTS: Final = Dialect.of(_PLAIN_BOOLEAN, "yYnNtTfFoO", aliases=True)
"""YAML 1.1 as the Kubernetes tools read it: `yes` and `off` are booleans, dates are text."""
EMBEDDED: Final = Dialect.of(_PLAIN_BOOLEAN, "yYnNtTfFoO", aliases=False)
"""The same for texts in objects: aliases are errors, so that the values are no more than the characters."""
POLICIES: Final = Dialect.of(_TRUE_FALSE, "tf", aliases=False)
"""The dialect of policies: only `true` and `false` are booleans, and aliases are errors."""


# --- documents -------------------------------------------------------------------------------------


def load_all(text: str, dialect: Dialect = MANIFESTS, duplicates: list[str] | None = None) -> Iterator[Any]:
    """All documents of a YAML stream (JSON is YAML), in order.

    The last value of a duplicate key counts, and `duplicates` gets a clause about it; without that list it is
    an error. Raises BadDocument about the first error.
    """
    try:
        yield from _Stream(dialect, duplicates).documents(Parser(text))
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = error.problem or error.context or "it isn't YAML"
        raise BadDocument(f"{where}{problem}{_guess(text, error.problem_mark)}") from None
    except yaml.YAMLError as error:
        raise BadDocument(" ".join(str(error).split())) from None
    except UnicodeEncodeError as error:  # bytes that could not be decoded are lone surrogates
        line = text.count("\n", 0, error.start) + 1
        raise BadDocument(f"line {line}: it isn't UTF-8 text") from None
    except ValueError as error:
        raise error if isinstance(error, BadDocument) else BadDocument(str(error)) from None


def _guess(text: str, mark: yaml.Mark | None) -> str:
    """The probable cause of a syntax error: a tab, or a template such as Helm's."""
    line = text.splitlines()[mark.line : mark.line + 1] if mark else []
    if any(each.lstrip(" ").startswith("\t") for each in line):
        return " (a tab; YAML indents with spaces)"
    return f" ({_TEMPLATE})" if "{{" in text else ""


_TEMPLATE: Final = "a template must be rendered first"


def load_policy(text: str) -> Any:
    """The document of a policy key; None if it is empty. Raises BadDocument."""
    documents = list(load_all(text, POLICIES))
    if len(documents) > 1:
        raise BadDocument("it contains more than one YAML document")
    return documents[0] if documents else None


class _Merge:
    """The key `<<`, whose maps are merged into the map around it."""


_MERGE: Final = _Merge()


class _Collection(Struct):
    """A list or a map that is being read."""

    value: Any
    is_list: bool
    anchor: str | None
    values: int = 0
    """Values in the collections and aliases in it."""
    levels: int = 1
    key: str | _Merge | None = None
    """The key of a map whose value comes next."""
    merged: dict[str, Any] = field(default_factory=dict)
    """What merge keys add to a map."""


class _Anchored(NamedTuple):
    """What an anchor names."""

    value: Any
    values: int = 0
    levels: int = 0


class _Stream:
    """Builds the documents of a stream from the events of PyYAML's parser.

    Documents that must not be built are refused: deep nesting, aliases that expand to too many values.
    """

    def __init__(self, dialect: Dialect, duplicates: list[str] | None) -> None:
        self._dialect, self._duplicates = dialect, duplicates
        self._aliased = 0
        """Values that all aliases add."""
        self._anchors: dict[str, _Anchored | None] = {}
        """None while the value is being read."""
        self._opened: list[_Collection] = []
        """The open collections, the innermost one last."""

    def documents(self, parser: Any) -> Iterator[Any]:
        opened, known = self._opened, dict[str, Any]()
        while True:
            event = parser.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                value = event.value
                if event.tag is not None and event.tag != "!":
                    value = _tagged(event)
                elif event.implicit[0]:
                    if value not in known:
                        known[value] = self._dialect.value(value, _line(event))
                    value = known[value]
                if event.anchor is not None:
                    self._anchors[event.anchor] = _Anchored(value)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._open(event)
                continue
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                value = self._close()
            elif kind is yaml.AliasEvent:
                value = self._of_alias(event)
            elif kind is yaml.StreamEndEvent:
                return
            else:  # a document begins or ends
                self._anchors.clear()
                continue
            if not opened:
                yield value
                continue
            inside = opened[-1]
            if inside.is_list:
                inside.value.append(value)
                continue
            key = inside.key
            if key is None:
                ordinary = type(value) is str and value != "<<" and value not in inside.value
                inside.key = value if ordinary else self._key(value, inside.value, event)
                continue
            inside.key = None
            if key is _MERGE:
                _merge(value, inside.merged, event)
            else:
                inside.value[key] = value

    def _open(self, event: Any) -> None:
        is_list = type(event) is yaml.SequenceStartEvent
        if self._opened and not self._opened[-1].is_list and self._opened[-1].key is None:
            raise _bad_key(event)
        if event.tag not in (None, "!", *(_LISTS if is_list else _MAPS)):
            raise _bad_tag(event)
        if len(self._opened) >= MAX_LEVELS:
            raise BadDocument(f"line {_line(event)}: it is nested too deeply")
        self._opened.append(_Collection([] if is_list else {}, is_list, event.anchor))
        if event.anchor is not None:
            self._anchors[event.anchor] = None

    def _close(self) -> Any:
        closed = self._opened.pop()
        value = closed.value
        if closed.merged:
            value = {**{key: each for key, each in closed.merged.items() if key not in value}, **value}
        read = _Anchored(value, closed.values + len(value), closed.levels)
        if closed.anchor is not None:
            self._anchors[closed.anchor] = read
        self._add_inside(read)
        return value

    def _of_alias(self, event: Any) -> Any:
        line = _line(event)
        if not self._dialect.aliases:
            raise BadDocument(f"line {line}: aliases aren't supported in a policy; write the value out")
        if event.anchor not in self._anchors:
            raise BadDocument(f"line {line}: found undefined alias")
        read = self._anchors[event.anchor]
        if read is None and self._opened[-1].key is _MERGE:
            return {}  # a map that merges itself adds nothing
        if read is None:
            raise BadDocument(f"line {line}: the value of {event.anchor} contains itself")
        self._aliased += read.values
        if self._aliased > MAX_VALUES:
            raise BadDocument(f"line {line}: its aliases expand to too many values")
        if len(self._opened) + read.levels > MAX_LEVELS:
            raise BadDocument(f"line {line}: it is nested too deeply")
        self._add_inside(read)
        return read.value

    def _add_inside(self, read: _Anchored) -> None:
        """Count a value of the innermost open collection."""
        if self._opened:
            around = self._opened[-1]
            around.values += read.values
            around.levels = max(around.levels, read.levels + 1)

    def _key(self, value: object, earlier: Json, event: Any) -> str | _Merge:
        """The key of a map with these earlier ones."""
        if type(event) is yaml.ScalarEvent and _is_merge(event):
            if not self._dialect.aliases:
                raise BadDocument(
                    f"line {_line(event)}: merge keys (<<) aren't supported in a policy; write the fields out"
                )
            return _MERGE
        if type(value) is bool:
            key = "true" if value else "false"
        elif type(value) is str or type(value) is int:
            key = str(value)
        else:
            raise _bad_key(event)
        if key in earlier:
            problem = f"line {_line(event)}: the key {key!r} appears twice"
            if self._duplicates is None:
                raise BadDocument(problem)
            self._duplicates.append(problem)
        return key


def _merge(value: Any, merged: Json, event: Any) -> None:
    """Add the keys of a map, or of a list of maps of which the first one counts."""
    for each in reversed(value) if type(value) is list else (value,):
        if type(each) is not dict:
            raise BadDocument(f"line {_line(event)}: a merge key (<<) needs a mapping or a list of them")
        merged.update(each)


def _bad_key(event: Any) -> BadDocument:
    hint = f" ({_TEMPLATE})" if type(event) is yaml.MappingStartEvent else ""  # {{ .Values.name }}
    return BadDocument(f"line {_line(event)}: a key must be text{hint}")


# --- tags ------------------------------------------------------------------------------------------

_TAGS: Final = "tag:yaml.org,2002:"
_MERGE_TAG: Final = f"{_TAGS}merge"
_LISTS: Final = (f"{_TAGS}seq",)
_MAPS: Final = (f"{_TAGS}map", f"{_TAGS}set")
_REFUSED: Final = (f"{_TAGS}omap", f"{_TAGS}pairs")


def _is_merge(event: Any) -> bool:
    return event.tag == _MERGE_TAG or (event.value == "<<" and event.tag in (None, "!") and event.implicit[0])


def _tagged(event: Any) -> Any:
    """The value of a scalar with a tag."""
    if event.tag == _MERGE_TAG:
        return event.value
    read = _SCALARS.get(event.tag.removeprefix(_TAGS))
    if read is None:
        raise _bad_tag(event)
    return read(event.value, _line(event))


def _bad_tag(event: Any) -> Exception:
    """The error about a tag that the value can't have."""
    tag, line = event.tag, _line(event)
    if tag in _MAPS:
        return BadDocument(f"line {line}: the tag declares a mapping, but the value isn't one")
    name = tag.removeprefix(_TAGS)
    if tag in _REFUSED:
        return BadDocument(f"line {line}: the tag !!{name} has no equivalent in JSON")
    if tag in _LISTS or name in _SCALARS:
        return BadDocument(f"line {line}: the tag !!{name} declares another kind of value")
    problem = f"could not determine a constructor for the tag {tag!r}"
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


# --- JSON ------------------------------------------------------------------------------------------


def as_documents(text: str) -> str:
    """JSON objects one after the other, as `jq -c .items[]` prints them and kubectl reads them, as documents
    on the same lines; empty if the text is anything else."""
    decoder, parts, at = json.JSONDecoder(), [""], 0
    try:
        while following := _NO_SPACE.search(text, at):
            start = following.start()
            _, end = decoder.raw_decode(text, start)
            between = text[at:start]
            parts += [between if "\n" in between or not at else "\n", "--- ", text[start:end]]
            at = end
    except (ValueError, RecursionError):
        return ""
    return "".join(parts)


_NO_SPACE: Final = re.compile(r"\S")
