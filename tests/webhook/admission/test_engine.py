"""The decision: folding, judging, and never turning a risk into an outage.

The policies and rules here are toys, so that the test covers the engine and not an opinion.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from policies.core import registry
from policies.core.contracts import Family, Modes, Mutator, Rule, RuleDocument
from policies.core.facts import Facts, NoCluster
from policies.core.finding import Certainty, Finding, Mode
from policies.core.reasons import NO_REASONS, Reasons
from policies.core.settings import Settings
from policies.core.target import Target
from policies.kube.group_kinds import POD
from policies.kube.json import Json, dig, replaced, text
from policies.kube.pods import Role
from tests.calls import calls
from tests.manifests import manifest
from webhook.admission.configuration import Config
from webhook.admission.decision import MAX_RESULTS, Decision
from webhook.admission.engine import decide, mutate, validate
from webhook.admission.envelope import Request
from webhook.admission.messages import warnings_of
from webhook.admission.review import Review
from webhook.admission.scope import out_of_scope
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document


class Label(Settings):
    """Key `label.yaml`."""

    value: str = "on"


class Seen(Settings):
    """Key `seen.yaml`."""


def label(pod: Json, settings: Label, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    path = ("metadata", "labels", "chassis")
    return pod if dig(pod, *path) is not None else replaced(pod, path, settings.value)


def seen(pod: Json, settings: Seen, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    if text(pod, "metadata", "labels", "crash"):
        raise RuntimeError("toy")
    done = text(pod, "metadata", "annotations", "seen")
    return (
        pod
        if done
        else replaced(pod, ("metadata", "annotations", "seen"), repr(pod["metadata"].get("labels")))
    )


def advise(pod: Json, settings: Seen, facts: Facts) -> Iterator[Finding]:
    if text(pod, "metadata", "labels", "advise"):
        yield Finding("spec", "Mind this.", "Do that.")


def no_bad_images(target: Target, facts: Facts) -> Iterable[Finding]:
    for template in target.templates:
        if text(template.pod, "metadata", "labels", "crash"):
            raise RuntimeError("toy")
        for container in template.containers(Role.MAIN):
            if container.image.startswith("bad"):
                certainty = Certainty.LIKELY if "maybe" in container.image else Certainty.CERTAIN
                yield Finding(
                    template.at(container, "image"), f"{container.image} is bad.", "Take another.", certainty
                )


def replicas_odd(target: Target, facts: Facts) -> Iterable[Finding]:
    if target.spec.get("replicas", 1) % 2 == 0:
        yield Finding("spec.replicas", "Even.", "Make it odd.")


def toy_rule(name: str, check: Any, **changes: Any) -> Rule:
    modes = Modes(standard=changes.pop("standard", Mode.ENFORCE), strict=Mode.ENFORCE)
    words: dict[str, Any] = dict.fromkeys(("what", "why", "remediation", "source", "bad", "good"), "-")
    family = changes.pop("family", Family.CASCADE)
    document = RuleDocument(family=family, modes=modes, **words, **changes)
    return Rule(name, check, None, lambda: document)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {
        "label": Mutator("label", Label, mutate=label, kinds=(POD,)),
        "seen": Mutator("seen", Seen, mutate=seen, advise=advise, kinds=(POD,), after=("label",)),
    }
    rules = {
        rule.id: rule
        for rule in (
            toy_rule("no-bad-images", no_bad_images, likely=Modes(standard=Mode.WARN, strict=Mode.ENFORCE)),
            toy_rule("replicas-odd", replicas_odd, standard=Mode.WARN),
        )
    }
    monkeypatch.setattr(registry, "mutators", lambda: policies)
    monkeypatch.setattr(registry, "rules", lambda: rules)


def pod(*images: str, **metadata: Any) -> Json:
    containers = [{"name": f"c{n}", "image": image} for n, image in enumerate(images or ("good",))]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {}} | metadata,
        "spec": {"containers": containers, "futureField": {"kept": True}},
    }


def deployment(*images: str, template: Json | None = None, replicas: int = 1, **metadata: Any) -> Json:
    made = pod(*images)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"} | metadata,
        "spec": {"replicas": replicas, "template": {"metadata": template or {}, "spec": made["spec"]}},
    }


def request(obj: Json, old: Json | None = None, **changes: Any) -> Request:
    made = Document("x", 0, obj).request("CREATE" if old is None else "UPDATE", old)
    return dataclasses.replace(made, **changes)


def judged(obj: Json, old: Json | None = None, policy: dict[str, str] | None = None) -> Decision:
    return decide(Review(request(obj, old), load(policy or {}), NoCluster()))


def test_a_rule_that_judges_the_object_above_is_not_called_for_what_a_controller_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = replace(toy_rule("no-bad-images", no_bad_images), unowned=True)
    monkeypatch.setattr(registry, "rules", lambda: {rule.id: rule})
    owner = [{"kind": "Operator", "name": "o", "controller": True}]
    assert [each.rule for each in judged(deployment("bad")).results] == [rule.id]
    assert judged(deployment("bad", ownerReferences=owner)).results == ()


# --- mutation ------------------------------------------------------------------------------------


def test_each_mutation_sees_the_one_before() -> None:
    given = pod()
    decision = mutate(Review(request(given), Config(), NoCluster()))
    assert [change.mutator for change in decision.changes] == ["label", "seen"]
    assert decision.object["metadata"]["annotations"]["seen"] == "{'chassis': 'on'}"
    assert decision.object["spec"] is given["spec"]
    assert [op["path"] for op in decision.patch] == ["/metadata/labels/chassis", "/metadata/annotations"]


def test_a_second_pass_changes_nothing() -> None:
    once = mutate(Review(request(pod()), Config(), NoCluster())).object
    assert mutate(Review(request(once), Config(), NoCluster())).patch == []


@pytest.mark.parametrize(("mode", "recorded"), [("warn", True), ("audit", True), ("off", False)])
def test_only_enforce_changes_the_object(mode: str, recorded: bool) -> None:
    config = load({"label.yaml": f"mode: {mode}", "seen.yaml": "mode: off"})
    decision = mutate(Review(request(pod()), config, NoCluster()))
    assert decision.patch == []
    assert [(change.mutator, change.mode) for change in decision.changes] == [("label", mode)] * recorded


def test_a_crash_stays_in_its_policy() -> None:
    decision = mutate(Review(request(pod(labels={"crash": "yes"})), Config(), NoCluster()))
    assert [op["path"] for op in decision.patch] == ["/metadata/labels/chassis"]
    assert [(crash.id, crash.error) for crash in decision.crashes] == [("seen", "RuntimeError: toy")]
    assert "test_engine" in decision.crashes[0].trace
    assert decision.allowed


def test_advice_is_a_warning_at_most() -> None:
    decision = mutate(Review(request(pod(labels={"advise": "yes"})), Config(), NoCluster()))
    assert [(v.rule, v.mode) for v in decision.results] == [("seen", Mode.WARN)]


def test_advice_at_both_endpoints_cites_published_docs() -> None:
    config = load({"webhook.yaml": "docsUrl: https://docs.example/chassis"})
    advised = {"advise": "yes"}
    for decision in (
        mutate(Review(request(pod(labels=advised)), config, NoCluster())),
        validate(Review(request(deployment(template={"labels": advised})), config, NoCluster())),
    ):
        cited = "See https://docs.example/chassis/policies.md#seen"
        assert [warning for warning in warnings_of(decision) if "Mind this." in warning and cited in warning]


def test_a_policy_can_be_exempted_with_a_reason() -> None:
    annotations = {"mlchassis.dev/exempt": "label=we set our own"}
    decision = mutate(Review(request(pod(annotations=annotations)), Config(), NoCluster()))
    assert [change.mutator for change in decision.changes] == ["seen"]
    assert [(v.rule, v.exempted) for v in decision.results] == [("label", "we set our own")]


def test_an_update_changes_only_the_kinds_that_a_policy_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutate(Review(request(pod(), pod()), Config(), NoCluster())).patch == ()
    toys = registry.mutators()
    updating = replace(toys["label"], on_update=(POD,))
    monkeypatch.setattr(registry, "mutators", lambda: {**toys, "label": updating})
    decision = mutate(Review(request(pod(), pod()), Config(), NoCluster()))
    assert [change.mutator for change in decision.changes] == ["label"]


@pytest.mark.parametrize(
    "changes",
    [
        {"subresource": "status"},
        {"operation": "DELETE", "object": None},
        {"namespace": "kube-system"},
        {"object": pod("bad", deletionTimestamp="2026-01-01T00:00:00Z")},
        {"object": pod("bad", annotations={"kubernetes.io/config.mirror": "0a1b"})},
    ],
)
def test_objects_out_of_scope_are_admitted(changes: dict[str, Any]) -> None:
    decision = decide(Review(request(pod("bad"), **changes), Config(), NoCluster()))
    assert decision.allowed
    assert decision.patch == ()
    assert not decision.results


# --- judgement -----------------------------------------------------------------------------------


def test_all_findings_are_collected() -> None:
    decision = judged(deployment("bad1", "good", "bad2", replicas=2))
    assert [(v.rule, v.finding.path, v.mode) for v in decision.results] == [
        ("no-bad-images", "spec.template.spec.containers[0].image", Mode.ENFORCE),
        ("no-bad-images", "spec.template.spec.containers[2].image", Mode.ENFORCE),
        ("replicas-odd", "spec.replicas", Mode.WARN),
    ]
    assert not decision.allowed


def test_certainty_caps_the_mode() -> None:
    assert judged(pod("bad-maybe")).allowed
    assert not judged(pod("bad-maybe"), policy={"rules.yaml": "profile: strict"}).allowed


def test_off_is_silent_and_audit_is_not_a_refusal() -> None:
    assert judged(pod("bad"), policy={"rules.yaml": "modes: {no-bad-images: off}"}).results == ()
    audit = judged(pod("bad"), policy={"rules.yaml": "profile: observe"})
    assert audit.allowed
    assert [v.mode for v in audit.results] == [Mode.AUDIT]


@pytest.mark.parametrize(("on_error", "allowed"), [("allow", True), ("deny", False)])
def test_a_crashing_rule_is_answered_by_on_error(on_error: str, allowed: bool) -> None:
    decision = judged(pod("bad", labels={"crash": "yes"}), policy={"webhook.yaml": f"onError: {on_error}"})
    assert decision.allowed is allowed
    assert "no-bad-images" in {crash.id for crash in decision.crashes}


def test_a_workload_is_judged_by_the_pods_it_will_make() -> None:
    given = deployment()
    decision = judged(given)
    assert not decision.patch
    assert decision.object is given
    assert decision.projected is not None
    template = decision.projected["spec"]["template"]
    assert template["metadata"]["labels"] == {"chassis": "on"}
    assert "ownerReferences" not in template["metadata"]
    assert {change.template for change in decision.changes} == {"spec.template"}


def test_advice_about_the_pods_is_given_at_their_workload() -> None:
    decision = judged(deployment(template={"labels": {"advise": "yes"}}))
    assert [(v.rule, v.finding.path, v.mode) for v in decision.results] == [
        ("seen", "spec.template.spec", Mode.WARN)
    ]


def test_advice_gives_way_to_a_rule_that_speaks_of_the_same_place() -> None:
    decision = judged(deployment("bad", template={"labels": {"advise": "yes"}}))
    assert [v.rule for v in decision.results] == ["no-bad-images"]


def test_a_policy_exempted_in_the_template_is_listed_there() -> None:
    mark = {"annotations": {"mlchassis.dev/exempt": "label=ours"}}
    decision = judged(deployment(template=mark))
    assert [(v.rule, v.finding.path, v.exempted) for v in decision.results] == [
        ("label", "spec.template.metadata.annotations[mlchassis.dev/exempt]", "ours")
    ]


def test_ray_templates_are_not_projected() -> None:
    ray = manifest("RayCluster", "r", {"headGroupSpec": {"template": {"spec": pod("bad")["spec"]}}})
    decision = judged(ray)
    assert decision.projected is None
    assert [v.finding.path for v in decision.results] == [
        "spec.headGroupSpec.template.spec.containers[0].image"
    ]


# --- exemptions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["object", "template"])
def test_an_exemption_lets_in_and_is_kept(where: str) -> None:
    mark = {"annotations": {"mlchassis.dev/exempt": "no-bad-images = legacy; replicas-odd=two zones"}}
    obj = (
        deployment("bad", replicas=2, **mark)
        if where == "object"
        else deployment("bad", template=mark, replicas=2)
    )
    decision = judged(obj)
    assert decision.allowed
    assert {v.rule: v.exempted for v in decision.results} == {
        "no-bad-images": "legacy",
        "replicas-odd": "two zones",
    }


@pytest.mark.parametrize(
    ("written", "policy", "note"),
    [
        ("no-bad-images", "", "the reason is missing"),
        ("no-bad-images= ", "", "the reason is missing"),
        ("no-bad-image=x", "", "there is no rule or policy 'no-bad-image'; did you mean no-bad-images?"),
        ("device-claim-shared=x", "", "the rule device-claim-shared was removed. Pods that must run on"),
        ("no-bad-images=please", "exemptions: {forbidden: ['no-*']}", "can't be exempted here"),
    ],
)
def test_an_invalid_exemption_is_reported(written: str, policy: str, note: str) -> None:
    exempted = pod("bad", annotations={"mlchassis.dev/exempt": written})
    decision = judged(exempted, policy={"webhook.yaml": policy})
    assert not decision.allowed
    assert any(note in each for each in decision.notes)


def test_only_one_template_of_several_is_exempted() -> None:
    def group(image: str, **metadata: Any) -> Json:
        return {"template": {"metadata": metadata, "spec": pod(image)["spec"]}}

    mark = {"annotations": {"mlchassis.dev/exempt": "no-bad-images=old"}}
    ray = manifest(
        "RayCluster", "r", {"headGroupSpec": group("bad", **mark), "workerGroupSpecs": [group("bad")]}
    )
    assert [v.exempted for v in judged(ray).results] == ["old", None]


def test_the_work_grows_with_the_object_and_not_with_its_square() -> None:
    def work(groups: int) -> int:
        mark = {"annotations": {"mlchassis.dev/exempt": "replicas-odd=old"}, "labels": {"advise": "yes"}}
        template = {"template": {"metadata": mark, "spec": pod("bad")["spec"]}}
        jobs = [{"name": f"j{n}", "template": {"spec": template}} for n in range(groups)]
        jobset = {"apiVersion": "jobset.x-k8s.io/v1", "kind": "JobSet", "spec": {"replicatedJobs": jobs}}
        decisions: list[Decision] = []
        count = calls(lambda: decisions.append(validate(Review(request(jobset), load({}), NoCluster()))))
        assert len(decisions[0].results) == min(groups, MAX_RESULTS)
        return count

    assert work(100) < 5 * work(25)


# --- never turn a risk into an outage --------------------------------------------------------------


OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "d-1", "uid": "u", "controller": True}
CRASHING: Json = {"labels": {"crash": "yes"}}


@pytest.mark.parametrize(
    ("new", "old", "policy"),
    [
        (pod(ownerReferences=[OWNER], **CRASHING), None, ""),
        (deployment(template=CRASHING, labels={"a": "b"}), deployment(template=CRASHING), ""),
        (deployment("good:2", template=CRASHING), deployment("good:1", template=CRASHING), ""),
        (pod(**CRASHING), None, "profile: observe"),
        (pod(**CRASHING), None, "modes: {no-bad-images: warn}"),
        (pod(annotations={"mlchassis.dev/exempt": "no-bad-images=known"}, **CRASHING), None, ""),
    ],
    ids=["owned", "metadata", "crashed-before", "observe", "warn", "exempted"],
)
def test_a_crash_refuses_nothing_that_its_rule_could_not(new: Json, old: Json | None, policy: str) -> None:
    files = {"webhook.yaml": "onError: deny", "rules.yaml": policy}
    decision = judged(new, old, policy=files)
    assert "no-bad-images" in {crash.id for crash in decision.crashes}
    assert decision.allowed


def test_an_update_that_brings_a_crash_is_refused_with_on_error_deny() -> None:
    new = deployment(template=CRASHING)
    assert not judged(new, deployment(), policy={"webhook.yaml": "onError: deny"}).allowed


WARNED, REFUSED = (Mode.WARN, "the object already had it before this update"), (Mode.ENFORCE, "")


@pytest.mark.parametrize(
    ("old", "new", "results"),
    [
        (("bad", "good:1"), ("bad", "good:2"), [WARNED]),
        (("bad", "good"), ("bad", "bad:2"), [WARNED, REFUSED]),
        (("bad:1",), ("bad:2",), [REFUSED]),
    ],
    ids=["old finding", "new finding", "a hazard replaced by another"],
)
def test_an_update_is_refused_only_for_new_findings(
    old: tuple[str, ...], new: tuple[str, ...], results: list[tuple[Mode, str]]
) -> None:
    decision = judged(deployment(*new), deployment(*old))
    assert [(v.mode, v.ratcheted) for v in decision.results] == results
    assert decision.allowed is (REFUSED not in results)


def test_a_container_put_in_front_makes_nothing_new() -> None:
    old, new = deployment("bad"), deployment("good", "bad")
    for number, name in enumerate(("first", "c0")):
        new["spec"]["template"]["spec"]["containers"][number]["name"] = name
    assert judged(new, old).allowed


def test_findings_come_family_by_family_in_alphabetical_order(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = lambda target, facts: [Finding("spec", "2", ""), Finding("spec", "1", "")]  # noqa: E731
    for name, family in (("a", Family.JOBS), ("d", Family.DEADLOCK), ("c", Family.DEADLOCK)):
        monkeypatch.setitem(registry.rules(), name, toy_rule(name, twice, family=family))
    found = [(result.rule, result.finding.message) for result in judged(deployment(replicas=2)).results]
    in_order = [
        ("c", "2"),
        ("c", "1"),
        ("d", "2"),
        ("d", "1"),
        ("replicas-odd", "Even."),
        ("a", "2"),
        ("a", "1"),
    ]
    assert found == in_order


@pytest.mark.parametrize("change", ["metadata", "status", "replicas"])
def test_updates_outside_of_the_spec_are_never_refused(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = deployment("bad"), deployment("bad", replicas=3 if change == "replicas" else 1)
    if change == "metadata":
        old["metadata"]["annotations"] = {"mlchassis.dev/exempt": "no-bad-images=once"}
    if change == "status":
        new["status"] = {"replicas": 1}
    # Even a rule that finds something else each time does not matter here.
    count = iter(range(9))
    check = lambda target, facts: [Finding("spec", f"No. {next(count)}", "")]  # noqa: E731
    monkeypatch.setitem(registry.rules(), "no-bad-images", toy_rule("no-bad-images", check))
    decision = judged(new, old)
    assert decision.allowed
    assert decision.results[0].ratcheted == "the update leaves the spec as it was"


# --- facts ---------------------------------------------------------------------------------------


def test_unknown_namespace_labels_never_lead_to_a_denial() -> None:
    policy = {"webhook.yaml": "overrides: [{namespaceSelector: {matchLabels: {a: b}}, profile: observe}]"}
    assert judged(pod("bad"), policy=policy).allowed
    namespace = manifest("Namespace", "default", labels={"a": "c"})
    known = decide(Review(request(pod("bad")), load(policy), ManifestCluster([namespace])))
    assert not known.allowed


def test_the_webhooks_own_policy_is_looked_at_in_its_own_namespace() -> None:
    config_map = manifest(
        "ConfigMap",
        "p",
        data={"rules.yaml": "profile: stern"},
        namespace="mlchassis-system",
        labels={"mlchassis.dev/policy": "true"},
    )
    assert not out_of_scope(request(config_map), Config())


def test_validate_does_not_mutate_a_pod() -> None:
    decision = validate(Review(request(pod("bad")), Config(), NoCluster()))
    assert decision.changes == ()
    assert not decision.allowed


# --- who asks ------------------------------------------------------------------------------------

CONTROLLERS = [
    "system:serviceaccount:kube-system:replicaset-controller",
    "system:kube-controller-manager",
    "system:serviceaccount:ray:kuberay-operator",
]
NODE: dict[str, Any] = {"username": "system:node:n1", "groups": ("system:nodes", "system:authenticated")}
ADA: dict[str, Any] = {"username": "ada", "groups": ("system:authenticated",)}


def asked(obj: Json, old: Json | None = None, policy: str = "", **account: Any) -> Decision:
    return decide(Review(request(obj, old, **account), load({"webhook.yaml": policy}), NoCluster()))


@pytest.mark.parametrize("username", ["", *CONTROLLERS])
def test_what_a_controllers_account_makes_for_its_owner_is_never_refused(username: str) -> None:
    decision = asked(pod("bad", ownerReferences=[OWNER]), username=username)
    assert decision.allowed
    assert decision.owned
    assert [(result.mode, result.ratcheted) for result in decision.results] == [
        (Mode.WARN, "it belongs to a ReplicaSet, and its replacement is never refused")
    ]


NO_CONTROLLER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}


@pytest.mark.parametrize(
    ("username", "owners"),
    [
        *(
            (username, [OWNER])
            for username in ("ada", "system:admin", "kubernetes-admin", "system:anonymous")
        ),
        (CONTROLLERS[0], []),
        (CONTROLLERS[0], [NO_CONTROLLER]),
        ("", [NO_CONTROLLER]),
    ],
)
def test_an_object_without_owner_or_controllers_account_is_refused(username: str, owners: list[Json]) -> None:
    decision = asked(pod("bad", ownerReferences=owners), username=username)
    assert not decision.allowed
    assert not decision.owned


def test_an_owner_that_a_person_patches_in_with_a_hazard_spares_nothing() -> None:
    new = deployment("bad", ownerReferences=[OWNER])
    assert not asked(new, deployment("good"), **ADA).allowed
    assert asked(deployment("good", ownerReferences=[OWNER]), deployment("good"), **ADA).allowed


def test_further_accounts_can_be_named_as_controllers() -> None:
    owned = pod("bad", ownerReferences=[OWNER])
    assert asked(owned, policy="controllers: ['operator-*']", username="operator-7").allowed
    assert not asked(owned, policy="controllers: ['operator-*']", **ADA).allowed


@pytest.mark.parametrize(
    ("account", "looked_at"),
    [
        (NODE, False),
        ({"username": ""}, False),
        (ADA, True),
        ({"username": "system:node:n1", "groups": ("system:authenticated",)}, True),
        ({"username": "system:serviceaccount:ml:builder"}, True),
    ],
)
def test_the_mark_of_a_mirror_pod_counts_where_a_node_sets_it(
    account: dict[str, Any], looked_at: bool
) -> None:
    marked = pod("bad", annotations={"kubernetes.io/config.mirror": "x"})
    decision = asked(marked, **account)
    assert decision.allowed is not looked_at
    assert bool(decision.patch) is looked_at


def test_a_deleted_object_cannot_be_created() -> None:
    dying = pod("bad", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not asked(dying, **ADA).allowed
    assert asked(dying).allowed  # offline: an object as it is in a cluster
    assert asked(deployment("bad", deletionTimestamp="2026-01-01T00:00:00Z"), deployment(), **ADA).allowed


@pytest.mark.parametrize(("old", "allowed"), [("bad-maybe", False), ("bad-other", True), ("good", False)])
def test_an_old_suspicion_does_not_excuse_a_certain_finding(
    old: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script that asks `$H`, and an update that gives H a value: the command stays as it was."""

    def check(target: Target, facts: Facts) -> Iterable[Finding]:
        image = target.templates[0].spec["containers"][0]["image"]
        if image.startswith("bad"):
            certainty = Certainty.UNDECIDED if "maybe" in image else Certainty.CERTAIN
            yield Finding("spec.selector", image, "", certainty)

    monkeypatch.setitem(registry.rules(), "no-bad-images", toy_rule("no-bad-images", check))
    assert judged(deployment("bad"), deployment(old)).allowed is allowed


def job(**spec: Any) -> Json:
    template = {"spec": {**pod("bad")["spec"], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": template, **spec},
    }


def test_the_room_for_pods_that_are_created_later_or_elsewhere_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = msgspec.structs.replace(toy_rule("no-bad-images", no_bad_images), at_once=True)
    monkeypatch.setitem(registry.rules(), rule.id, rule)
    assert not judged(job()).allowed
    assert not judged(job(suspend=False, managedBy="kubernetes.io/job-controller")).allowed
    [warned] = judged(job(suspend=True)).results
    assert warned.mode is Mode.WARN
    assert list(judged(job(managedBy="kueue.x-k8s.io/multikueue")).results) == []


def test_an_update_that_starts_a_suspended_workload_is_not_refused_for_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = msgspec.structs.replace(toy_rule("no-bad-images", no_bad_images), at_once=True)
    monkeypatch.setitem(registry.rules(), rule.id, rule)
    assert judged(job(suspend=False), job(suspend=True)).allowed
