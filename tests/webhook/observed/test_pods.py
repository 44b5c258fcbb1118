"""What the statuses of a pod show of starts and ends, as they come one after the other."""

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from policies.core.facts import NoCluster
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json
from policies.kube.objects.metadata import ObjectMeta
from policies.kube.objects.reading import read as read_as
from policies.probes.observed import workload_of
from tests.calls import calls
from webhook.admission.configuration import Config
from webhook.config.load import load
from webhook.observed.pods import PodTracker
from webhook.observed.record import Ended, Observation, ObservedStart

BEGAN = 1_800_000_000
HTTP = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5, "failureThreshold": 120}
CONFIG = load({})


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def made(uid: str = "u1", namespace: str = "ml", **container: Any) -> Json:
    server = {"name": "server", "image": "vllm/vllm-openai:v0.9.1", "startupProbe": HTTP, **container}
    return {
        "metadata": {
            "name": "llm-5d4f-x",
            "namespace": namespace,
            "uid": uid,
            "labels": {"pod-template-hash": "5d4f"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "llm-5d4f", "controller": True}],
        },
        "spec": {"containers": [server], "nodeName": "node-1", "restartPolicy": "Always"},
        "status": {"conditions": [_condition("PodScheduled", -10), _condition("Initialized", -8)]},
    }


def _condition(kind: str, at: float) -> Json:
    return {"type": kind, "status": "True", "lastTransitionTime": when(BEGAN + at)}


def status(pod: Json, *, ready: float | None, number: int = 1, began: float = 0, **other: Any) -> Json:
    """The pod with its container running since `began`, and ready since then or not at all."""
    pod = copy.deepcopy(pod)
    running = {
        "name": "server",
        "containerID": f"containerd://{number}",
        "restartCount": number - 1,
        "state": {"running": {"startedAt": when(BEGAN + began)}},
        "started": ready is not None,
        "ready": ready is not None,
        **other,
    }
    pod["status"]["containerStatuses"] = [running]
    if ready is not None:
        pod["status"]["conditions"].append(_condition("ContainersReady", ready))
    return pod


def ended(number: int, began: float, finished: float, code: int, reason: str = "Error") -> Json:
    end = {
        "containerID": f"containerd://{number}",
        "startedAt": when(BEGAN + began),
        "finishedAt": when(BEGAN + finished),
        "exitCode": code,
        "reason": reason,
    }
    return {"terminated": end}


class Nodes:
    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        labels = {"nvidia.com/gpu.product": "NVIDIA-A100"}
        node = {"metadata": {"name": "node-1", "labels": labels}}
        return Listing([node]) if resource is Resource.NODES else None


def watched(config: Config = CONFIG, since: float = BEGAN - 100) -> PodTracker:
    return PodTracker(lambda: config, Nodes(), since)


def observed(*pods: Json, **how: Any) -> list[Observation]:
    watching = watched(**how)
    return [each for pod in pods for each in read(watching, pod)]


def read(watching: PodTracker, pod: Json) -> list[Observation]:
    news = watching.observe(pod)
    return [] if news is None else news.observations()


def test_a_start_has_its_times() -> None:
    pod = made()
    [start] = observed(pod, status(pod, ready=None), status(pod, ready=312), status(pod, ready=312))
    assert isinstance(start, ObservedStart)
    assert (start.load, start.pull, start.ready, start.first) == (312, 8, 322, True)
    assert start.namespace == "ml"
    assert start.key.startswith("Deployment/llm/server@")
    assert start.node_type == "NVIDIA-A100"


@pytest.mark.parametrize(
    ("since", "readiness", "loads"),
    [
        (-100, [(5, False), (None, False), (90_000, False)], [5]),
        (50, [(90, True), (90_000, False)], []),
        (50, [(None, True), (90_000, False)], []),
        (-1, [(20, False)], [20]),
        (0, [(20, False)], []),
        (1, [(20, False)], []),
        (60, [(None, False), (300, False)], [300]),
        (-100, [(None, False), (-40, False)], []),
    ],
    ids=[
        "ready again",
        "may have been ready before",
        "may have been started before",
        "after the last observation",
        "in the second of the last observation",
        "before the last observation",
        "starting at the first observation",
        "a clock that jumps back",
    ],
)
def test_only_unambiguous_starts_are_counted(
    since: int, readiness: list[tuple[float | None, bool]], loads: list[int]
) -> None:
    pods = [status(made(), ready=at, started=began or at is not None) for at, began in readiness]
    found = observed(*pods, since=BEGAN + since)
    assert [each.load for each in found if isinstance(each, ObservedStart)] == loads


