"""`chassis policy test`: compare the decisions of a policy with expectations.

A file `chassis-test.yaml` names a policy, manifests, and the expectations about some of them. The manifests
are reviewed as in `chassis review`.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET  # writes XML, never parses any
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from msgspec import Struct

from policies.core.finding import Profile
from policies.core.pydantic_models import validated
from policies.core.settings import Field, Invalid, Model
from policies.kube.field_paths import value_at
from policies.kube.json import Json, text
from policies.kube.names import plural, shortened
from policies.kube.yaml_text import BadDocument, load_all
from webhook.admission.configuration import Config, Problem
from webhook.admission.json_patch import same
from webhook.admission.printable import printable
from webhook.cli import flags
from webhook.cli.flags import DENIED, OK
from webhook.cli.named_policy import read_policy
from webhook.cli.output import junit
from webhook.cli.reviewed import Outcome, Reviewed, review_documents
from webhook.cli.terminal import Line, print_lines
from webhook.config.load import rules
from webhook.config.location import CONFIG_MAP
from webhook.errors import UserError
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, read

FILE: Final = "chassis-test.yaml"
"""The name of the files with tests in a directory."""


# --- the file --------------------------------------------------------------------------------------------


class Expectation(Model):
    """The expectations about one object; omitted fields are not compared."""

    object: str = Field(description="KIND/NAME or KIND/NAMESPACE/NAME of one of the manifests")
    verdict: Literal["admitted", "refused"] | None = Field(None, description="the expected verdict")
    findings: dict[str, Literal["refused", "warned", "audited", "exempted", "none"]] | None = Field(
        None,
        description="by rule, the worst outcome of its findings; a rule that refuses or warns and is not "
        "listed fails the test",
    )
    mutations: tuple[str, ...] | None = Field(
        None, description="ids of the policies that change the object, in any order"
    )
    fields: dict[str, Any] = Field(
        default_factory=dict,
        description="values after admission by field path, pods of workloads included; list elements by name "
        "or index, such as `spec.containers[api].livenessProbe`; null if the field must be absent",
    )


class PolicyCase(Model):
    """Manifests that are reviewed together, and the expectations about them."""

    name: str = Field(description="the name of the test")
    manifests: tuple[str, ...] = Field((), description="files or directories next to this file")
    objects: tuple[dict[str, Any], ...] = Field((), description="further manifests, inline")
    operation: Literal["CREATE", "UPDATE"] = Field("CREATE", description="CREATE or UPDATE")
    old: tuple[str, ...] = Field((), description="files with the objects before the UPDATE")
    expect: tuple[Expectation, ...] = Field(description="the expected decisions")

    def __post_init__(self) -> None:
        if not self.manifests and not self.objects:
            raise ValueError("neither manifests nor objects are given")
        if not self.expect:
            raise ValueError("expect is empty")
        if self.old and self.operation != "UPDATE":
            raise ValueError("old can only be used with operation: UPDATE")


class Suite(Model):
    """A file of tests about one policy."""

    policy: str | None = Field(None, description="a directory or a file next to this one; absent: built-in")
    profile: Profile | None = Field(None, description="instead of the policy's profile")
    tests: tuple[PolicyCase, ...] = Field(description="the tests")


# --- the command -----------------------------------------------------------------------------------------


class CaseResult(Struct, frozen=True):
    file: Path
    name: str
    failures: Sequence[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Run the tests of a policy: every {FILE} below the directories. Exit status: 0 all passed, 1 some "
        "failed, 2 something can't be read."
    )
    parser.add_argument(
        "paths", nargs="*", default=["."], metavar="PATH", help="files or directories (default: .)"
    )
    flags.add_output(parser, "text", "junit")
    flags.add_color(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    results = [result for file in _files(args.paths) for result in _results(file)]
    if args.output == "junit":
        sys.stdout.write(_junit(results))
    else:
        print_lines(_lines(results))
    return DENIED if any(result.failures for result in results) else OK


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        found = sorted(path.rglob(FILE)) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: there is no {FILE} in it")
        yield from found


def _results(file: Path) -> Iterator[CaseResult]:
    suite = _read(file)
    config = _policy(file, suite)
    for case in suite.tests:
        try:
            yield CaseResult(file, case.name, list(_failures(file, case, config)))
        except UserError as error:
            raise UserError(*(f"{file}: {case.name}: {problem}" for problem in error.problems)) from None


def _read(file: Path) -> Suite:
    try:
        values = [value for value in load_all(file.read_text(encoding="utf-8")) if value is not None]
        if len(values) != 1:
            raise UserError(f"{file}: it must contain exactly one YAML document")
        return validated(Suite, values[0])
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    except BadDocument as error:
        raise UserError(f"{file}: {error}") from None
    except Invalid as error:
        raise UserError(*(Problem(str(file), path, message) for path, message in error.problems)) from None


def _policy(file: Path, suite: Suite) -> Config:
    if suite.policy is not None and (suite.policy == "-" or suite.policy.startswith(CONFIG_MAP)):
        raise UserError(
            f"{file}: policy: in a test, name a directory or a file, so that the result is the same "
            "everywhere"
        )
    where = None if suite.policy is None else str(file.parent / suite.policy)
    try:
        return read_policy(where, suite.profile)
    except UserError as error:
        raise UserError(*(f"{file}: {problem}" for problem in error.problems)) from None


# --- one test --------------------------------------------------------------------------------------------


def _failures(file: Path, case: PolicyCase, config: Config) -> Iterator[str]:
    documents = read([str(file.parent / each) for each in case.manifests])
    documents += [Document(str(file), number, obj) for number, obj in enumerate(case.objects)]
    old = read([str(file.parent / each) for each in case.old])
    cluster = ManifestCluster([document.obj for document in documents])
    reviews = list(review_documents(documents, config, cluster, case.operation, old))
    for expected in case.expect:
        review = _find(expected.object, reviews)
        for failure in _mismatches(expected, review):
            yield f"{expected.object}: {failure}"


def _find(name: str, reviews: Iterable[Reviewed]) -> Reviewed:
    kind, *namespace, last = name.split("/")
    found = [
        review
        for review in reviews
        if (text(review.document.obj, "kind"), review.document.name) == (kind, last)
        and namespace in ([], [review.document.namespace])
    ]
    if not found:
        raise UserError(f"none of the manifests is {name}")
    if len(found) > 1:
        raise UserError(f"{len(found)} of the manifests are {name}; use KIND/NAMESPACE/NAME")
    return found[0]


def _mismatches(expected: Expectation, review: Reviewed) -> Iterator[str]:
    verdict = "admitted" if review.decision.allowed else "refused"
    if expected.verdict not in (None, verdict):
        yield f"{expected.verdict} expected, {verdict} found"
    if expected.findings is not None:
        yield from _finding_mismatches(expected.findings, review)
    if expected.mutations is not None and set(expected.mutations) != set(review.mutations):
        yield f"mutations {_listed(expected.mutations)} expected, {_listed(review.mutations)} found"
    for path, value in expected.fields.items():
        found = value_at(review.final, path)
        if not same(value, found):
            yield f"{path}: {_short(value)} expected, {_short(found)} found"


def _finding_mismatches(expected: dict[str, Any], review: Reviewed) -> Iterator[str]:
    unknown = [rule for rule in expected if rule not in rules()]
    if unknown:
        raise UserError(f"there is no rule {', '.join(unknown)}")
    found: dict[str, Outcome] = {}
    for (rule, _), outcome in review.outcomes.items():
        found[rule] = max(found.get(rule, Outcome.NONE), outcome)
    for rule, name in expected.items():
        outcome = found.get(rule, Outcome.NONE)
        if str(outcome) != name:
            yield f"{rule}: {name} expected, {outcome} found"
    for rule, outcome in found.items():
        if rule not in expected and outcome >= Outcome.WARNED:
            yield f"{rule}: {outcome}, which isn't expected"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _short(value: Json | Any) -> str:
    return "nothing" if value is None else shortened(orjson.dumps(value).decode(), 200)


# --- output ----------------------------------------------------------------------------------------------


def _lines(results: Sequence[CaseResult]) -> Iterator[Line]:
    for file, own in groupby(results, key=lambda each: each.file):
        yield str(file), "bold"
        for result in own:
            verdict, style = ("FAIL", "red") if result.failures else ("ok  ", "green")
            yield f"  {verdict}  {result.name}", style
            for failure in result.failures:
                yield f"        {failure}", ""
    failed = sum(bool(result.failures) for result in results)
    yield f"{plural(len(results), 'test')}, {failed} failed", "bold red" if failed else "bold green"


def _junit(results: Sequence[CaseResult]) -> str:
    root = ET.Element("testsuites")
    for file, own in groupby(results, key=lambda each: str(each.file)):
        suite = ET.SubElement(root, "testsuite", name=printable(file), errors="0")
        for result in own:
            case = junit.add_case(suite, file, result.name)
            if result.failures:
                junit.add_failure(case, result.failures[0], "\n".join(result.failures))
    return junit.rendered(root)
