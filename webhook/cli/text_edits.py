"""Edits of a YAML text that set values and keep all other characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import yaml
from msgspec import Struct

from policies.kube.json import Json, text
from webhook.admission.json_patch import Operation, steps_of
from webhook.cli.output.yaml import dump, dump_flow
from webhook.manifests.positions import BREAK, Origin, last_line

_HEADER: Final = re.compile(r"[|>][0-9]?([+-]?)")
"""The start of a block of text: what it does with line breaks at its end."""


class NotEditable(ValueError):
    """A value can't be written into the text; the message is one sentence."""


class _Edit(Struct, frozen=True):
    start: int
    end: int
    text: str


def edited(origin: Origin, before: Json, after: Json, operations: Sequence[Operation]) -> list[_Edit]:
    """The edits for the operations of `json_patch.diff` between an object and a new version.

    Raises:
        NotEditable: a value can't be written into the text.
    """
    editor = _Editor(origin)
    edits = [editor.edit(operation, before, after) for operation in operations]
    if any(each.start == len(origin.text) for each in edits):
        edits += editor.without_a_break()
    return edits


def applied(whole: str, edits: Iterable[_Edit]) -> str:
    """The text with all edits; edits at the same place are made in their order."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda each: each.start):
        if edit.start < at:
            raise NotEditable("two changes overlap")
        parts += [whole[at : edit.start], edit.text]
        at = edit.end
    return "".join((*parts, whole[at:]))


class _Editor:
    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._starts = [0, *(found.end() for found in BREAK.finditer(origin.text)), len(origin.text)]

    def edit(self, operation: Operation, before: Json, after: Json) -> _Edit:
        *above, last = steps_of(operation["path"])
        parent, was, becomes = self._parent(above, before, after)
        match operation["op"], parent:
            case "add", yaml.MappingNode():
                return self._new_key(parent, last, operation["value"])
            case "add", yaml.SequenceNode():
                return self._new_element(parent, int(last), was, becomes, operation["value"])
            case "replace", yaml.CollectionNode():
                return self._new_value(parent, last, operation["value"])
        raise NotEditable(f"{operation['path']} has no place in it")

    def without_a_break(self) -> Iterator[_Edit]:
        """Keep the value of a block of text that ends the file without a line break, although lines follow
        now: `|` becomes `|-`."""
        node = self._origin.node()
        while isinstance(node, yaml.CollectionNode) and node.value:
            node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
        if not isinstance(node, yaml.ScalarNode) or node.style not in ("|", ">") or node.value.endswith("\n"):
            return
        start = self._offset(node.start_mark)
        header = _HEADER.match(self._origin.text, start)
        if header is not None and self._offset(node.end_mark) == len(self._origin.text):
            yield _Edit(header.start(1), header.end(1), "-")

    def _parent(self, above: Sequence[str], was: Any, becomes: Any) -> tuple[yaml.Node, Any, Any]:
        """The node at a path, with its value before and after."""
        node = self._origin.node()
        for step in above:
            if isinstance(becomes, list):
                index = _index_before(was, becomes, int(step))
                if index is None:
                    raise NotEditable("an element has no place in it")
                was, becomes, step = was[index], becomes[int(step)], str(index)
            else:
                was, becomes = was[step], becomes[step]
            node = _child(node, step)
        return node, was, becomes

    def _offset(self, mark: yaml.Mark) -> int:
        return self._starts[mark.line] + mark.column

    def _new_key(self, parent: yaml.MappingNode, key: str, value: Any) -> _Edit:
        if parent.flow_style or not parent.value:
            return self._in_flow(parent, f"{dump_flow(key)}: {dump_flow(value)}")
        column = parent.value[0][0].start_mark.column
        return self._below(last_line(parent), column, {key: value})

    def _new_element(
        self, parent: yaml.SequenceNode, index: int, was: list[Any], becomes: list[Any], value: Any
    ) -> _Edit:
        if parent.flow_style or not parent.value:
            if index != len(becomes) - 1:
                raise NotEditable("an element goes into the middle of a list in brackets")
            return self._in_flow(parent, dump_flow(value))
        column = parent.start_mark.column
        earlier = (_index_before(was, becomes, each) for each in range(index - 1, -1, -1))
        previous = next((each for each in earlier if each is not None), None)
        line = parent.start_mark.line - 1 if previous is None else last_line(parent.value[previous])
        return self._below(line, column, [value])

    def _new_value(self, parent: yaml.CollectionNode, last: str, value: Any) -> _Edit:
        node = _child(parent, last)
        if not isinstance(node, yaml.ScalarNode) or node.start_mark.line != node.end_mark.line:
            raise NotEditable(f"{last} is more than a line long")
        start, end = self._offset(node.start_mark), self._offset(node.end_mark)
        return _Edit(start, end, dump_flow(value) if start != end else f" {dump_flow(value)}")

    def _in_flow(self, parent: yaml.CollectionNode, value: str) -> _Edit:
        """Insert before the closing bracket of a collection."""
        end = self._offset(parent.end_mark) - 1
        return _Edit(end, end, f", {value}" if parent.value else value)

    def _below(self, line: int, column: int, value: Any) -> _Edit:
        """Insert lines below a line (-1: at the top)."""
        rendered = "".join(f"{' ' * column}{each}\n" for each in dump(value).splitlines())
        start = self._starts[line + 1]
        last = self._origin.text[start - 1 : start]
        if start and (last in " \t" or not last.isspace()):  # the text has no final line end
            rendered = f"\n{rendered.removesuffix(chr(10))}"
        return _Edit(start, start, rendered)


def _child(node: yaml.Node, step: str) -> yaml.Node:
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if key.value == step:
                found: yaml.Node = value
                return found
    elif isinstance(node, yaml.SequenceNode):
        return node.value[int(step)]  # type: ignore[no-any-return]
    raise NotEditable(f"{step} is not written there itself")


def _index_before(was: list[Any], becomes: list[Any], index: int) -> int | None:
    """The index of a list's element before the change; None for a new element."""
    name = text(becomes[index], "name")
    if name:
        return next((at for at, each in enumerate(was) if text(each, "name") == name), None)
    return index if index < len(was) else None