@pytest.mark.parametrize(
    "container",
    [
        {"startupProbe": None},
        {"startupProbe": {"tcpSocket": {"port": 8000}}},
        {"startupProbe": {"exec": {"command": ["true"]}}},
        {"startupProbe": None, "readinessProbe": HTTP},
    ],
)
def test_a_readiness_that_does_not_show_loading_is_not_counted(container: Json) -> None:
    pod = made(**container)
    assert observed(status(pod, ready=None), status(pod, ready=5)) == []


def test_excluded_namespaces_are_not_recorded_and_nothing_if_it_is_off() -> None:
    assert observed(status(made(namespace="kube-system"), ready=5)) == []
    off = load({"standard-probes.yaml": "learning: off"})
    assert observed(status(made(), ready=5), config=off) == []


def test_a_restart_is_not_the_first_start() -> None:
    pod = made()
    again = status(pod, ready=200, number=2, began=100, lastState=ended(1, 0, 90, 1))
    end, start = observed(status(pod, ready=10), again)[1:]
    assert isinstance(end, Ended)
    assert end.reason == "Error 1"
    assert isinstance(start, ObservedStart)
    assert (start.load, start.first, start.pull) == (100, False, None)


@pytest.mark.parametrize(
    ("ready", "lasted", "code", "expected"),
    [
        (None, 600, 137, ("StartupProbe", 600, 0)),
        (None, 625, 0, ("StartupProbe", 625, 0)),
        (None, 400, 137, ("Error 137", 0, 0)),
        (None, 5_000, 1, ("Error 1", 0, 0)),
        (10, 900, 137, ("Killed", 0, 0)),
        (None, 50, -1, ("OOMKilled", 0, 31 << 30)),
    ],
)
def test_how_a_server_ends(
    ready: float | None, lasted: int, code: int, expected: tuple[str, int, int]
) -> None:
    pod = made(resources={"limits": {"memory": "31Gi"}})
    last = ended(1, 0, lasted, 137 if code < 0 else code, "OOMKilled" if code < 0 else "Error")
    again = status(pod, ready=None, number=2, began=lasted + 1, lastState=last)
    *_, end = observed(status(pod, ready=ready), again, again)
    assert isinstance(end, Ended)
    assert (end.reason, end.after, end.memory) == expected


def test_a_pod_that_flaps_a_thousand_times_is_counted_each_time() -> None:
    pod, watching, found = made(), watched(), []
    for number in range(2, 1_002):
        last = ended(number - 1, number * 10, number * 10 + 5, 1)
        crashed = status(pod, ready=None, number=number, began=number * 10 + 8, lastState=last)
        found += [*read(watching, crashed), *read(watching, crashed)]
    assert len(found) == 1_000
    assert len(watching) == 1


def test_ends_of_a_deleted_pod_are_not_recorded() -> None:
    pod = made()
    pod["metadata"]["deletionTimestamp"] = when(BEGAN)
    assert observed(status(pod, ready=None), status(pod, ready=None, state=ended(1, 0, 50, 143))) == []


def job(name: str = "train") -> Json:
    pod = made(startupProbe=None)
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": name, "controller": True}]
    pod["spec"]["restartPolicy"] = "Never"
    return pod


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("EvictionByEvictionAPI", "Evicted"),
        ("PreemptionByScheduler", "Preempted"),
        ("DeletionByTaintManager", "NodeLost"),
    ],
)
def test_a_disruption_counts_once_and_not_as_an_error(reason: str, shown: str) -> None:
    pod = status(job(), ready=None)
    disrupted = status(job(), ready=None, state=ended(1, 0, 50, 143))
    disrupted["status"]["conditions"].append({**_condition("DisruptionTarget", 49), "reason": reason})
    [end] = observed(pod, disrupted, disrupted)
    assert isinstance(end, Ended)
    assert (end.reason, end.at) == (shown, BEGAN + 49)
    for since in (BEGAN + 49, BEGAN + 60):
        assert observed(disrupted, since=since) == [], "the leader before has counted it"


def test_an_end_is_counted_by_one_leader() -> None:
    killed = status(job(), ready=None, state=ended(137, 0, 50, 9))
    assert [each.at for each in observed(killed, since=BEGAN + 49) if isinstance(each, Ended)] == [BEGAN + 50]
    assert observed(killed, since=BEGAN + 50) == []


