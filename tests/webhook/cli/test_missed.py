"""`chassis scan --missed` and `--repair` against a small API server."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from policies.core.annotations import OUTAGES
from policies.kube.json import Json
from policies.kube.objects.metadata import ObjectMeta
from tests.webhook.cli.scanned import DEPLOYMENTS, PODS, SERVER, InCluster, deployment, named, owned_by
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission.missed import Difference
from webhook.cli import repair
from webhook.cli.missed import MissedWorkload, WebhookHistory
from webhook.cli.repair import RESTARTED_AT, down_at_once
from webhook.kube.leader_election import NAME, Outage

CREATED = "2026-06-01T12:00:00Z"
AT = 1780315200.0
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/mlchassis-system/leases"
BUDGETS = "/apis/policy/v1/namespaces/ml/poddisruptionbudgets"
READY = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}
READY |= {"observedGeneration": 1}


def server(name: str = "llm", **spec: Any) -> Json:
    made = deployment(name, SERVER, generation=1)
    made["spec"] |= {"replicas": 2, **spec}
    return {**made, "status": READY}


def made_by(owner: Json, kind: str, name: str, app: str) -> Json:
    api_version = "batch/v1" if kind == "Job" else "apps/v1"
    references = owned_by(api_version, kind, owner["metadata"]["name"], owner["metadata"]["uid"])
    metadata: Json = {"ownerReferences": references, "labels": {"app": app}, "creationTimestamp": CREATED}
    return named(name, {"containers": [SERVER]}, **metadata)


class Cluster:
    """A Deployment with its ReplicaSet and two pods that the webhook did not change."""

    def __init__(self, fake: FakeApiServer) -> None:
        self.fake = fake

    async def put(self, top: Json) -> None:
        name = top["metadata"]["name"]
        await self.fake.put(DEPLOYMENTS, top)
        owners = owned_by("apps/v1", "Deployment", name, top["metadata"]["uid"])
        above = named(f"{name}-1", {"selector": top["spec"]["selector"]}, ownerReferences=owners)
        await self.fake.put("/apis/apps/v1/namespaces/ml/replicasets", above)
        for n in range(2):
            await self.fake.put(PODS, made_by(above, "ReplicaSet", f"{name}-1-{n}", name))

    async def replace_pods(self, name: str, container: Json) -> None:
        """What the controllers do after a restart: other pods, of this container."""
        for path in [path for path in self.fake.objects if path.startswith(f"{PODS}/{name}-")]:
            await self.fake.delete(path)
        owners = owned_by("apps/v1", "ReplicaSet", f"{name}-1", f"uid-{name}-1")
        labels = {"app": name}
        made = named(f"{name}-2-0", {"containers": [container]}, labels=labels, ownerReferences=owners)
        await self.fake.put(PODS, made)

    @property
    def changed(self) -> list[str]:
        """The paths of all requests that change objects."""
        return [path for method, path in self.fake.requests if method != "GET"]

    def restarted(self, name: str) -> bool:
        return RESTARTED_AT in json.dumps(self.fake.objects[f"{DEPLOYMENTS}/{name}"])


GET = {"httpGet": {"path": "/health", "port": 8000}}
PROBED = {
    **SERVER,
    "livenessProbe": {**GET, "failureThreshold": 6, "timeoutSeconds": 5},
    "readinessProbe": {**GET, "timeoutSeconds": 5},
    "startupProbe": {**GET, "failureThreshold": 720},
    "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
}
"""A container that needs no further fields."""


@pytest.fixture
async def ml(fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(repair, "POLL_SECONDS", 0.01)
    return Cluster(fake)


# --- what is listed ------------------------------------------------------------------------------------


async def test_pods_are_listed_by_workload_with_the_reason(ml: Cluster, scan: InCluster) -> None:
    await ml.put(server())
    annotations = {OUTAGES: json.dumps([[AT - 60, AT + 240]])}
    lease = {"metadata": {"name": NAME, "annotations": annotations}, "spec": {}}
    await ml.fake.put(LEASES, lease)
    installed = {"name": "chassis.mlchassis.dev", "creationTimestamp": "2026-01-01T00:00:00Z"}
    await ml.fake.put(CONFIGURATIONS, {"metadata": installed})
    answer = await scan("--missed")
    assert answer.status == 1
    first, second, third, fourth, *_ = answer.out.splitlines()
    assert first.startswith(
        "Deployment ml/llm: 2 pods (llm-1-0, llm-1-1), created while the webhook was down ("
    )
    assert second == "  lacks spec.containers[main].lifecycle.preStop (disruption-guard)"
    assert "spec.containers[main].readinessProbe" in third
    assert fourth.strip() == "restarted by --repair"
    assert re.search(r"`chassis scan (-A|-n ml) --missed --repair` restarts 1 of them", answer.out)
    assert "2 running pods, 2 missed, of 1 workload\n" in answer.out
    record = (await scan("--missed", "-o", "json")).json
    [row] = record["missed"]
    assert (row["kind"], row["name"], row["how"], record["missedPods"]) == ("Deployment", "llm", "lacks", 2)
    assert record["outages"] == [["2026-06-01T11:59:00Z", "2026-06-01T12:04:00Z"]]


@pytest.mark.parametrize(
    ("history", "why"),
    [
        (WebhookHistory(installed=AT + 1), "before the webhook was installed"),
        (WebhookHistory(installed=AT - 1, outages=[Outage(AT - 9, AT + 9)]), "while the webhook was down"),
        (WebhookHistory(AT - 99, [Outage(AT + 9, AT + 20)]), "while the webhook was down"),
        (
            WebhookHistory(AT - 99, seen=AT - 8),
            "after a replica was last known to be ready (2026-06-01T11:59:52Z)",
        ),
        (WebhookHistory(AT - 99, seen=AT + 8), "was down for less than 25 s"),
        (
            WebhookHistory(AT - 99, [Outage(AT - 99, AT - 50)], edited=AT + 5),
            "before the policy was last edited",
        ),
        (WebhookHistory(AT - 99, edited=AT - 50), "a call failed open"),
    ],
)
def test_the_reason_follows_from_the_time_of_creation(history: WebhookHistory, why: str) -> None:
    assert why in history.why(AT)
    assert "unknown" in history.why(None)


async def test_what_may_not_be_read_is_named(ml: Cluster, scan: InCluster) -> None:
    await ml.put(server())
    await ml.fake.forbid(LEASES, CONFIGURATIONS)
    answer = await scan("--missed")
    assert answer.status == 1
    for fact in ("down", "installed"):
        assert f"you may not read it: when the webhook was {fact}" in answer.err


async def test_excluded_pods_are_counted(ml: Cluster, scan: InCluster) -> None:
    await ml.fake.put(
        PODS, named("out", {"containers": [SERVER]}, labels={"mlchassis.dev/admission": "disabled"})
    )
    answer = await scan("--missed")
    assert answer.status == 0
    assert "excluded from admission: 1 pods in ml (1)" in answer.out


async def test_a_repair_without_a_terminal_needs_the_flag(ml: Cluster, scan: InCluster) -> None:
    await ml.put(server())
    answer = await scan("--missed", "--repair")
    assert answer.status == 2
    assert "add --yes" in answer.err
    assert ml.changed == []


# --- how it is repaired --------------------------------------------------------------------------------


async def test_a_workload_is_restarted_and_checked_again(ml: Cluster, scan: InCluster) -> None:
    await ml.put(server())
    ml.fake.before_write = lambda: ml.replace_pods("llm", PROBED)
    answer = await scan("--missed", "--repair", "--yes")
    assert "Deployment ml/llm: restarted and ready (1 of 1)" in answer.err
    template = ml.fake.objects[f"{DEPLOYMENTS}/llm"]["spec"]["template"]
    assert RESTARTED_AT in template["metadata"]["annotations"]
    assert template["metadata"]["labels"] == {"app": "llm"}
    assert "none missed" in answer.out.splitlines()[-1]
    assert answer.status == 0


async def test_a_namespace_in_which_a_restart_does_not_help_is_left_out(ml: Cluster, scan: InCluster) -> None:
    """If the webhook is still down, further restarts would not help."""
    await ml.put(server("a"))
    await ml.put(server("b"))
    answer = await scan("--missed", "--repair", "--yes")
    assert "the webhook didn't change its new pod a-1-0 either\n" in answer.err
    assert (
        "Deployment ml/b: not restarted, because new pods in its namespace aren't changed either"
        in answer.err
    )
    assert not ml.restarted("b")
    assert answer.status == 1


@pytest.mark.parametrize("forged", ["uid", "labels", "kind"])
async def test_a_forged_owner_restarts_nothing(ml: Cluster, scan: InCluster, forged: str) -> None:
    """Anybody who may create pods can name a Deployment as their owner, even if Deployments create none."""
    victim = server("victim")
    await ml.fake.put(DEPLOYMENTS, victim)
    pod = made_by(victim, "Deployment", "bait", "bait" if forged == "labels" else "victim")
    [reference] = pod["metadata"]["ownerReferences"]
    if forged == "uid":
        reference["uid"] = "another"
    await ml.fake.put(PODS, pod)
    answer = await scan("--missed", "--repair", "--yes")
    assert ml.changed == []
    assert "names Deployment victim as its owner, which doesn't exist or doesn't own it" in answer.out


async def test_a_pod_with_the_same_labels_is_no_new_pod(ml: Cluster, scan: InCluster) -> None:
    await ml.put(server())

    async def restarted() -> None:
        await ml.replace_pods("llm", PROBED)
        bait = named("bait", {"containers": [SERVER]}, labels={"app": "llm"}, creationTimestamp=CREATED)
        await ml.fake.put(PODS, bait)

    ml.fake.before_write = restarted
    answer = await scan("--missed", "--repair", "--yes")
    assert "Deployment ml/llm: restarted and ready (1 of 1)" in answer.err


async def test_a_rollout_that_fails_does_not_end_the_repair_of_others(ml: Cluster, scan: InCluster) -> None:
    await ml.put(server("a"))
    await ml.put(server("b"))

    async def fails() -> None:
        condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        status = {**READY, "updatedReplicas": 1, "conditions": [condition]}
        item = ml.fake.objects[f"{DEPLOYMENTS}/a"]
        ml.fake.objects[f"{DEPLOYMENTS}/a"] = {**item, "status": status}

    ml.fake.before_write = fails
    answer = await scan("--missed", "--repair", "--yes")
    assert "ml/a: its new pods didn't become ready in time (ProgressDeadlineExceeded)\n" in answer.err
    assert ml.restarted("b")


@pytest.mark.parametrize("change", [{"readyReplicas": 1}, {"observedGeneration": 0}])
async def test_a_workload_that_is_not_ready_is_skipped(ml: Cluster, scan: InCluster, change: Json) -> None:
    await ml.put({**server(), "status": READY | change})
    answer = await scan("--missed", "--repair", "--yes")
    assert "it isn't ready now" in answer.err
    assert ml.changed == []


@pytest.mark.parametrize(("allowed", "restarts"), [(0, False), (1, False), (2, True)])
async def test_budgets_are_kept(ml: Cluster, scan: InCluster, allowed: int, restarts: bool) -> None:
    await ml.put(server(strategy={"type": "Recreate"}))
    for name, labels in (("llm", {"app": "llm"}), ("other", {"app": "other"})):
        budget = named(name, {"selector": {"matchLabels": labels}})
        shown = allowed if name == "llm" else 0
        await ml.fake.put(BUDGETS, {**budget, "status": {"disruptionsAllowed": shown}})
    answer = await scan("--missed", "--repair", "--yes")
    assert ml.restarted("llm") is restarts
    if not restarts:
        why = f"PodDisruptionBudget llm allows {allowed} unavailable pods, but its rollout takes 2 down"
        assert why in answer.err
        for flags in ((), ("--repair", "--yes")):
            [row] = (await scan("--missed", *flags, "-o", "json")).json["missed"]
            assert row["repair"] == f"not restarted by --repair now: {why}"


@pytest.mark.parametrize(
    ("spec", "metadata", "why"),
    [
        ({"paused": True}, {}, "paused"),
        (
            {},
            {"ownerReferences": owned_by("apps/v1", "Fleet", "f", "f")},
            "restart it through its owner, Fleet f",
        ),
        ({}, {"deletionTimestamp": CREATED}, "being deleted"),
    ],
)
async def test_what_a_restart_would_not_help_is_listed(
    ml: Cluster, scan: InCluster, spec: Json, metadata: Json, why: str
) -> None:
    top = server(**spec)
    top["metadata"] |= metadata
    await ml.put(top)
    answer = await scan("--missed", "--repair", "--yes")
    assert why in answer.out
    assert "none of the missed workloads can be restarted" in answer.err
    answer = await scan("--missed", "--repair", "--yes", "-o", "json")
    assert why in answer.json["missed"][0]["repair"]


@pytest.mark.parametrize(("api", "kind"), [("apps/v1", "ReplicaSet"), ("v1", "ReplicationController")])
def test_a_kind_of_kubernetes_that_cannot_be_restarted_has_no_operator(api: str, kind: str) -> None:
    top = {"apiVersion": api, "kind": kind, "metadata": {"name": "llm", "namespace": "ml"}}
    metadata = ObjectMeta(name="llm", namespace="ml")
    row = MissedWorkload(top, metadata, Difference.LACKS, "created before the webhook was installed")
    assert row.listed_only == "listed only: delete its pods one by one, and it creates new ones"


async def test_jobs_and_bare_pods_are_listed(ml: Cluster, scan: InCluster) -> None:
    job = named("train", {"template": {"spec": {"containers": [SERVER]}}})
    await ml.fake.put("/apis/batch/v1/namespaces/ml/jobs", job)
    run = made_by(job, "Job", "train-x", "train")
    run["metadata"]["annotations"] = {"mlchassis.dev/model-config": "models"}
    await ml.fake.put(PODS, run)
    await ml.fake.put(PODS, named("alone", {"containers": [SERVER]}, creationTimestamp=CREATED))
    answer = await scan("--missed", "-o", "json")
    ways = {row["name"]: row["repair"] for row in answer.json["missed"]}
    assert "Jobs are not restarted" in ways["train"]
    assert "the pod has no controller" in ways["alone"]


@pytest.mark.parametrize(
    ("kind", "spec", "status", "down"),
    [
        ("Deployment", {"replicas": 2}, {}, 0),
        ("Deployment", {"replicas": 8}, {}, 2),
        ("Deployment", {"replicas": 3, "strategy": {"type": "Recreate"}}, {}, 3),
        ("Deployment", {"replicas": 4, "strategy": {"rollingUpdate": {"maxUnavailable": "x"}}}, {}, 4),
        ("StatefulSet", {"replicas": 5}, {}, 1),
        ("StatefulSet", {"replicas": 5, "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}, {}, 2),
        ("DaemonSet", {}, {"desiredNumberScheduled": 9}, 1),
        (
            "DaemonSet",
            {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "30%"}}},
            {"desiredNumberScheduled": 9},
            3,
        ),
    ],
)
def test_how_many_a_rollout_takes_down(kind: str, spec: Json, status: Json, down: int) -> None:
    assert down_at_once({"apiVersion": "apps/v1", "kind": kind, "spec": spec, "status": status}) == down


async def test_the_answer_no_restarts_no_workload(
    ml: Cluster, scan: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ml.put(server())

    monkeypatch.setattr("sys.stdin", terminal := io.StringIO("n\n"))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    answer = await scan("--missed", "--repair")
    assert "Restart 1 workload? [y/N]" in answer.out
    assert "nothing was restarted" in answer.err
    assert answer.status == 1
