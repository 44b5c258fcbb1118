"""Anchors that a YAML document defines twice.

YAML allows it, and an alias means the last definition before it (YAML 1.2.2, 3.2.2.2). PyYAML refuses it,
so each further definition gets another name of the same length: all positions in the text stay.
"""

from __future__ import annotations

import re
from itertools import islice, product
from typing import Final

import yaml

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml is slower
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

_ANCHOR: Final = re.compile(r"&([^\s,\[\]{}]+)")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_MOST: Final = 1000
"""Definitions of a text that get another name. With more, PyYAML refuses the document."""


def with_unique_anchors(text: str) -> str:
    """The text with another name for each anchor that its document defines again, and for its aliases."""
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
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.DocumentStartEvent):
            names = {}
        anchor = getattr(event, "anchor", None)
        if not anchor or event.start_mark is None or len(edits) >= _MOST:
            continue
        mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
        if mark == "&":
            names[anchor] = _unused(anchor, taken) if anchor in names else anchor
        new = names.get(anchor, anchor)
        if new != anchor:
            edits.append((text.index(mark + anchor, event.start_mark.index) + 1, new))
    return edits


def _unused(anchor: str, taken: set[str]) -> str:
    """A name as long as the anchor's that no anchor has; the anchor itself if there is none."""
    tried = islice(product(_LETTERS, repeat=len(anchor)), len(taken) + 1)
    name = next((found for each in tried if (found := "".join(each)) not in taken), anchor)
    taken.add(name)
    return name
