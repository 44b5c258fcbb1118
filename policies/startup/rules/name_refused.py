"""name-refused: objects whose name the API server accepts and their operator does not."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.workloads import Naming, known_workloads
from policies.kube.json import text

_NAMES: Final = {each.gk: each.names for each in known_workloads() if each.names is not None}
_MAX_PREFIX: Final = 58
"""The characters of a generateName that the API server uses, before five of its own."""
_GENERATED: Final = "x" * 5


def check(target: Target, facts: Facts) -> Findings:
    name, field = text(target.obj, "metadata", "name"), "name"
    if not name and (prefix := text(target.obj, "metadata", "generateName")):
        name, field = prefix[:_MAX_PREFIX] + _GENERATED, "generateName"
    known = _NAMES[target.kind]
    if wrong := _wrong(name, known):
        yield Finding(
            f"metadata.{field}",
            f"The name {wrong}, so {known.by} refuses this {target.kind.kind}. It never starts, and a queue "
            "may keep its quota reserved.",
            f"Use at most {known.most} letters, digits and hyphens, and begin with a letter.",
        )


def _wrong(name: str, known: Naming) -> str:
    """What is wrong with a name that the API server accepts, as half a sentence."""
    if len(name) > known.most:
        return f"has {len(name)} characters, and {known.most} is the maximum"
    if name[:1].isdigit():
        return "begins with a digit"
    return "contains a dot" if "." in name else ""


RULE = rule(__name__, check, tuple(_NAMES), unowned=True)
