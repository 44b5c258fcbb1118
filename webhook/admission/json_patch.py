"""The minimal JSON Patch (RFC 6902) between an object and its edited copy.

Mutators copy on write: shared subtrees are recognised by identity, so the cost depends on the size of the
change. Equality is that of JSON: `true`, `1` and `1.0` are different values.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Operation: TypeAlias = dict[str, Any]


def diff(original: Any, final: Any) -> list[Operation]:
    """The operations (`add`, `remove`, `replace`) that turn `original` into `final`; [] if equal.

    Lists of named maps (containers, volumes, env) are aligned by name: an element that is inserted at the
    front is one `add`.
    """
    found: list[Operation] = []
    if original is not final:
        _diff(original, final, "", found)
    return found


def steps_of(path: str) -> list[str]:
    """The steps of a JSON Pointer, indices as they are spelled."""
    if "~" not in path:
        return path.split("/")[1:]
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal in value and type."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _diff(a: Any, b: Any, path: str, found: list[Operation]) -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        if not a.keys() <= b.keys():
            found += [{"op": "remove", "path": f"{path}/{_escape(key)}"} for key in a if key not in b]
        for key, value in b.items():
            if key in a and a[key] is value:
                continue
            where = f"{path}/{_escape(key) if '~' in key or '/' in key else key}"
            if key not in a:
                found.append({"op": "add", "path": where, "value": value})
            else:
                _diff(a[key], value, where, found)
    elif isinstance(a, list) and isinstance(b, list):
        _diff_lists(a, b, path, found)
    elif not same(a, b):
        found.append({"op": "replace", "path": path, "value": b})


def _diff_lists(a: list[Any], b: list[Any], path: str, found: list[Operation]) -> None:
    if _correspond(a, b):
        for index, value in enumerate(b):
            if a[index] is not value:
                _diff(a[index], value, f"{path}/{index}", found)
        return
    keys_a, keys_b = _keys(a), _keys(b)
    if keys_a is not None and keys_b is not None:
        in_a, in_b = set(keys_a), set(keys_b)
        if [key for key in keys_a if key in in_b] == [key for key in keys_b if key in in_a]:
            _diff_aligned(a, b, keys_a, keys_b, path, found)
            return
    _diff_by_position(a, b, path, found)


def _correspond(a: list[Any], b: list[Any]) -> bool:
    """Whether elements at equal positions are identical or have the same name: then a diff by name equals a
    diff by position. This is the usual case."""
    if len(a) != len(b):
        return False
    for one, other in zip(a, b, strict=True):
        if one is other:
            continue
        if type(one) is not dict or type(other) is not dict or one.get("name") != other.get("name"):
            return False
    return True


def _keys(items: list[Any]) -> list[str] | None:
    """The names of the list's elements, if every one is a map with a unique name."""
    keys = [item.get("name") if isinstance(item, dict) else None for item in items]
    if any(not isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        return None
    return keys  # type: ignore[return-value]  # None was ruled out in the line above


def _diff_aligned(
    a: list[Any], b: list[Any], keys_a: list[str], keys_b: list[str], path: str, found: list[Operation]
) -> None:
    kept = set(keys_b)
    found += [
        {"op": "remove", "path": f"{path}/{index}"}
        for index in range(len(a) - 1, -1, -1)
        if keys_a[index] not in kept
    ]
    before = dict(zip(keys_a, a, strict=True))
    for index, (key, value) in enumerate(zip(keys_b, b, strict=True)):
        where = f"{path}/{index}"
        if key not in before:
            found.append({"op": "add", "path": where, "value": value})
        elif before[key] is not value:
            _diff(before[key], value, where, found)


def _diff_by_position(a: list[Any], b: list[Any], path: str, found: list[Operation]) -> None:
    """Skip the common head and tail; replace the elements between them, then remove or add the rest."""
    head, shorter = 0, min(len(a), len(b))
    while head < shorter and same(a[head], b[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(a[-1 - tail], b[-1 - tail]):
        tail += 1
    end_a, end_b = len(a) - tail, len(b) - tail
    both = min(end_a, end_b)
    for index in range(head, both):
        if a[index] is not b[index]:
            _diff(a[index], b[index], f"{path}/{index}", found)
    found += [{"op": "remove", "path": f"{path}/{index}"} for index in range(end_a - 1, both - 1, -1)]
    found += [{"op": "add", "path": f"{path}/{index}", "value": b[index]} for index in range(both, end_b)]
