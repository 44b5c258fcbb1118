"""Groups of the real LeaderWorkerSet operator form with the probes that the webhook injects."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import LWS, Operator, bound, drain, fixture, place, run, uid
from tests.e2e.workloads import probes
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

LEADER: JSON = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.11.0",
    "args": ["--model", "m", "--tensor-parallel-size", "8"],
    "ports": [{"containerPort": 8000}],
}
WORKER: JSON = {"name": "worker", "image": "example.org/worker:1"}


operator = fixture("groups", LWS)


def group(name: str, namespace: str, policy: str) -> JSON:
    def template(container: JSON) -> JSON:
        return {"spec": {"containers": [container], **place("groups")}}

    return manifest(
        "LeaderWorkerSet",
        name,
        {
            "replicas": 1,
            "startupPolicy": policy,
            "leaderWorkerTemplate": {
                "size": 3,
                "leaderTemplate": template(LEADER),
                "workerTemplate": template(WORKER),
            },
        },
        namespace=namespace,
    )


def test_a_group_whose_workers_wait_for_their_leader_forms(
    api: Api, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api.create(group("ready", namespace, "LeaderReady"))
    leader = api.wait("pods", "ready-0", bound)
    assert probes(leader) == {"livenessProbe"}, "nothing that delays its readiness"
    assert leader["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    # vLLM answers only with its workers, which are not there.
    run(api, leader, answers=False)
    for name in ("ready-0-1", "ready-0-2"):
        worker = api.wait("pods", name, bound)
        assert probes(worker) == set()


def test_a_group_that_is_created_at_once_has_all_probes(
    api: Api, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    chassis.restart()  # it lists LeaderWorkerSets now that they are served, without a pause
    api.create(group("created", namespace, "LeaderCreated"))
    leader = api.wait("pods", "created-0", bound)
    api.wait("pods", "created-0-2", bound)
    assert probes(leader) == {"livenessProbe", "readinessProbe", "startupProbe"}
    owner = leader["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("StatefulSet", "created")


def test_models_are_loaded_in_the_leader_only(
    api: Api, control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """The label by which a policy selects the leader is set by the operator's webhook, before this one."""
    entry = {"modelName": "m", "modelSpec": {"storageUri": "s3://models/m", "memory": "1Gi"}}
    metadata = {"name": "models", "labels": {"mlchassis.dev/model-config": "true"}}
    data = {"models.json": json.dumps([entry])}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    selected = {"matchLabels": {"leaderworkerset.sigs.k8s.io/worker-index": "0"}, "modelConfigMap": "models"}
    with chassis.policy_restored():
        control_plane.apply(chassis.policy_with(model_puller=json.dumps({"byLabel": [selected]})))
        wanted = group("loads", namespace, "LeaderCreated")
        template = wanted["spec"]["leaderWorkerTemplate"]
        del template["leaderTemplate"]  # leaders and workers are made from one template
        template["workerTemplate"]["spec"]["containers"] = [dict(LEADER)]
        chassis.restart()  # it has read the policy and the model config when it starts
        api.create(wanted)
        pods = {name: api.wait("pods", name, bound) for name in ("loads-0", "loads-0-1", "loads-0-2")}
    pullers = {
        name: [each["name"] for each in pod["spec"].get("initContainers", ())] for name, pod in pods.items()
    }
    assert pullers == {"loads-0": ["model-puller"], "loads-0-1": [], "loads-0-2": []}


NAMES = [f"pairs-{group}{worker}" for group in (0, 1) for worker in ("", "-1")]


def pairs(namespace: str, **template: object) -> JSON:
    """Two groups of a leader and a worker."""
    made = group("pairs", namespace, "LeaderCreated")
    made["spec"]["replicas"] = 2
    made["spec"]["leaderWorkerTemplate"] |= {"size": 2, **template}
    return made


def uids(api: Api, besides: Collection[str] = ()) -> dict[str, str]:
    """The four pods by name, others than those with these uids, once both groups are whole and bound."""
    found = api.wait_for(
        "pods",
        lambda pods: whole(api, pods) and not any(uid(pod) in besides for pod in pods),
        timeout=120,
    )
    for pod in found:
        run(api, pod)
    return {pod["metadata"]["name"]: uid(pod) for pod in found}


def whole(api: Api, pods: list[JSON]) -> bool:
    """Whether all four pods are there and bound, and each worker is its present leader's.

    Pods that are being deleted are removed, as a kubelet would: a leader goes only after its workers, and the
    StatefulSet of the workers may have replaced one before it was deleted itself. The operator ignores the
    deletion of such a worker, since it is an earlier leader's.
    """
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"]:
            with suppress(ApiError):  # it is gone
                api.delete("pods", pod["metadata"]["name"], grace=0, uid=uid(pod))
    present = {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    if not (len(pods) == len(present) == len(NAMES) and all(map(bound, pods))):
        return False
    try:
        workers = {name: api.get("statefulsets", name) for name in ("pairs-0", "pairs-1")}
    except ApiError:  # an earlier leader's is gone, and the present one's not there
        return False
    return all(
        (uid(made), owner(made)) == (owner(present[f"{name}-1"]), uid(present[name]))
        for name, made in workers.items()
    )


def owner(item: JSON) -> str:
    return str(item["metadata"]["ownerReferences"][0]["uid"])


@pytest.mark.parametrize(
    ("template", "replaced"),
    [({}, {"pairs-0", "pairs-0-1"}), ({"restartPolicy": "None"}, {"pairs-0-1"})],
    ids=["default", "None"],
)
def test_a_lost_worker_restarts_its_group_or_only_itself(
    template: JSON, replaced: set[str], api: Api, operator: Operator, bare: str
) -> None:
    """However often: no retry is counted."""
    api = api.within(bare)
    api.create(pairs(bare, **template))
    for _ in range(2):
        before = uids(api)
        with drain(api, api.get("pods", "pairs-0-1")):
            for name in replaced:
                api.wait("pods", name, lambda pod: "deletionTimestamp" in pod["metadata"])
        after = uids(api, {before[name] for name in replaced})
        assert {name for name in NAMES if before[name] != after[name]} == replaced
