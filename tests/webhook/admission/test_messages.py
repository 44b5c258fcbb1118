"""A decision in words: warnings, denials that fit a terminal, audit annotations."""

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from policies.core.contracts import Family
from policies.core.finding import Finding, Mode
from policies.core.reasons import Reasons
from policies.kube.json import Json
from webhook.admission import messages as answer
from webhook.admission.decision import Change, Crash, Decision, Result
from webhook.admission.wrapping import fitted

POD = {"spec": {"containers": [{"name": "api", "volumeMounts": [{"name": "m", "mountPath": "/m"}]}]}}


FINDING = Finding(
    "data[rules.yaml]", "The policy does not load, and that for a long reason.", "Mend the key."
)


def result(
    rule: str = "policy-config-invalid", mode: Mode = Mode.ENFORCE, finding: Finding = FINDING, **changes: Any
) -> Result:
    return Result(rule, finding, mode, **{"family": Family.DEADLOCK, **changes})


def add(path: str, value: object = 1) -> Json:
    return {"op": "add", "path": path, "value": value}


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([add("/spec/containers/0/livenessProbe")], "spec.containers[api].livenessProbe"),
        (
            [add("/spec/containers/0/livenessProbe"), add("/spec/containers/0/startupProbe")],
            "spec.containers[api].{livenessProbe, startupProbe}",
        ),
        ([add("/spec/containers/1", {"name": "puller"})], "spec.containers[puller]"),
        (
            [add("/spec/containers/0/volumeMounts/1", {"mountPath": "/x"})],
            "spec.containers[api].volumeMounts[/x]",
        ),
        ([add("/spec/tolerations", [])], "spec.tolerations"),
        ([add("/metadata/labels/k8s.io~1x", "y")], "metadata.labels[k8s.io/x]"),
        ([add("/x/0")], "x.0"),
        ([add("/spec/containers/7/a")], "spec.containers[7].a"),
    ],
)
def test_a_change_names_its_fields(operations: list[Json], said: str) -> None:
    assert answer.places(Change("p", Mode.ENFORCE, operations, POD)) == [said]


@pytest.mark.parametrize(
    ("mode", "template", "said"),
    [
        (Mode.ENFORCE, "", "p added spec.tolerations"),
        (Mode.WARN, "", "p would add spec.tolerations"),
        (Mode.ENFORCE, "spec.template", "p will add to the pods spec.tolerations"),
    ],
)
def test_the_words_of_a_change_depend_on_its_mode(mode: Mode, template: str, said: str) -> None:
    assert answer.describe(Change("p", mode, [add("/spec/tolerations", [])], POD, template)) == said


def changed(*given: tuple[str, str], mode: Mode = Mode.ENFORCE, **other: Any) -> Change:
    reasons = Reasons("p")
    for path, words in given:
        reasons.give(path, words)
    return Change("p", mode, [add("/spec/tolerations", [])], POD, reasons=reasons, **other)


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ([("spec.containers[a].startupProbe", "60 min")], "p added startupProbe: 60 min"),
        (
            [("spec.containers[a].startupProbe", "60 min"), ("spec.containers[b].startupProbe", "2 min")],
            "p added startupProbe: 60 min",
        ),
        (
            [("spec.tolerations[a.b/c]", "x"), ("metadata.annotations[a.b/d]", "y")],
            "p added tolerations, a.b/d; tolerations: x",
        ),
        (
            [("spec.tolerations[a.b/c]", "x"), ("metadata.annotations[a.b/d]", "x")],
            "p added tolerations, a.b/d: x",
        ),
        (
            [("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", "x")],
            "p added nodeAffinity: x",
        ),
        ([("spec.initContainers[model-puller]", "x")], "p added model-puller: x"),
        ([], "p added spec.tolerations"),
    ],
)
def test_a_warning_has_the_added_fields_and_the_first_reason_with_its_field(
    reasons: list[tuple[str, str]], said: str
) -> None:
    assert answer.warning_line(changed(*reasons)) == said


def test_a_long_reason_is_not_cut_within_a_sentence() -> None:
    why = ", ".join(["three times the 38 min that 150 GB take at 64 MiB/s"] * 5)
    line = answer.warning_line(changed(("spec.containers[a].startupProbe", why)))
    assert line == f"p added startupProbe: {why}"
    assert " ".join(" ".join(fitted([line])).split()) == line


def test_an_update_has_only_the_new_changes() -> None:
    reasons = [("spec.a", "x"), ("spec.b", "y")]
    known = frozenset(reasons[:1])
    assert answer.warning_line(changed(*reasons, known=known)) == "p added b: y"
    assert answer.warning_line(changed(*reasons, known=frozenset(reasons))) == ""


def test_warnings_about_added_fields_can_be_off() -> None:
    decision = Decision({}, changes=(changed(("spec.a", "x")),))
    assert list(answer.warnings_of(decision)) == ["p added a: x"]
    assert list(answer.warnings_of(replace(decision, lists_changes=False))) == []
    assert set(answer.audit_of(replace(decision, lists_changes=False))) == {"mutations"}


