"""Startup budgets from observed starts."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.pod_templates import pod_templates
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.settings import Model, default_settings
from policies.core.target import Target
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from policies.kube.pods import Container, containers
from policies.probes.observed import place_of, run_of, trimmed
from policies.probes.rules import startup_kills_slow_start
from policies.probes.standard_probes import mutate
from policies.probes.standard_probes_settings import Learning, StandardProbes
from policies.probes.startup_budget import StartupBudget, budget_of, expected_start, start_of
from tests.tables import table

LLAMA = "meta-llama/Llama-3.1-70B-Instruct"


def pod(volumes: tuple[Json, ...] = (), **container: Any) -> Json:
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/{volume['name']}"} for volume in volumes]
    server = {
        "name": "server",
        "image": "vllm/vllm-openai:v0.9.1",
        "args": [LLAMA],
        "volumeMounts": mounts,
        **container,
    }
    owner = {"kind": "ReplicaSet", "name": "llm-5d4f", "controller": True}
    metadata = {"labels": {"pod-template-hash": "5d4f"}, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"containers": [server], "volumes": list(volumes)}}


def only(of: Json) -> Container:
    return next(iter(containers(of)))


class Seen:
    """A cluster in which starts of one pod were seen."""

    def __init__(
        self,
        of: Json,
        basis: tuple[int, int],
        killed: int = 0,
        namespace: str = "default",
        workload: str = "Deployment/llm",
    ) -> None:
        key = f"{workload}/server@{run_of(of, only(of), 0)}"
        found = trimmed(namespace, json.dumps({key: {"basis": basis, "killed": killed}}))
        self._namespace, self._found = namespace, Listing([found] if found else [])

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        if resource is not Resource.OBSERVED:
            return None
        return self._found if namespace == self._namespace else Listing()


def facts(seen: Seen, **settings: Any) -> Facts:
    def lookup(model: type[Model], /) -> Any:
        return StandardProbes(**settings) if model is StandardProbes else default_settings(model)

    return Facts("default", seen, lookup)


def budget(of: Json, seen: Seen, **settings: Any) -> StartupBudget:
    return budget_of(PodView(of), only(of), facts(seen, **settings))


ESTIMATED = budget_of(PodView(pod()), only(pod()), Facts()).seconds
ESTIMATE = "140 GB at 64 MiB/s"


@pytest.mark.parametrize(
    ("seen", "settings", "seconds", "reason"),
    [
        (Seen(pod(), (312, 41)), {}, 936, "the slowest of 41 observed starts"),
        (Seen(pod(), (12, 7)), {}, 600, "the slowest of 7 observed starts"),
        (Seen(pod(), (12, 7)), {"least_learned": 120}, 120, "the slowest of 7 observed starts"),
        (Seen(pod(), (100_000, 6), killed=90_000), {}, 300_000, "the slowest of 6 observed starts"),
        (Seen(pod(), (312, 4)), {}, ESTIMATED, ESTIMATE),
        (Seen(pod(), (312, 41)), {"learning": Learning.OFF}, ESTIMATED, ESTIMATE),
        (Seen(pod(), (312, 41), namespace="other"), {}, ESTIMATED, ESTIMATE),
        (Seen(pod(), (312, 41), killed=900), {}, ESTIMATED, ESTIMATE),
        (Seen(pod(), (1, 6), workload="Pod/forged"), {}, ESTIMATED, ESTIMATE),
        (Seen(pod(), (9_000, 6), workload="Pod/x"), {}, 27_000, "the slowest of 6 observed starts"),
    ],
    ids=[
        *("observed", "short", "setting", "slow, and a probe ended one"),
        *("too few", "off", "another namespace's", "a probe ended one"),
        *("another workload's shorten nothing", "another workload's may lengthen"),
    ],
)
def test_budgets_and_rules_use_the_observed_starts(
    seen: Seen, settings: dict[str, Any], seconds: int, reason: str
) -> None:
    """If they differed, rules would warn about a budget that the webhook has set."""
    assert budget(pod(), seen, **settings).seconds == seconds
    start = start_of(PodView(pod()), only(pod()), facts(seen, **settings))
    assert start is not None
    assert start.reason == reason


@pytest.mark.parametrize(
    ("basis", "why", "setting"),
    [
        ((312, 41), "three times the slowest of 41 observed starts (312 s)", "learning"),
        ((12, 7), "the minimum; the slowest of 7 observed starts took 12 s", "leastLearned"),
    ],
)
def test_a_budget_has_a_reason_and_is_injected(basis: tuple[int, int], why: str, setting: str) -> None:
    seen = Seen(pod(), basis)
    found = budget(pod(), seen)
    assert (found.why(), found.setting) == (why, setting)
    probe = mutate(pod(), StandardProbes(), facts(seen))["spec"]["containers"][0]["startupProbe"]
    assert 0 <= probe["periodSeconds"] * probe["failureThreshold"] - found.seconds < 5


def test_the_template_of_a_deployment_has_the_starts_of_its_pods() -> None:
    template = pod()
    template["metadata"] = {"ownerReferences": [{"kind": "ReplicaSet", "name": "llm", "controller": True}]}
    assert budget(template, Seen(pod(), (312, 41))).seconds == 936
    template["metadata"]["ownerReferences"][0]["name"] = "other"
    assert budget(template, Seen(pod(), (312, 41))).seconds == ESTIMATED


def test_the_annotation_wins() -> None:
    annotated = pod()
    annotated["metadata"]["annotations"] = {"mlchassis.dev/expected-start": "30s"}
    assert budget(annotated, Seen(annotated, (312, 41))).seconds == 90


@pytest.mark.parametrize(("slowest", "expected"), [(12, 2_147), (3_120, 3_120)])
def test_a_short_observed_start_removes_no_startup_probe(slowest: int, expected: int) -> None:
    """The observed starts had a startupProbe; without one, a probe may end them."""
    assert expected_start(PodView(pod()), only(pod()), facts(Seen(pod(), (slowest, 41)))) == expected


def test_no_rule_warns_about_a_budget_from_observed_starts() -> None:
    of, known = pod(), facts(Seen(pod(), (12, 7)))
    made = mutate(of, StandardProbes(), known)
    target = Target(made, POD, pod_templates({"apiVersion": "v1", "kind": "Pod", **made}, {}))
    assert list(startup_kills_slow_start.RULE.check(target, known)) == []
    assert list(startup_kills_slow_start.RULE.check(target, Facts())) != []


CLAIM: Json = {"name": "m", "persistentVolumeClaim": {"claimName": "models"}}
CHANGES: list[Callable[[], Json]] = [
    lambda: pod(image="vllm/vllm-openai:v0.9.2"),
    lambda: pod(args=["meta-llama/Llama-3.1-405B"]),
    lambda: pod(args=[LLAMA, "--max-model-len=8192"]),
    lambda: pod(env=[{"name": "MODEL_ID", "value": "x"}]),
    lambda: pod(resources={"limits": {"cpu": "1"}}),
    lambda: pod((CLAIM,)),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_change_of_the_start_is_another_run(changed: Callable[[], Json]) -> None:
    assert budget(changed(), Seen(pod(), (312, 41))).why() != budget(pod(), Seen(pod(), (312, 41))).why()
    assert run_of(changed(), only(changed()), 0) != run_of(pod(), only(pod()), 0)


def test_a_running_pod_has_the_run_of_its_template() -> None:
    running = pod(env=[{"name": "RELEASE", "value": "7"}], livenessProbe={"httpGet": {"port": 1}})
    running["metadata"] = {"name": "llm-0", "ownerReferences": [{"kind": "StatefulSet", "name": "llm"}]}
    running["spec"]["volumes"] = [
        {"name": "kube-api-access-x", "projected": {}},
        {"name": "m", "persistentVolumeClaim": {"claimName": "m-llm-0"}},
    ]
    running["spec"]["containers"][0]["volumeMounts"] = [{"name": "kube-api-access-x"}, {"name": "m"}]
    running["spec"]["nodeName"] = "node-1"
    assert run_of(running, only(running), 0) == run_of(pod(), only(pod()), 0)
    running["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"] = "m-other-0"
    assert run_of(running, only(running), 0) != run_of(pod(), only(pod()), 0)


def test_the_place_of_downloads() -> None:
    cache = pod(({"name": "c", "hostPath": {"path": "/cache"}},))
    bare = pod(({"name": "c", "emptyDir": {}}, {"name": "i", "image": {"reference": "m"}}))
    assert place_of(bare, only(bare)) == ""
    places = set()
    for node in ("node-1", "node-2"):
        cache["spec"]["nodeName"] = node
        places.add(place_of(cache, only(cache)))
    assert len(places) == 2
    assert "" not in places


@table(
    "text",
    [
        None,
        5,
        "",
        "[",
        "[]",
        "[" * 100_000,
        '{"a": 1}',
        '{"a@b": {}}',
        '{"a@b": {"basis": [1]}}',
        '{"a@b": {"basis": ["1", 2]}}',
        '{"a@b": {"basis": [-1, 5]}}',
        '{"a@b": {"basis": [true, 5]}}',
    ],
)
def test_invalid_text_is_ignored(text: object) -> None:
    assert trimmed("ml", text) is None


def test_values_have_a_maximum_and_equal_runs_are_added_up() -> None:
    text = json.dumps({"x@1": {"basis": [10**12, 3]}, "y@1": {"basis": [5, 4], "killed": 9}, "z@2": {}})
    found = trimmed("ml", text)
    assert found is not None
    longest = 7 * 24 * 3600
    assert found["starts"] == {"1": (longest, 7, 9), "x@1": (longest, 3, 0), "y@1": (5, 4, 9)}
