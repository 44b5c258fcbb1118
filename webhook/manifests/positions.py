"""The lines of a field in a YAML text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import yaml
from msgspec import Struct

from policies.kube.quantities import whole_number
from policies.kube.yaml_text import Parser


class Lines(NamedTuple):
    """The first and last line of a field, counted from 1."""

    first: int
    last: int
    exact: bool
    """False if the field is absent, and these are the lines of its parent."""


class Origin(Struct, frozen=True):
    """The text that an object was read from, and its position there."""

    text: str
    index: int = 0
    """The number of the document in the stream, counted from 0."""
    steps: tuple[str, ...] = ()
    """The path of the object inside the document, such as `items`, `3` in a List."""

    def lines(self, steps: Sequence[str]) -> Lines:
        """The lines of a field, or of its closest parent in the text.

        Elements of a list are found by name before index: the webhook may have inserted others before them.
        """
        found = self._find((*self.steps, *steps))
        if found is None:
            return Lines(1, 1, exact=False)
        first, node, exact = found
        return Lines(first + 1, max(first, last_line(node)) + 1, exact)

    @property
    def first_line(self) -> int:
        """The first line of the object. Cheap for the objects of a long stream, in any order."""
        return self.lines(()).first if self.steps else _first_lines(self.text)[self.index]

    def node(self) -> yaml.Node:
        """The object's YAML node. LookupError if it is part of an alias."""
        _, node, exact = self._find(self.steps) or (0, None, False)
        if node is None or not exact:
            raise LookupError(self.steps)
        return node

    def _find(self, steps: Sequence[str]) -> tuple[int, yaml.Node, bool] | None:
        """First line and node of a field or its closest parent, and whether it is the field itself."""
        node = _stream(self.text).document(self.index)
        if node is None:
            return None
        line = node.start_mark.line
        for step in steps:
            below = _below(node, step)
            if below is None:
                return line, node, False
            line, node = below
        return line, node, True

    @property
    def rows(self) -> list[str]:
        return _rows(self.text)


class _Stream:
    """The documents of a text, one at a time: nodes take a hundred times the memory of their text, and
    callers read the documents in order. The text was parsed before, so it is valid and its size is limited.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin()

    def _begin(self) -> None:
        self._nodes = _nodes(self._text)
        self._at = -1
        self._node: yaml.Node | None = None

    def document(self, index: int) -> yaml.Node | None:
        if index < self._at:
            self._begin()
        while self._at < index:
            self._node = next(self._nodes)
            self._at += 1
        return self._node


_KEPT: Final = 4
"""The number of cached texts: the current file, and the rendered text of one of its objects."""


@lru_cache(maxsize=_KEPT)
def _stream(text: str) -> _Stream:
    return _Stream(text)


@lru_cache(maxsize=_KEPT)
def _first_lines(text: str) -> list[int]:
    """The first line of each document."""
    return [node.start_mark.line + 1 for node in _nodes(text)]


def _nodes(text: str) -> Iterator[yaml.Node]:
    """The node of each document. PyYAML's own way refuses an anchor that is defined again."""
    anchors: dict[str, Any] = {}
    opened: list[Any] = []
    for event in cast("Iterator[Any]", yaml.parse(text, Loader=Parser)):
        kind = type(event)
        if issubclass(kind, yaml.CollectionStartEvent):
            of = yaml.MappingNode if kind is yaml.MappingStartEvent else yaml.SequenceNode
            node: Any = of(event.tag, [], event.start_mark, flow_style=event.flow_style)
            anchors[event.anchor] = node
            opened.append(node)
            continue
        if issubclass(kind, yaml.CollectionEndEvent):
            node = opened.pop()
            node.end_mark = event.end_mark
            if kind is yaml.MappingEndEvent:
                node.value = list(zip(node.value[::2], node.value[1::2], strict=True))
        elif kind is yaml.ScalarEvent:
            node = yaml.ScalarNode(event.tag, event.value, event.start_mark, event.end_mark, event.style)
            anchors[event.anchor] = node
        elif kind is yaml.AliasEvent:
            node = anchors[event.anchor]
        else:
            continue
        if opened:
            opened[-1].value.append(node)
        else:
            yield node


@lru_cache(maxsize=_KEPT)
def _rows(text: str) -> list[str]:
    return BREAK.split(text.removesuffix("\n"))


BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""The line breaks of YAML 1.1."""


def _below(node: yaml.Node, step: str) -> tuple[int, yaml.Node] | None:
    """The first line of a key or an element, and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # the last value of a duplicate key counts
            if key.value == step:
                return key.start_mark.line, value
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.MappingNode) and step in _names(item):
                return item.start_mark.line, item
        index = whole_number(step)
        if index is not None and index < len(node.value):
            item = node.value[index]
            return item.start_mark.line, item
    return None


def _names(node: yaml.MappingNode) -> list[object]:
    """The names of an element: a toleration has a key and no name."""
    return [value.value for key, value in node.value if key.value in ("name", "key", "mountPath")]


def last_line(node: yaml.Node) -> int:
    """The line of the last character. The end mark of a block collection is the next token."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = node.end_mark
    line: int = end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line
    return line
