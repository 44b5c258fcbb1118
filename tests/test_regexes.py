"""Every regular expression of the tree takes linear time for any text."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import policies
import puller
import webhook
from tests.ambiguity import NotCheckableError, Verdict, ambiguity
from tests.tables import table

PACKAGES = (policies, puller, webhook)
SEARCHING = {"search", "sub", "subn", "split", "findall", "finditer"}
METHODS = {"match", "fullmatch", *SEARCHING}
OF_RE = re.compile(r"\bre\s*\.")


class Use(NamedTuple):
    """A pattern as the source has it, and how it is applied."""

    module: str
    line: int
    source: str
    pattern: Any
    flags: int
    method: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}:{self.method}"


MADE_AT_RUN_TIME: dict[tuple[str, str], list[str]] = {
    ("policies.worker_names.worker_names", r"f'-{_tag(worker, epoch)}-(\\d{{1,9}})(?:-\\d+)?$'"): [
        r"-abcde-(\d{1,9})(?:-\d+)?$"
    ],
    (
        "policies.relations.rules.peers_need_unready_names",
        r"f'(?<![\\w.-]){re.escape(target.name)}-\\d{{1,9}}\\.{re.escape(service)}(?![\\w-])'",
    ): [r"(?<![\w.-])llm-\d{1,9}\.llm\-peers(?![\w-])"],
    (
        "policies.network.rules.host_network_without_cluster_dns",
        r"f'(?<![\\w.-]){_LABEL}-\\d{{1,9}}\\.{re.escape(service)}(?![\\w-])'",
    ): [r"(?<![\w.-])[a-z0-9-]{1,63}-\d{1,9}\.train(?![\w-])"],
}
"""Patterns that a function puts together, by module and source: examples of what it makes."""

UNCHECKED: dict[tuple[str, str], str] = {
    ("puller.storage.objects", "translate(glob)"): "fnmatch ends each star once and for all, too, by a "
    "lookahead and a backreference",
}
"""Patterns that no automaton can express, by module and source, and why they are still linear."""


def modules() -> Iterator[tuple[str, list[ast.AST]]]:
    """Each module that uses `re`, with all its nodes."""
    for package in PACKAGES:
        (root,) = package.__path__
        for path in sorted(Path(root).rglob("*.py")):
            text = path.read_text("utf-8")
            if OF_RE.search(text):
                parts = (package.__name__, *path.relative_to(root).with_suffix("").parts)
                yield ".".join(parts).removesuffix(".__init__"), list(ast.walk(ast.parse(text)))


@cache
def uses() -> tuple[Use, ...]:
    """Every use of a pattern in the tree."""
    return tuple(_uses())


def _uses() -> Iterator[Use]:
    for name, nodes in modules():
        named: dict[ast.Call, str] = {}
        applied: defaultdict[str, set[str]] = defaultdict(set)
        calls = []
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                named[node.value] = target.id if isinstance(target, ast.Name) else ""
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                applied[node.value.id].add(node.attr)
            elif isinstance(node, ast.Call) and is_of_re(node.func):
                calls.append(node)
        for call in calls:
            method = ast.unparse(call.func).removeprefix("re.")
            if method not in METHODS | {"compile"}:
                continue
            source, flags = call.args[0], flags_of(call, name)
            given = named.get(call, "")
            methods = methods_of(given, applied[given]) if method == "compile" else {method}
            for each in sorted(methods):
                yield Use(name, call.lineno, ast.unparse(source), evaluated(source, name), flags, each)


def is_of_re(function: ast.expr) -> bool:
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "re"


def flags_of(call: ast.Call, module: str) -> int:
    position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(ast.unparse(call.func)[3:], 2)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] or call.args[position:]
    return int(evaluated(given[0], module)) if given else 0


def evaluated(expression: ast.expr, module: str) -> Any:
    """What an expression of the module's own level is; None where it needs a function's variables."""
    try:
        return eval(
            compile(ast.Expression(expression), module, "eval"), vars(importlib.import_module(module))
        )
    except NameError:
        return None


def methods_of(name: str, applied: set[str]) -> set[str]:
    """How a compiled pattern is applied in its module: `_X.search(…)`. Handed on to a function it is
    matched, and one that other modules import may be anything."""
    return applied & METHODS or ({"match"} if name.startswith("_") else {"match", "fullmatch", "search"})


def test_the_tree_has_been_found() -> None:
    assert len(uses()) > 60
    assert {use.module.partition(".")[0] for use in uses()} == {"policies", "puller", "webhook"}
    assert {use.method for use in uses()} >= {"match", "fullmatch", "search", "sub", "findall"}


def verdicts(use: Use) -> dict[str, Verdict]:
    """What is known of each pattern that the source makes."""
    if (use.module, use.source) in UNCHECKED:
        return {}
    patterns = [use.pattern] if use.pattern is not None else MADE_AT_RUN_TIME[use.module, use.source]
    whole, search = use.method == "fullmatch", use.method in SEARCHING
    return {f"{use} {each!r}": ambiguity(each, use.flags, whole=whole, search=search) for each in patterns}


def test_every_pattern_reads_every_text_in_linear_time() -> None:
    found = [each for use in uses() for each in verdicts(use).items()]
    assert [each for each in found if each[1] is not Verdict.LINEAR] == []


def test_nothing_is_listed_that_is_not_there() -> None:
    made = {(use.module, use.source) for use in uses() if use.pattern is None}
    assert MADE_AT_RUN_TIME.keys() | UNCHECKED.keys() == made


# The checker itself

MATCH, WHOLE, SEARCH = "match", "fullmatch", "search"
KNOWN = [
    (r"(a+)+$", MATCH, Verdict.EXPONENTIAL, "a", "!"),
    (r"(a*)*$", MATCH, Verdict.EXPONENTIAL, "a", "!"),
    (r"(?:a|ab|b)*$", MATCH, Verdict.EXPONENTIAL, "ab", "!"),
    (r"(?:[^\\']+|\\.)*", WHOLE, Verdict.EXPONENTIAL, "a", "\\"),
    (r"(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ms|s|m)?)+", WHOLE, Verdict.EXPONENTIAL, "9", "x"),
    (r"(x+x+)+y", MATCH, Verdict.EXPONENTIAL, "x", ""),
    (r"(?:\d+)?(?:\d+h)*x", WHOLE, Verdict.POLYNOMIAL, "9", "!"),
    (r"\s*\s*$", MATCH, Verdict.POLYNOMIAL, " ", "!"),
    (r"(\d+)(\d*)m", MATCH, Verdict.POLYNOMIAL, "9", "!"),
    (r"\d+\.?\d*", WHOLE, Verdict.POLYNOMIAL, "9", "!"),
    (r"^-\w*e\w*$", MATCH, Verdict.POLYNOMIAL, "e", "!"),
    (r"\s+$", SEARCH, Verdict.POLYNOMIAL, " ", "!"),
    (r"a.*=", SEARCH, Verdict.POLYNOMIAL, "a", ""),
    (r"^a.*=|a.*:", SEARCH, Verdict.POLYNOMIAL, "a", ""),
    (r"^a.*=|b", SEARCH, Verdict.LINEAR, "a", ""),
    (r"(?m)^-\w*e\w*$", SEARCH, Verdict.POLYNOMIAL, "e", "!"),
    (r"\s+$", MATCH, Verdict.LINEAR, " ", "!"),
    (r"\d+(?:\.\d*)?", WHOLE, Verdict.LINEAR, "9", "!"),
    (r"[^\\']*(?:\\.[^\\']*)*", WHOLE, Verdict.LINEAR, "a", "\\"),
    (r"(?:[^\\']+|\\.)*", MATCH, Verdict.LINEAR, "a", "\\"),
    (r"(/[\w.-]+)+", WHOLE, Verdict.LINEAR, "/a", "!"),
    (r"'[^']*'", SEARCH, Verdict.LINEAR, "a'", "!"),
    (r"[a-z]([a-z0-9-]*[a-z0-9])?", WHOLE, Verdict.LINEAR, "a", "-"),
    (r"(?i)(?:é|É)*x", WHOLE, Verdict.LINEAR, "é", "!"),
]


@table(("pattern", "method", "verdict", "unit", "end"), KNOWN)
def test_known_patterns_are_distinguished(
    pattern: str, method: str, verdict: Verdict, unit: str, end: str
) -> None:
    assert ambiguity(pattern, whole=method == WHOLE, search=method == SEARCH) is verdict
    if verdict is Verdict.LINEAR:
        getattr(re.compile(pattern), method)(unit * 100_000 + end)


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(a)?(?(1)b|c)", r"a*+b", r"(?>a*)b", r"(?=a{1,9}b)c"])
def test_a_pattern_beyond_automata_is_refused(pattern: str) -> None:
    with pytest.raises(NotCheckableError):
        ambiguity(pattern, whole=True, search=False)
