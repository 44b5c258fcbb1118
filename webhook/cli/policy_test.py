"""`chassis policy test`: whether a policy decides about objects as its authors expect.

A file `chassis-test.yaml` names a policy, manifests, and the expectations about some of them. This module
decides nothing: the manifests are reviewed as `chassis review` does it, and the reviews compared with the
expectations.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET  # writes XML, never parses any
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import Field, ValidationError, model_validator

from policies.core.mode import Profile
from policies.core.settings import Model, validated
from policies.kube.field_paths import value_at
from policies.kube.json import Json, text
from policies.kube.printable import printable, printable_lines
from webhook.admission.configuration import Config
from webhook.admission.patch import same
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.named_policy import read_policy
from webhook.cli.output.plain import plural
from webhook.cli.output.review import Review
from webhook.cli.output.show import add_color, show_lines
from webhook.cli.output.text import Line
from webhook.cli.output.weight import Weight, weights
from webhook.cli.review import review_documents
from webhook.config.load import invalid, rules
from webhook.config.location import CONFIG_MAP
from webhook.errors import UserError
from webhook.kube.documents import BadDocument, load_all
from webhook.kube.offline import Document, ManifestCluster, read

FILE: Final = "chassis-test.yaml"
"""The file name that is searched in a directory."""


# --- the file --------------------------------------------------------------------------------------------


class Expectation(Model):
    """The expectations about one object; omitted fields are not compared."""

    object: str = Field(description="KIND/NAME or KIND/NAMESPACE/NAME of one of the manifests")
    verdict: Literal["admitted", "refused"] | None = Field(None, description="the expected verdict")
    findings: dict[str, Literal["refused", "warned", "audited", "exempted", "none"]] | None = Field(
        None,
        description="by rule, the worst that comes of its findings; a rule that refuses or warns and is not "
        "here fails the test",
    )
    mutations: tuple[str, ...] | None = Field(
        None, description="ids of the policies that change it, in any order"
    )
    fields: dict[str, Any] = Field(
        default_factory=dict,
        description="values after admission by field path, pods of workloads included; list elements by name "
        "or index, such as `spec.containers[api].livenessProbe`; null: it is absent",
    )


class Case(Model):
    """Manifests that are reviewed together, and the expectations about them."""

    name: str = Field(description="what it shows")
    manifests: tuple[str, ...] = Field((), description="files or directories next to this file")
    objects: tuple[dict[str, Any], ...] = Field((), description="further manifests, written here")
    operation: Literal["CREATE", "UPDATE"] = Field("CREATE", description="CREATE or UPDATE")
    old: tuple[str, ...] = Field((), description="files with the objects before an UPDATE")
    expect: tuple[Expectation, ...] = Field(description="the expected decisions")

    @model_validator(mode="after")
    def _complete(self) -> Case:
        if not self.manifests and not self.objects:
            raise ValueError("manifests or objects are missing")
        if not self.expect:
            raise ValueError("expect is empty")
        if self.old and self.operation != "UPDATE":
            raise ValueError("old goes with operation: UPDATE")
        return self


class Suite(Model):
    """A file of tests about one policy."""

    policy: str | None = Field(None, description="a directory or a file next to this one; absent: built-in")
    profile: Profile | None = Field(None, description="instead of the policy's profile")
    tests: tuple[Case, ...] = Field(description="the tests")


# --- the command -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test."""

    file: Path
    name: str
    failures: Sequence[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Run the tests of a policy: every {FILE} below the directories. Exit status: 0 all passed, 1 some "
        "failed, 2 something could not be read."
    )
    parser.add_argument(
        "paths", nargs="*", default=["."], metavar="PATH", help="files or directories (default: .)"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "junit"), default="text", help="default: %(default)s"
    )
    add_color(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    outcomes = [outcome for file in _files(args.paths) for outcome in _outcomes(file)]
    if args.output == "junit":
        sys.stdout.write(_junit(outcomes))
    else:
        show_lines(_lines(outcomes))
    return DENIED if any(outcome.failures for outcome in outcomes) else OK


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        found = sorted(path.rglob(FILE)) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: there is no {FILE} in it")
        yield from found


def _outcomes(file: Path) -> Iterator[Outcome]:
    suite = _read(file)
    config = _policy(file, suite)
    for case in suite.tests:
        try:
            yield Outcome(file, case.name, list(_failures(file, case, config)))
        except UserError as error:
            raise UserError(*(f"{file}: {case.name}: {problem}" for problem in error.problems)) from None


def _read(file: Path) -> Suite:
    try:
        values = [value for value in load_all(file.read_text(encoding="utf-8")) if value is not None]
        if len(values) != 1:
            raise UserError(f"{file}: it must hold one YAML document")
        return validated(Suite, values[0])
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    except BadDocument as error:
        raise UserError(f"{file}: {error}") from None
    except ValidationError as error:
        raise UserError(*invalid(str(file), error, Suite)) from None


def _policy(file: Path, suite: Suite) -> Config:
    if suite.policy is not None and (suite.policy == "-" or suite.policy.startswith(CONFIG_MAP)):
        raise UserError(
            f"{file}: policy: a test names a directory or a file, so that its result is the same everywhere"
        )
    where = None if suite.policy is None else str(file.parent / suite.policy)
    try:
        return read_policy(where, suite.profile)
    except UserError as error:
        raise UserError(*(f"{file}: {problem}" for problem in error.problems)) from None


# --- one test --------------------------------------------------------------------------------------------


def _failures(file: Path, case: Case, config: Config) -> Iterator[str]:
    documents = read([str(file.parent / each) for each in case.manifests])
    documents += [Document(str(file), number, obj) for number, obj in enumerate(case.objects)]
    old = read([str(file.parent / each) for each in case.old])
    cluster = ManifestCluster([document.obj for document in documents])
    reviews = list(review_documents(documents, config, cluster, case.operation, old))
    for expected in case.expect:
        review = _named(expected.object, reviews)
        for failure in _unmet(expected, review):
            yield f"{expected.object}: {failure}"


def _named(name: str, reviews: Iterable[Review]) -> Review:
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
        raise UserError(f"{len(found)} of the manifests are {name}: write KIND/NAMESPACE/NAME")
    return found[0]


def _unmet(expected: Expectation, review: Review) -> Iterator[str]:
    verdict = "admitted" if review.decision.allowed else "refused"
    if expected.verdict not in (None, verdict):
        yield f"{expected.verdict} expected, {verdict} found"
    if expected.findings is not None:
        yield from _other_findings(expected.findings, review)
    if expected.mutations is not None and set(expected.mutations) != set(review.mutations):
        yield f"mutations {_listed(expected.mutations)} expected, {_listed(review.mutations)} found"
    for path, value in expected.fields.items():
        found = value_at(review.final, path)
        if not same(value, found):
            yield f"{path}: {_short(value)} expected, {_short(found)} found"


def _other_findings(expected: dict[str, Any], review: Review) -> Iterator[str]:
    unknown = [rule for rule in expected if rule not in rules()]
    if unknown:
        raise UserError(f"there is no rule {', '.join(unknown)}")
    found: dict[str, Weight] = {}
    for (rule, _), weight in weights(review.decision).items():
        found[rule] = max(found.get(rule, Weight.NONE), weight)
    for rule, word in expected.items():
        weight = found.get(rule, Weight.NONE)
        if str(weight) != word:
            yield f"{rule}: {word} expected, {weight} found"
    for rule, weight in found.items():
        if rule not in expected and weight >= Weight.WARNED:
            yield f"{rule}: {weight}, which is not expected"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _short(value: Json | Any) -> str:
    if value is None:
        return "nothing"
    written = orjson.dumps(value).decode()
    return written if len(written) <= 200 else f"{written[:199]}…"


# --- results ---------------------------------------------------------------------------------------------


def _lines(outcomes: Sequence[Outcome]) -> Iterator[Line]:
    file = None
    for outcome in outcomes:
        if outcome.file != file:
            file = outcome.file
            yield str(file), "bold"
        yield (
            ("  FAIL  " if outcome.failures else "  ok    ") + outcome.name,
            "red" if outcome.failures else "green",
        )
        for failure in outcome.failures:
            yield f"        {failure}", ""
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    yield f"{plural(len(outcomes), 'test')}, {failed} failed", "bold red" if failed else "bold green"


def _junit(outcomes: Sequence[Outcome]) -> str:
    root = ET.Element("testsuites")
    for file in dict.fromkeys(outcome.file for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.file == file]
        failed = sum(bool(outcome.failures) for outcome in own)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=printable(str(file)),
            tests=str(len(own)),
            failures=str(failed),
            errors="0",
        )
        for outcome in own:
            case = ET.SubElement(
                suite, "testcase", classname=printable(str(file)), name=printable(outcome.name)
            )
            if outcome.failures:
                failure = ET.SubElement(case, "failure", message=printable(outcome.failures[0]))
                failure.text = printable_lines("\n".join(outcome.failures))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
