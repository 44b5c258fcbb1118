"""YAML and JSON text to plain JSON values, as kubectl reads them.

A duplicate key in a policy is an error. In a manifest its last value counts, as for Helm and kubectl, and the
caller is informed.

There are no tags, objects and dates: a JSON parser could have returned the result. In policies only `true`
and `false` are booleans, so `mode: off` is text.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Final

import yaml
from msgspec import Struct

from policies.kube.json import MAX_LEVELS

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml is slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]


class BadDocument(ValueError):
    """The text is not YAML with an equivalent in JSON; the message is one sentence with the line."""


_MERGE: Final = "tag:yaml.org,2002:merge"

MAX_VALUES = 1_000_000
"""Values of a stream with expanded aliases: a few lines can expand to gigabytes."""


class ManifestLoader(_SafeLoader):
    """YAML 1.1 as the Kubernetes tools read it: `yes` and `off` are booleans, dates are text."""

    aliases = True
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    duplicates: list[str] | None = None
    """The collected duplicate keys; None: they are errors."""

    def __init__(self, stream: str) -> None:
        super().__init__(with_unique_anchors(stream))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise BadDocument(f"line {_line(node)}: the tag declares a mapping, but the value isn't one")
        self.flatten_mapping(node)
        result: dict[str, Any] = {}
        own = set()
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            name = _key(key, key_node)
            if name in own:
                problem = f"line {_line(key_node)}: the key {name!r} appears twice"
                if self.duplicates is None:
                    raise BadDocument(problem)
                self.duplicates.append(problem)
            own.add(name)
            result[name] = self.construct_object(value_node, deep=True)
        return result

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge keys (`<<`); the map's own keys override merged ones. Takes linear time."""
        pairs = node.value
        if not any(key.tag == _MERGE for key, _ in pairs):
            return
        node.value = []  # a mapping that merges itself adds nothing
        own: list[tuple[yaml.Node, yaml.Node]] = []
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in pairs:
            if key.tag != _MERGE:
                own.append((key, value))
                continue
            if not self.aliases:
                raise BadDocument(
                    f"line {_line(key)}: merge keys (<<) aren't supported in a policy; write the fields out"
                )
            for each in reversed(value.value) if isinstance(value, yaml.SequenceNode) else (value,):
                if not isinstance(each, yaml.MappingNode):
                    raise BadDocument(
                        f"line {_line(each)}: a merge key (<<) needs a mapping or a list of them"
                    )
                self.flatten_mapping(each)
                merged.update((_merge_name(name), (name, inner)) for name, inner in each.value)
        for key, _ in own:
            merged.pop(_merge_name(key), None)
        node.value = [*merged.values(), *own]


class PolicyLoader(ManifestLoader):
    """The dialect of policies: only `true` and `false` are booleans, and aliases are errors."""

    aliases = False
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _merge_name(key: yaml.Node) -> str:
    """The text of a key, by which merged keys override each other."""
    if not isinstance(key, yaml.ScalarNode):
        raise BadDocument(f"line {_line(key)}: a key must be text")
    return str(key.value)


def _key(key: object, node: yaml.Node) -> str:
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int():
            return str(key)
    hint = f" ({_TEMPLATE})" if isinstance(node, yaml.MappingNode) else ""  # {{ .Values.name }}
    raise BadDocument(f"line {_line(node)}: a key must be text{hint}")


def _construct_binary(loader: ManifestLoader, node: yaml.ScalarNode) -> str:
    """The text that kubectl decodes from `!!binary`."""
    try:
        return base64.b64decode(loader.construct_scalar(node)).decode()
    except ValueError:  # also an error of base64 or UTF-8
        raise BadDocument(f"line {_line(node)}: !!binary does not contain UTF-8 text") from None


def _construct_bool(loader: ManifestLoader, node: yaml.ScalarNode) -> bool:
    value = loader.construct_scalar(node)
    if value.lower() not in ManifestLoader.bool_values:
        raise BadDocument(f"line {_line(node)}: {value[:80]!r} isn't a boolean")
    return ManifestLoader.bool_values[value.lower()]


