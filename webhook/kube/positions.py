"""The place of a field in a YAML text: its first and last line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import yaml

from webhook.kube.documents import ManifestLoader


class Lines(NamedTuple):
    """The lines of a field, counted from 1; the last one is part of it."""

    first: int
    last: int
    exact: bool
    """False if the field is not written, and these are the lines of its parent."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The text that an object was read from, and its place there."""

    text: str
    index: int = 0
    """Which document of the stream, counted from 0."""
    steps: tuple[str, ...] = ()
    """The way to the object inside the document, such as `items`, `3` in a List."""

    def lines(self, steps: Sequence[str]) -> Lines:
        """The lines of a field, or else of the innermost one above it that is written.

        An element of a list is looked for by its name first, then by its index: the webhook may have put
        another in front of it.
        """
        document = _stream(self.text).document(self.index)
        if document is None:
            return Lines(1, 1, exact=False)
        first, node = document.start_mark.line, document
        found = True
        for step in (*self.steps, *steps):
            below = _below(node, step)
            if below is None:
                found = False
                break
            first, node = below
        return Lines(first + 1, max(first, last_line(node)) + 1, exact=found)

    def node(self) -> yaml.Node:
        """The object as the parser sees it. LookupError if it is not written here, but is an alias."""
        node = _stream(self.text).document(self.index)
        for step in self.steps:
            below = node and _below(node, step)
            if not below:
                raise LookupError(step)
            _, node = below
        if node is None:
            raise LookupError(self.index)
        return node

    @property
    def rows(self) -> list[str]:
        """The text line by line."""
        return _rows(self.text)


class _Stream:
    """The documents of a text, one at a time: callers go through them in their order. Nodes take a
    hundred times the room of their text.

    It has been read before, so that it is known to be sound and bounded.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin()

    def _begin(self) -> None:
        self._nodes: Iterator[yaml.Node | None] = yaml.compose_all(self._text, Loader=ManifestLoader)
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
"""Parsed texts to keep: the file in work, and the rendered text of one of its objects."""


@lru_cache(maxsize=_KEPT)
def _stream(text: str) -> _Stream:
    return _Stream(text)


@lru_cache(maxsize=_KEPT)
def _rows(text: str) -> list[str]:
    return BREAK.split(text.removesuffix("\n"))


BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What YAML 1.1 takes for the end of a line."""


def _below(node: yaml.Node, step: str) -> tuple[int, yaml.Node] | None:
    """The line on which a key or an element begins, and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # of a key that appears twice the last value counts
            if key.value == step:
                return key.start_mark.line, value
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.MappingNode) and step in _names(item):
                return item.start_mark.line, item
        if step.isdigit() and int(step) < len(node.value):
            item = node.value[int(step)]
            return item.start_mark.line, item
    return None


def _names(node: yaml.MappingNode) -> list[object]:
    """What an element may be called: a toleration has a key and no name."""
    return [value.value for key, value in node.value if key.value in ("name", "key", "mountPath")]


def last_line(node: yaml.Node) -> int:
    """The line of the last character; a block collection's own end is where the next token begins."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = node.end_mark
    line: int = end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line
    return line
