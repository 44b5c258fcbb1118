"""name-refused: objects whose name the API server accepts, and which get no pods because of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.workloads import Naming, known_workloads
from policies.kube.json import text

_NAMES: Final = {each.group_kind: each.names for each in known_workloads() if each.names is not None}
_MAX_PREFIX: Final = 58
"""The characters of a generateName that the API server uses, before five of its own."""
_GENERATED: Final = "x" * 5


def check(target: Target, facts: Facts) -> Findings:
    name, field = text(target.obj, "metadata", "name"), "name"
    if not name and (prefix := text(target.obj, "metadata", "generateName")):
        name, field = prefix[:_MAX_PREFIX] + _GENERATED, "generateName"
    known = _NAMES[target.kind]
    if wrong := next(_wrong(name, known), None):
        problem, instead = wrong
        yield Finding(f"metadata.{field}", f"The name {problem}: {known.then}.", instead)


def _wrong(name: str, known: Naming) -> Iterator[tuple[str, str]]:
    """What is wrong with a name that the API server accepts, as half a sentence, and what to do."""
    if len(name) > known.most:
        yield f"has {len(name)} characters", f"Use at most {known.most} characters."
    if "." in name and known.form != "any":
        yield "contains a dot", "Use hyphens instead of dots."
    if name[:1].isdigit() and known.form == "service":
        yield "begins with a digit", "Begin with a letter."


RULE = rule(__name__, check, tuple(_NAMES), unowned=True)