def _construct_text(loader: ManifestLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _refuse_tag(_: ManifestLoader, node: yaml.Node) -> None:
    raise BadDocument(
        f"line {_line(node)}: the tag !!{node.tag.rpartition(':')[2]} has no equivalent in JSON"
    )


_WHOLE: Final = 2**53
"""Larger floats are not exact."""


def _construct_float(loader: ManifestLoader, node: yaml.ScalarNode) -> float:
    value = loader.construct_scalar(node)
    if not (_FLOAT.match(value) or _INTEGER.match(value)):
        raise BadDocument(f"line {_line(node)}: {value[:80]!r} isn't a number")
    return _float(value, node.start_mark.line)


def _construct_int(loader: ManifestLoader, node: yaml.ScalarNode) -> int | float | str:
    value = loader.construct_scalar(node)
    if not _INTEGER.match(value):  # only a tag can claim it
        raise BadDocument(f"line {_line(node)}: {value[:80]!r} isn't a number")
    return _int(value, node.start_mark.line)


def _float(text: str, line: int = 0) -> float:
    """A number with a point or an exponent. kubectl sends 1e1 and 2.0 as the whole numbers 10 and 2."""
    value = float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        raise BadDocument(f"line {line + 1}: {text} isn't a valid JSON number")
    return int(value) if value.is_integer() and abs(value) < _WHOLE else value


def _int(text: str, line: int = 0) -> int | float | str:
    """A whole number. Beyond 64 bits kubectl sends decimal digits as a float, and others as text."""
    plain = text.replace("_", "")
    digits = plain.lstrip("+-")
    if len(digits) > 100:
        raise BadDocument(f"line {line + 1}: the number is too long")
    decimal = digits.isascii() and digits.isdigit()
    value = int(plain, 8) if decimal and len(digits) > 1 and digits[0] == "0" else int(plain, 0)
    if -(2**63) <= value < 2**64:
        return value
    return float(plain) if decimal else text


_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_TRUE_FALSE = re.compile(r"^(?:true|false)$")
_BOOLEAN = re.compile(r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$")
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


_CONSTRUCTORS: Final[Mapping[str, Callable[..., Any]]] = {
    "float": _construct_float,
    "int": _construct_int,
    "bool": _construct_bool,
    "binary": _construct_binary,
    "timestamp": _construct_text,
    "set": _SafeLoader.construct_yaml_map,
    "omap": _refuse_tag,
    "pairs": _refuse_tag,
}
"""Every tag of PyYAML whose value JSON may not have."""


def _add_resolvers(loader: type[ManifestLoader], booleans: re.Pattern[str], first: str) -> None:
    for tag, pattern, starts in (
        ("null", _NULL, ["~", "n", "N", ""]),
        ("bool", booleans, list(first)),
        *NUMBERS,
        ("merge", re.compile("^<<$"), ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", pattern, starts)
    for tag, construct in _CONSTRUCTORS.items():
        loader.add_constructor(f"tag:yaml.org,2002:{tag}", construct)


_add_resolvers(ManifestLoader, _BOOLEAN, "yYnNtTfFoO")
_add_resolvers(PolicyLoader, _TRUE_FALSE, "tf")


def load_all(
    text: str, loader: type[ManifestLoader] = ManifestLoader, duplicates: list[str] | None = None
) -> Iterator[Any]:
    """All documents of a YAML stream (JSON is YAML), in order.

    The last value of a duplicate key counts, and `duplicates` gets a clause about it; without that list it is
    an error. Raises BadDocument about the first error.
    """
    plain = _plain_documents(text, loader)
    yield from _documents(text, loader, duplicates) if plain is None else plain


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


def _plain_documents(text: str, loader: type[ManifestLoader]) -> list[Any] | None:
    """The documents of a valid stream without tags, anchors and merge keys, built while parsing; otherwise
    None.

    Most streams are such. PyYAML takes three times as long, since it builds a node for each value first.
    """
    documents: list[Any] = []
    # The open collections, innermost last: a list, or a mapping with the key of its next value.
    opened: list[tuple[Any, str | None]] = []
    holder: Any = documents
    key: str | None = None
    scalars: dict[str, Any] = {}
    try:
        parser = loader(text)
        while True:
            event: Any = parser.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                if event.anchor is not None or event.tag is not None:
                    return None
                value = event.value
                if event.implicit[0]:
                    if value not in scalars:
                        scalars[value] = _resolved(value, loader)
                    value = scalars[value]
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                if event.anchor is not None or event.tag is not None or len(opened) >= MAX_LEVELS:
                    return None
                value = {} if kind is yaml.MappingStartEvent else []
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                holder, key = opened.pop()
                continue
            elif kind is yaml.AliasEvent:
                return None
            elif kind is yaml.StreamEndEvent:
                return documents
            else:
                continue
            if type(holder) is list:
                holder.append(value)
            elif key is None:
                key = value if type(value) is str else _key(value, event)
                if key in holder:
                    return None
                continue
            else:
                holder[key], key = value, None
            if type(value) is dict or type(value) is list:
                opened.append((holder, key))
                holder, key = value, None
    except (yaml.YAMLError, ValueError):
        return None  # the full parser will report it


def _resolved(text: str, loader: type[ManifestLoader]) -> Any:
    """The value of a scalar without quotes. ValueError if PyYAML must decide."""
    for tag, pattern in loader.yaml_implicit_resolvers.get(text[:1], ()):
        if pattern.match(text):
            return _SCALARS[tag.rpartition(":")[2]](text)
    return text


def _merge(text: str) -> Any:
    raise ValueError(text)


_SCALARS: Final[Mapping[str, Callable[[str], Any]]] = {
    "null": lambda _: None,
    "bool": lambda text: ManifestLoader.bool_values[text.lower()],
    "int": _int,
    "float": _float,
    "merge": _merge,
}


def _documents(text: str, loader: type[ManifestLoader], duplicates: list[str] | None = None) -> Iterator[Any]:
    try:
        _check_limits(text, loader)
        reading: Any = loader(text)  # a SafeLoader, narrowed further
        reading.duplicates = duplicates
        while reading.check_data():
            yield reading.get_data()
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = error.problem or error.context or "it isn't YAML"
        raise BadDocument(f"{where}{problem}{_guess(text, error.problem_mark)}") from None
    except yaml.YAMLError as error:
        raise BadDocument(" ".join(str(error).split())) from None
    except RecursionError:
        raise BadDocument("it is nested too deeply") from None
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


class _Collection(Struct):
    anchor: str | None
    values_before: int
    deepest: int
    """The deepest level inside so far."""


def _check_limits(text: str, loader: type[ManifestLoader]) -> None:
    """Refuse documents that must not be built: deep nesting, aliases that expand to too many values, or any
    alias if the loader accepts none.

    libyaml is limited only by the C stack: a few kilobytes of brackets would end the process.
    """
    count = 0
    opened: list[_Collection] = []
    anchored: dict[str | None, tuple[int, int]] = {}  # values and levels
    for event in yaml.parse(text, Loader=loader):
        level = len(opened)
        if isinstance(event, yaml.AliasEvent):
            if not loader.aliases:
                raise BadDocument(f"{_at(event)}aliases aren't supported in a policy; write the value out")
            values, levels = anchored.get(event.anchor, (0, 0))
            count, level = count + values, level + levels
            if count > MAX_VALUES:
                raise BadDocument(f"{_at(event)}its aliases expand to too many values")
        elif isinstance(event, yaml.NodeEvent):
            count += 1
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            opened.append(_Collection(event.anchor, count, level))
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = opened.pop()
            anchored[closed.anchor] = count - closed.values_before, closed.deepest - len(opened)
            level = closed.deepest
        if level > MAX_LEVELS:
            raise BadDocument(f"{_at(event)}it is nested too deeply")
        if opened:
            opened[-1].deepest = max(opened[-1].deepest, level)


def _at(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""


def load_policy(text: str) -> Any:
    """The document of a policy key; None if it is empty. Raises BadDocument."""
    documents = list(load_all(text, PolicyLoader))
    if len(documents) > 1:
        raise BadDocument("it contains more than one YAML document")
    return documents[0] if documents else None


try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml is slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

_ANCHOR: Final = re.compile(r"&([^\s,\[\]{}]+)")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_MOST: Final = 1000
"""Definitions of a text that get another name. With more, PyYAML refuses the document."""


def with_unique_anchors(text: str) -> str:
    """The text with another name for each anchor that its document defines again, and for its aliases.

    YAML allows it, and an alias means the last definition before it (YAML 1.2.2, 3.2.2.2). PyYAML refuses it,
    so each further definition gets another name of the same length: all positions in the text stay.
    """
    named = _ANCHOR.findall(text)
    if len(set(named)) == len(named):
        return text
    try:
        edits = _edits(text, set(named))
    except yaml.YAMLError:
        return text  # the parser will report it
    parts, end = [], 0
    for at, name in edits:
        parts += [text[end:at], name]
        end = at + len(name)
    return "".join([*parts, text[end:]])


def _edits(text: str, taken: set[str]) -> list[tuple[int, str]]:
    """The position of each name to replace, and the new name."""
    edits: list[tuple[int, str]] = []
    names: dict[str, str] = {}
    """The name that the last definition of each anchor of a document has now."""
    unused: dict[int, Iterator[str]] = {}
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.DocumentStartEvent):
            names = {}
        anchor = getattr(event, "anchor", None)
        if not anchor or event.start_mark is None or len(edits) >= _MOST:
            continue
        mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
        if mark == "&" and anchor in names:
            length = len(anchor)
            names[anchor] = next(unused.setdefault(length, _unused(length, taken)), anchor)
        elif mark == "&":
            names[anchor] = anchor
        new = names.get(anchor, anchor)
        if new != anchor:
            edits.append((text.index(mark + anchor, event.start_mark.index) + 1, new))
    return edits


def _unused(length: int, taken: set[str]) -> Iterator[str]:
    """The names of this length that no anchor of the text has."""
    return ("".join(each) for each in product(_LETTERS, repeat=length) if "".join(each) not in taken)