def test_the_runs_of_a_job() -> None:
    done = status(job(), ready=None, state=ended(1, 0, 50, 0, "Completed"))
    failed = status(job(), ready=None, state=ended(1, 0, 50, 3))
    failed["metadata"]["uid"] = "u2"
    assert [each.reason for each in observed(done, failed) if isinstance(each, Ended)] == [
        "Completed",
        "Error 3",
    ]


@pytest.mark.parametrize(
    ("owner", "workload"),
    [
        ({"kind": "Job", "name": "nightly-29412345"}, "CronJob/nightly"),
        ({"kind": "Job", "name": "train"}, "Job/train"),
        ({"kind": "StatefulSet", "name": "llm"}, "StatefulSet/llm"),
        ({"kind": "ReplicaSet", "name": "llm-77"}, "ReplicaSet/llm-77"),
        ({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llm-5d4f"}, "Deployment/llm"),
        # Nobody deletes pods with such owners.
        ({"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "Pod/llm-5d4f-x"),
        ({"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly"}, "Pod/llm-5d4f-x"),
        ({"apiVersion": "none.example/v1", "kind": "ReplicaSet", "name": "llm-5d4f"}, "Pod/llm-5d4f-x"),
        ({"apiVersion": "none.example/v1", "kind": "StatefulSet", "name": "llm"}, "Pod/llm-5d4f-x"),
    ],
)
def test_the_workload_of_a_pod(owner: Json, workload: str) -> None:
    pod = made()
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    assert workload_of(read_as(pod["metadata"], ObjectMeta)) == workload
    assert workload_of(ObjectMeta(generate_name="bare-")) == "Pod/bare"


@pytest.mark.parametrize(
    "spoilt",
    [
        {"status": None},
        {"status": {"containerStatuses": [{"name": 5, "state": {"running": {"startedAt": "soon"}}}]}},
        {"status": {"containerStatuses": [{"name": "server", "ready": True, "state": []}]}},
        {"metadata": {"namespace": "ml"}},
    ],
)
def test_statuses_of_wrong_types_are_nothing(spoilt: Json) -> None:
    assert read(PodTracker(lambda: CONFIG, NoCluster(), 0), {**made(), **spoilt}) == []


def test_pods_that_are_gone_are_forgotten() -> None:
    watching = watched()
    for uid in "abc":
        watching.observe(made(uid))
    watching.forget("a")
    watching.keep_only({"b"})
    assert len(watching) == 1


def test_a_pod_is_read_on_one_budget() -> None:
    """Each command alone fits into the budget of a review; read one by one, they take a million calls."""
    script = "a=" + "x" * 100 + ";" + "".join(f"a=$a$a;b{n}=$a;" for n in range(12)) + " exec vllm serve"
    pod = status(made(), ready=None)
    pod["spec"]["containers"] += [
        {"name": f"c{number}", "image": "vllm/vllm-openai", "command": ["sh", "-c", f"{script} #{number}"]}
        for number in range(200)
    ]
    watching = watched()
    watching.observe(pod)
    news = watching.observe(status(pod, ready=312))
    assert news is not None
    assert calls(news.observations) < 300_000


def test_a_start_of_a_deleted_pod_does_not_count() -> None:
    """The garbage collector deletes a pod with a forged owner; a long grace period keeps it running."""
    ready = status(made(), ready=5)
    ready["metadata"]["deletionTimestamp"] = when(BEGAN + 2)
    assert observed(status(made(), ready=None), ready) == []


@pytest.mark.parametrize(
    ("probe", "counted"),
    [
        ({"httpGet": {"path": "/health", "port": 8000}}, True),
        ({"httpGet": {"path": "/", "port": 9000}}, False),
        ({"httpGet": {"path": "/", "port": 9001}}, False),
    ],
    ids=["its own", "a sidecar's", "undeclared"],
)
def test_a_start_counts_if_the_probe_asks_the_containers_own_server(probe: Json, counted: bool) -> None:
    pod = made(startupProbe={**HTTP, **probe})
    pod["spec"]["containers"].append(
        {"name": "proxy", "image": "proxy:1", "ports": [{"containerPort": 9000}]}
    )
    found = observed(status(pod, ready=None), status(pod, ready=5))
    assert [isinstance(each, ObservedStart) for each in found] == ([True] if counted else [])