def test_a_denial_lists_every_finding_and_fits_a_terminal() -> None:
    response = answer.respond(
        Decision({}, results=(result(), result("worker-names"), result(mode=Mode.WARN)))
    )
    assert response.status is not None
    assert (response.status.code, response.status.reason) == (403, "Forbidden")
    message = response.status.message
    assert message.startswith("2 findings\n")
    assert all(len(line) <= 80 for line in message.splitlines())
    for expected in (
        "1. policy-config-invalid\n   at data[rules.yaml]\n   The policy does not load",
        "   Fix: Mend the key.",
        "   See: chassis explain policy-config-invalid\n",
        '  mlchassis.dev/exempt: "<rule>=<reason>; <rule>=<reason>"',
    ):
        assert expected in message
    assert len(response.warnings) == 1


@pytest.mark.parametrize("exemptable", [True, False])
def test_a_denial_shows_the_way_out_where_there_is_one(exemptable: bool) -> None:
    message = answer.denial(Decision({}, results=(result("tcp-probe", exemptable=exemptable),)))
    assert ('  mlchassis.dev/exempt: "tcp-probe=<reason>"' in message) is exemptable


def test_published_docs_are_linked() -> None:
    decision = Decision({}, results=(result(),), docs_url="https://docs.example/chassis/")
    assert "https://docs.example/chassis/rules/policy-config-invalid.md" in answer.denial(decision)


def test_warnings_cite_published_docs_only() -> None:
    found = (result("tcp-probe", mode=Mode.WARN, family=Family.CASCADE),)
    published = Decision({}, results=found, docs_url="https://docs.example/chassis")
    (cited,), (plain,) = answer.warnings_of(published), answer.warnings_of(Decision({}, results=found))
    assert cited == f"{plain} See https://docs.example/chassis/rules/tcp-probe.md"


def test_a_denial_fits_a_condition_of_the_controller_that_meets_it() -> None:
    refused = (
        result("tcp-probe", finding=Finding(f"spec[{n}]", f"Reason {n}.", "Fix.")) for n in range(1000)
    )
    message = answer.denial(Decision({}, results=tuple(refused)))
    assert message.startswith("1000 findings\n")
    assert len(message) <= 32_768
    *_, last, rest, way_out = message.split("\n\n")
    number = int(last.split(".")[0])
    assert rest == f"and {1000 - number} more: chassis review lists them"
    assert "mlchassis.dev/exempt" in way_out


def test_a_denial_because_of_a_crash_names_it() -> None:
    decision = Decision({}, crashes=(Crash("tcp-probe", "KeyError: 'x'", "", denies=True),))
    assert not decision.allowed
    assert "tcp-probe: the rule failed (KeyError: 'x')" in answer.denial(decision)


def test_warnings_carry_rule_why_how_and_where() -> None:
    spared = result(mode=Mode.WARN, ratcheted="the object already had it before this update")
    (said,) = answer.warnings_of(Decision({}, results=(spared,)))
    assert said == (
        "policy-config-invalid: The policy does not load, and that for a long reason. Mend the key. "
        "(data[rules.yaml]) Not refused: the object already had it before this update."
    )


def test_what_a_controller_makes_has_no_reader_for_warnings() -> None:
    change = Change("p", Mode.ENFORCE, [add("/a")], {})
    decision = Decision({}, changes=(change,), results=(result(mode=Mode.WARN),), owned=True)
    assert list(answer.warnings_of(decision)) == []
    assert set(answer.audit_of(decision)) == {"findings", "mutations"}


def test_audit_and_exempted_findings_are_only_in_the_audit() -> None:
    decision = Decision({}, results=(result(mode=Mode.AUDIT), result(exempted="old")))
    response = answer.respond(decision)
    assert response.allowed
    assert list(response.warnings) == []
    assert orjson.loads(response.audit["exemptions"]) == [
        {"rule": "policy-config-invalid", "path": "data[rules.yaml]", "reason": "old"}
    ]
    assert orjson.loads(response.audit["findings"])[0]["mode"] == "audit"


def test_an_audit_annotation_stays_small() -> None:
    audit = answer.audit_of(Decision({}, results=(result(),) * 1000))
    assert len(audit["findings"]) < 17_000
    listed = orjson.loads(audit["findings"])
    assert listed[-1] == {"more": 1000 - (len(listed) - 1)}


def test_a_long_reason_does_not_hide_its_exemption_from_the_audit() -> None:
    audit = answer.audit_of(Decision({}, results=(result(exempted="because " * 10_000),)))
    (listed,) = orjson.loads(audit["exemptions"])
    assert listed["rule"] == "policy-config-invalid"
    assert listed["reason"].startswith("because because")
    assert len(listed["reason"]) == 1024


def test_a_finding_of_several_templates_is_one_warning_and_one_refusal() -> None:
    first, second, other = (result(mode=Mode.WARN) for _ in range(3))
    second = replace(second, finding=replace(second.finding, path="data[jobs.yaml]"))
    other = replace(other, finding=replace(other.finding, message="Another reason."))
    warnings = list(answer.warnings_of(Decision({}, results=(first, second, other))))
    assert [each.count("(data[rules.yaml], and 1 more)") for each in warnings] == [1, 0]
    denied = answer.denial(
        Decision({}, results=tuple(replace(each, mode=Mode.ENFORCE) for each in (first, second)))
    )
    assert denied.startswith("1 finding\n")
    assert "   at data[rules.yaml]\n   at data[jobs.yaml]\n" in denied
    many = answer.denial(Decision({}, results=tuple(result() for _ in range(1000))))
    assert many.count("   at data[rules.yaml]\n") == 5
    assert "   and 995 more\n" in many
