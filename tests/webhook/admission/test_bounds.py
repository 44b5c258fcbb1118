"""The budget of a review: parts within it are decided, the rest is admitted unchanged and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from policies.containers import commands
from policies.core.finding import Mode
from policies.kube.group_kinds import kind_of
from policies.kube.json import MAX_LEVELS
from policies.kube.names import listed
from tests.calls import calls
from tests.hostile.objects import HOSTILE, Json, Made, deployment, pod, server
from tests.manifests import manifest
from webhook.admission import engine, messages
from webhook.admission.bounds import MAX_ANNOTATION_LENGTH, MAX_EXEMPTION_LENGTH, STEPS, allowance, bounded
from webhook.admission.decision import MAX_RESULTS, Decision
from webhook.admission.envelope import Request
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster

CONFIG = load({})
NOWHERE = ManifestCluster([])
STEADY = 3
"""How many times more than the object the work may grow: fixed costs count at the small end."""
CALLS = 30
"""Calls of functions, of C functions too, per step of the budget."""
LOCAL: Json = {"httpGet": {"path": "/", "port": 1}, "failureThreshold": 1, "periodSeconds": 60}
EXTERNAL: Json = {**LOCAL, "httpGet": {"path": "/", "port": 1, "host": "db"}, "failureThreshold": 3}
SCRIPT = "if a; then b; fi;" * 450
"""Most of what a review can read."""


def asked(made: Made) -> Request:
    old, new = made if isinstance(made, tuple) else (None, made)
    operation = "CREATE" if old is None else "UPDATE"
    return Request("u", kind_of(new), operation, "ml", object=new, old_object=old, username="ada")


def decided(made: Made) -> tuple[Decision, Decision]:
    request = asked(made)
    return engine.mutate(Review(request, CONFIG, NOWHERE)), engine.validate(Review(request, CONFIG, NOWHERE))


def test_an_object_that_is_nested_too_deeply_is_undecided() -> None:
    """It is what a reader of the cluster leaves of objects that are nested deeper still."""
    inner: Json = {}
    for _ in range(MAX_LEVELS - 3):
        inner = {"a": inner}
    made = pod(server(), unknown=inner)
    assert bounded(made, CONFIG.workloads, allowance()).left_out == ()
    [why] = bounded({**made, "more": [[inner]]}, CONFIG.workloads, allowance()).left_out
    assert why.startswith("the object isn't reviewed: it is nested deeper than 200 levels.")


def work(made: Made) -> tuple[int, Decision, Decision]:
    """Calls of functions, of C functions too, that both halves of a review take, and what these decide."""
    decisions: list[Decision] = []

    def review() -> None:
        decisions.extend(decided(made))
        for decision in decisions:
            messages.respond(decision)

    commands.clear_cache()
    count = calls(review)
    mutated, judged = decisions
    assert [crash.trace for decision in (mutated, judged) for crash in decision.crashes] == []
    return count, mutated, judged


@pytest.mark.parametrize("name", HOSTILE)
def test_work_grows_no_faster_than_the_object_and_what_is_undecided_is_admitted(name: str) -> None:
    make, size = HOSTILE[name]
    at = {each: work(make(each)) for each in (max(1, size // 100), max(1, size // 10), size)}
    (small, *larger) = at
    for each in larger:
        assert at[each][0] <= STEADY * (at[small][0] + 1000) * each / small
        small = each
    assert max(calls for calls, _, _ in at.values()) <= CALLS * STEPS
    for _, mutated, judged in at.values():
        assert_undecided_is_admitted(mutated, judged)


def assert_undecided_is_admitted(mutated: Decision, judged: Decision) -> None:
    """The object is decided, or admitted unchanged and the user learns of it."""
    if not judged.notes or "isn't reviewed" not in judged.notes[0]:
        assert len(judged.results) <= MAX_RESULTS
        return
    assert mutated.patch == ()
    assert judged.allowed
    (note,) = {note for note in judged.notes if "isn't reviewed" in note}
    assert note in " ".join(messages.warnings_of(judged))


def heavy(name: str) -> Json:
    """A container whose command takes more to read than a review can spend."""
    return server(name, command=["sh", "-c", "f(){ g;g; };" + "if a; then b; fi;" * 7000])


def test_a_pod_with_a_command_beyond_the_budget_is_not_changed() -> None:
    mutated, judged = decided(
        pod(server(image="vllm/vllm-openai:v1"), heavy("b"), server("c", livenessProbe=EXTERNAL))
    )
    assert (mutated.object, mutated.patch) == (mutated.object, ())
    assert judged.allowed
    assert judged.results == ()
    assert [note.partition(":")[0] for note in judged.notes] == ["the object isn't reviewed"]


def ray(*templates: Json) -> Json:
    first, *rest = [{"template": {"metadata": {}, "spec": each["spec"]}} for each in templates]
    groups = [{"groupName": f"g{n}", **each} for n, each in enumerate(rest)]
    return manifest("RayCluster", "r", {"headGroupSpec": first, "workerGroupSpecs": groups})


def test_other_templates_are_judged_and_warned_of_at_the_most() -> None:
    bad = pod(server(livenessProbe=EXTERNAL))
    _, judged = decided(ray(bad, pod(heavy("b"))))
    assert [
        (r.rule, r.mode, r.ratcheted) for r in judged.results if r.rule.endswith("external-dependency")
    ] == [("liveness-external-dependency", Mode.WARN, "part of it isn't reviewed")]
    assert not decided(ray(bad))[1].allowed


def test_an_update_pays_for_both_objects_from_one_budget() -> None:
    def half(**fields: Any) -> Json:
        return deployment(
            pod(server(livenessProbe=EXTERNAL, command=["sh", "-c", SCRIPT, fields.get("name", "")]))
        )

    assert not decided(half())[1].allowed
    assert not decided((deployment(pod(server())), half()))[1].allowed
    judged = decided((half(name="old"), half(name="new")))[1]
    assert judged.allowed
    assert {result.ratcheted for result in judged.results if result.ratcheted} == {
        "the previous version is too large to compare"
    }


def test_earlier_readings_do_not_affect_decisions() -> None:
    commands.clear_cache()
    made = deployment(pod(*[server(f"c{n}", command=["sh", "-c", SCRIPT]) for n in range(2)]))
    spent = []
    for _ in range(2):
        given = allowance()
        assert bounded(made, CONFIG.workloads, given).left_out == ()
        spent.append(given.steps.spent)
    assert spent[0] == spent[1]


def test_a_command_is_paid_for_once_a_review() -> None:
    one, many = (
        deployment(pod(*[server(f"c{n}", command=["sh", "-c", SCRIPT]) for n in range(count)]))
        for count in (1, 9)
    )
    spent = []
    for made in (one, many):
        given = allowance()
        assert bounded(made, CONFIG.workloads, given).left_out == ()
        spent.append(given.steps.spent)
    assert spent[1] < 2 * spent[0]


@pytest.mark.parametrize(
    ("key", "most"), [("model-size", MAX_ANNOTATION_LENGTH), ("exempt", MAX_EXEMPTION_LENGTH)], ids=str
)
def test_a_long_annotation_is_not_read(key: str, most: int) -> None:
    made: Callable[[int], Json] = lambda n: deployment(pod(annotations={f"mlchassis.dev/{key}": "x" * n}))  # noqa: E731
    assert bounded(made(most), CONFIG.workloads, allowance()).left_out == ()
    (sentence,) = bounded(made(most + 1), CONFIG.workloads, allowance()).left_out
    assert f"annotation mlchassis.dev/{key} is longer than {most} characters" in sentence


def test_refusals_come_before_other_findings() -> None:
    harmless = [server(f"c{n}", livenessProbe=LOCAL) for n in range(150)]
    _, judged = decided(deployment(pod(*harmless, server("last", livenessProbe=EXTERNAL))))
    assert len(judged.results) == MAX_RESULTS
    assert [result.rule for result in judged.results if result.denies] == ["liveness-external-dependency"]
    assert judged.notes[-1].startswith("50 of ")


def test_a_sentence_names_eight_and_counts_the_others() -> None:
    assert listed("abcdefgh") == "a, b, c, d, e, f, g, h"
    assert listed("abcdefghi") == "a, b, c, d, e, f, g, h and 1 other"
    assert listed(map(str, range(5000))) == "0, 1, 2, 3, 4, 5, 6, 7 and 4,992 others"
    assert len(listed(["x" * 10_000])) == 80


NUMBER = [{"name": "A", "value": 1}]


def test_a_value_of_a_wrong_type_leaves_the_object_undecided() -> None:
    mutated, judged = decided(pod(server(image="vllm/vllm-openai:v1", env=NUMBER)))
    assert mutated.patch == ()
    assert judged.results == ()
    assert mutated.notes == judged.notes
    assert judged.notes == (
        "the object isn't reviewed: spec.containers[0].env[0].value: expected str, got int. "
        "It is neither changed nor refused",
    )


def test_a_wrong_type_outside_the_pod_template_is_found_too() -> None:
    bad = deployment(pod(server(livenessProbe=EXTERNAL)))
    assert not decided(bad)[1].allowed
    bad["spec"]["replicas"] = "3"
    _, judged = decided(bad)
    assert judged.allowed
    assert judged.notes[0].startswith("the object isn't reviewed: spec.replicas: expected int, got str.")


def test_the_path_of_a_wrong_type_is_that_in_the_object() -> None:
    """A kind without a type of its own."""
    template = {"metadata": {}, "spec": {"containers": [server(env=NUMBER)]}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": template}}}
    job = manifest("PyTorchJob", "t", spec, namespace="ml")
    _, judged = decided(job)
    path = "spec.pytorchReplicaSpecs.Worker.template"
    assert judged.notes[0].startswith(
        f"{path} isn't reviewed: {path}.spec.containers[0].env[0].value: expected str, got int."
    )


def test_null_is_absent_in_a_review() -> None:
    made = pod(server(image="nvcr.io/nvidia/tritonserver:24.12-py3", ports=[{"containerPort": 8000}]))
    expected, _ = decided(made)
    assert expected.patch
    made["spec"]["containers"][0] |= {"env": None, "livenessProbe": None, "resources": {"limits": None}}
    mutated, judged = decided(made)
    assert {change["path"] for change in mutated.patch} == {change["path"] for change in expected.patch}
    assert not judged.notes
