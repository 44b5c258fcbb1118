"""All mutators and rules, found by their files: a new one needs no change here.

A mutator is the `MUTATOR` of the module that has a page next to it (`job_retries.py` and `job-retries.md`), a
rule the `RULE` of a module in a package `rules`, or one of its `RULES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import policies
from policies.core.contracts import Family, Mutator, Rule
from policies.core.data import load_list, table
from policies.core.settings import Field, Model

P = TypeVar("P", Mutator[Any], Rule)


class RetiredRule(Model):
    """An entry of `retired_rules.yaml`."""

    id: str = Field(description="the id that the rule had")
    instead: str = Field(pattern=r"[^.]$", description="one sentence: what to use instead")

    @property
    def note(self) -> str:
        """A sentence for those who still name the rule."""
        return f"the rule {self.id} was removed. {self.instead}. Remove the id"


@cache
def mutators() -> Mapping[str, Mutator[Any]]:
    """The mutators by id, in the order in which they run."""
    found = _by_id(module.MUTATOR for module in _modules("*/*.md"))
    order = TopologicalSorter({name: policy.after for name, policy in sorted(found.items())})
    return MappingProxyType({name: found[name] for name in order.static_order() if name in found})


@cache
def rules() -> Mapping[str, Rule]:
    """The rules by id, in alphabetical order."""
    found = _by_id(each for module in _modules("*/rules/[!_]*.py") for each in _rules_of(module))
    return MappingProxyType({name: found[name] for name in sorted(found)})


@table
def retired_rules() -> Mapping[str, RetiredRule]:
    """The rules that no longer exist, by id."""
    found = load_list(RetiredRule, "policies.core", "retired_rules.yaml")
    return MappingProxyType({each.id: each for each in found})


def sort_key(rule: Rule) -> tuple[int, str]:
    """The order of rules in documents and reports: by family, then by id."""
    return tuple(Family).index(rule.document.family), rule.id


@cache
def documentation(policy_id: str) -> str:
    """The documentation of a mutator in Markdown; the first line summarises its effect. Raises KeyError."""
    package = mutators()[policy_id].settings.__module__.rpartition(".")[0]
    return files(package).joinpath(f"{policy_id}.md").read_text("utf-8").strip()


def _rules_of(module: ModuleType) -> Iterable[Rule]:
    return module.RULES if hasattr(module, "RULES") else (module.RULE,)


def _by_id(found: Iterable[P]) -> dict[str, P]:
    by_id: dict[str, P] = {}
    for each in found:
        if by_id.setdefault(each.id, each) is not each:
            raise RuntimeError(f"two policies or rules share the id {each.id}")
    return by_id


def _modules(pattern: str) -> Iterator[ModuleType]:
    root = Path(policies.__path__[0])
    for file in sorted(root.glob(pattern)):
        steps = file.relative_to(root).with_suffix("").parts
        yield importlib.import_module(".".join((policies.__name__, *steps)).replace("-", "_"))
