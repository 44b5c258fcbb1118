"""Runs every rule over its cases: `tests/**/rules/<rule id>/{bad,good}-<form>.yaml`.

The first document of a case is the object under judgement, judged as the webhook would: its pods
after the mutating policies. Further documents are the known objects of the cluster; one with the label
`mlchassis.dev/policy: "true"` is the policy in force. A bad case begins with every finding, word for word:

    # expect: spec.template.spec.containers[0].livenessProbe certain
    #   Container model serves and has no livenessProbe: when it hangs, nothing restarts it.
    #   Add a livenessProbe on a local health endpoint.

`make golden` rewrites these lines; the diff is for a person to review.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from policies.core.annotations import POLICY_LABEL
from policies.core.contracts import Rule
from policies.core.facts import Cluster, Facts
from policies.core.finding import Certainty, Finding, Mode, Profile
from policies.core.pod_templates import pod_templates
from policies.core.target import Target
from policies.kube.json import Json, mapping
from policies.kube.metadata import labels_of
from tests.tables import table
from webhook.admission.configuration import Config
from webhook.admission.projection import project
from webhook.admission.review import Context
from webhook.config.load import load, rules
from webhook.manifests import files
from webhook.manifests.cluster import ManifestCluster

CASES = Path(__file__).parent.parent
EXPECT = re.compile(r"^# expect: (\S+) (\w+)\n#   (.+)\n#   (.+)\n", re.MULTILINE)
HEADER = re.compile(r"\A(?:# expect: .*\n|#   .*\n)+")

MODES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("modes.yaml").read_text())


@dataclass(frozen=True)
class Case:
    """An object, the known objects around it, and the expected findings."""

    objects: tuple[Json, ...]
    expected: frozenset[Finding]

    @classmethod
    @cache
    def read(cls, path: Path) -> Case:
        """The case of a file, the same one for each test."""
        objects = tuple(document.obj for document in files.read([str(path)]))
        header = HEADER.match(path.read_text())
        expected = EXPECT.findall(header[0]) if header else []
        return cls(
            objects,
            frozenset(
                Finding(at, message, hint, Certainty(certainty)) for at, certainty, message, hint in expected
            ),
        )

    @classmethod
    def of(cls, snippet: str) -> Case:
        return cls(tuple(d.obj for d in files.read(["-"], lambda: snippet)), frozenset())

    def cluster(self) -> Cluster:
        """What is known: all objects of the case."""
        return ManifestCluster(self.objects, whole=True)

    def situation(self, cluster: Cluster | None = None) -> tuple[Target, Facts]:
        """What the engine would hand to a rule. `cluster`: instead of the objects of the case."""
        obj, *rest = self.objects
        policy = [other for other in rest if labels_of(other).get(POLICY_LABEL) == "true"]
        config = load(mapping(policy[0], "data")) if policy else defaults()
        request = files.Document("case", 0, obj).request()
        context = Context.of(obj, request.namespace, config, cluster or self.cluster())
        projection = project(obj, pod_templates(obj, config.workloads), context)
        assert projection.crashes == ()
        return projection.target, context.facts


@cache
def defaults() -> Config:
    """The policy of all cases without their own."""
    return load({})


def findings(rule: Rule, target: Target, facts: Facts) -> list[Finding]:
    if not rule.applies(target.kind, has_pods=bool(target.templates)):
        return []
    if rule.unowned and target.has_controller:
        return []
    return list(rule.check(target, facts))


def found(rule: Rule, case: Case) -> list[Finding]:
    """The findings without the value that fixes each, which their hints say and the cases do not."""
    return [replace(each, value=None) for each in findings(rule, *case.situation())]


FILES = sorted(CASES.glob("**/rules/*/*"))
_BY_RULE = {rule: list(paths) for rule, paths in groupby(FILES, key=lambda path: path.parent.name)}


def cases_of(rule: Rule) -> Iterator[tuple[str, Case]]:
    """The name and the case of each file of a rule, bad and good."""
    return ((path.name, Case.read(path)) for kind in ("bad", "good") for path in cases(kind, rule))


def cases(kind: str, rule: Rule) -> list[Path]:
    return [path for path in _BY_RULE.get(rule.id, ()) if path.match(f"{kind}-*.yaml")]


def all_rules() -> list[Rule]:
    return list(rules().values())


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_bad_cases_are_flagged(rule: Rule, request: pytest.FixtureRequest) -> None:
    paths = cases("bad", rule)
    assert len(paths) >= 3
    for path in paths:
        case = Case.read(path)
        result = found(rule, case)
        if request.config.getoption("--update-golden", default=False):
            write(path, result)
            Case.read.cache_clear()
            case = Case.read(path)
        assert case.expected, f"{path}: it begins with its findings; `make golden` writes them"
        assert set(result) == case.expected, path
        assert len(result) == len(case.expected), f"{path}: one finding, one place"
        for finding in result:
            assert_consists_of_sentences(finding)


def write(path: Path, result: Iterable[Finding]) -> None:
    """Replaces the expected findings of a case by the actual ones."""
    header = "".join(
        f"# expect: {finding.path} {finding.certainty.value}\n#   {finding.message}\n#   {finding.hint}\n"
        for finding in sorted(result, key=lambda finding: finding.path)
    )
    path.write_text(header + HEADER.sub("", path.read_text()))


@table("rule_id", rules())
def test_good_cases_pass(rule_id: str) -> None:
    rule = rules()[rule_id]
    paths = cases("good", rule)
    assert len(paths) >= 3
    for path in paths:
        case = Case.read(path)
        assert (case.expected, found(rule, case)) == (frozenset(), []), path


def test_no_case_is_overlooked() -> None:
    unknown = [
        path
        for path in FILES
        if path.suffix != ".yaml"
        or not path.name.startswith(("bad-", "good-"))
        or path.parent.name not in rules()
    ]
    assert unknown == []


@table("rule_id", rules())
def test_only_this_rule_flags_its_bad_example_and_none_its_good_one(rule_id: str) -> None:
    rule = rules()[rule_id]
    for example, wanted in ((rule.document.bad, {rule.id}), (rule.document.good, set())):
        target, facts = Case.of(example).situation()
        assert {other.id for other in all_rules() if findings(other, target, facts)} == wanted
        certainties = {finding.certainty for finding in findings(rule, target, facts)}
        assert (Certainty.CERTAIN in certainties) is bool(wanted)


def assert_consists_of_sentences(finding: Finding) -> None:
    for sentence in (finding.message, finding.hint):
        assert sentence.endswith((".", "?")), sentence
        assert sentence[0].isupper() or not sentence[0].isalpha(), sentence
        assert "\n" not in sentence
        assert "  " not in sentence
        assert len(sentence) <= 320


def test_modes_are_the_public_table() -> None:
    actual = {}
    for rule in all_rules():
        sets = (rule.document.modes, *filter(None, [rule.document.likely]))
        actual[rule.id] = " ".join(mode for modes in sets for mode in (modes.standard, modes.strict))
        guards = rule.id == "policy-config-invalid"
        assert rule.mode(Profile.OBSERVE) is (Mode.ENFORCE if guards else Mode.AUDIT)
    assert actual == MODES


def test_only_certain_findings_refuse() -> None:
    for rule in all_rules():
        for profile in Profile:
            for certainty in set(Certainty) - {Certainty.CERTAIN}:
                assert rule.mode(profile, certainty) is not Mode.ENFORCE, (rule.id, profile, certainty)


def test_modes_of_likely_findings_are_written_where_they_differ() -> None:
    """`chassis explain` and the pages show them."""
    for rule in all_rules():
        cases = (Case.read(path) for path in _BY_RULE.get(rule.id, ()))
        likely = any(finding.certainty is Certainty.LIKELY for case in cases for finding in case.expected)
        if likely and rule.mode(Profile.STRICT) is Mode.ENFORCE:
            assert rule.document.likely is not None, rule.id


def test_documentation_is_whole() -> None:
    for rule in all_rules():
        for text in (rule.document.what, rule.document.why, rule.document.remediation):
            assert text.endswith("."), rule.id
            assert "  " not in text, rule.id
        assert rule.document.source, rule.id
        assert rule.document.bad != rule.document.good, rule.id
