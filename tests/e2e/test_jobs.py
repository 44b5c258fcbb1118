"""job-retries before the real Job controller, compared with the same Jobs without the webhook.

The test plays the kubelet of one node: only it ends a pod there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.status import has_condition
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

NODE = "kubelet-by-hand"
BACKOFF = 30  # seconds; the Job controller waits 10 s before its first retry


@dataclass
class Kubelet:
    """Runs and ends the pods of Jobs as a kubelet reports it, in a namespace with or without the webhook."""

    api: Api

    def pod_of(self, job: str, *, after: str = "", timeout: float = BACKOFF) -> JSON:
        """The Job's pod that the scheduler has bound: another than the one with the uid `after`."""

        def fresh(pod: JSON) -> bool:
            return bool(pod["spec"].get("nodeName")) and pod["metadata"]["uid"] != after

        pods = self.api.wait_for(
            "pods",
            lambda found: any(map(fresh, found)),
            labels=f"batch.kubernetes.io/job-name={job}",
            timeout=timeout,
        )
        return next(filter(fresh, pods))

    def exits(self, pod: JSON, code: int) -> None:
        """The pod's container has ended."""
        ended = {"name": "main", "image": "registry.example/train:1", "imageID": "", "ready": False}
        ended |= {"restartCount": 0, "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
        status = {"phase": "Failed", "containerStatuses": [ended]}
        self.api.patch("pods", pod["metadata"]["name"], {"status": status}, subresource="status")

    def evict(self, pod: JSON) -> None:
        """As a drain does it: the Eviction API marks and deletes the pod, its process ends by SIGTERM."""
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}/eviction"
        self.api.request("POST", path, manifest("Eviction", name))
        self.leaves(self.api.get("pods", name))

    def leaves(self, pod: JSON) -> None:
        """A pod that is being deleted ends by SIGTERM and is gone."""
        assert pod["metadata"]["deletionTimestamp"]
        assert has_condition("DisruptionTarget")(pod)
        self.exits(pod, 143)
        self.api.delete("pods", pod["metadata"]["name"], grace=0)

    def job(self, name: str) -> JSON:
        return self.api.get("jobs", name)

    def failures(self, name: str) -> int:
        """How many failed pods the Job counts while another one runs; waits until one does."""
        job = self.api.wait("jobs", name, lambda it: it["status"].get("active") == 1)
        failed: int = job["status"].get("failed", 0)
        return failed

    def failed(self, name: str) -> str:
        """Why the Job has failed; waits until it has."""
        job = self.api.wait("jobs", name, has_condition("Failed"))
        return next(str(each["reason"]) for each in job["status"]["conditions"] if each["type"] == "Failed")


def job(name: str, *, gpus: int = 0, template: JSON | None = None, **spec: object) -> JSON:
    container: JSON = {"name": "main", "image": "registry.example/train:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod = {"restartPolicy": "Never", "nodeSelector": {"kubernetes.io/hostname": NODE}, **(template or {})}
    pod["containers"] = [container]
    return manifest("Job", name, {**spec, "template": {"spec": pod}})


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane, chassis: Chassis) -> Iterator[str]:
    """A node that only the test moves, with one GPU."""
    control_plane.add_node(NODE, capacity={"nvidia.com/gpu": "1"}, runs_pods=False)
    yield NODE
    control_plane.api.delete("nodes", NODE)


def training(made: JSON) -> JSON:
    """The Job as one that trains, by its label."""
    made["metadata"]["labels"] = {"mlchassis.dev/training": "true"}
    return made


@pytest.fixture
def kubelet(api: Api, node: str) -> Kubelet:
    """In a namespace that the webhook looks after."""
    return Kubelet(api)


@pytest.fixture
def unhelped(control_plane: ControlPlane, node: str, bare: str) -> Kubelet:
    """In a namespace outside of the webhook's scope."""
    return Kubelet(control_plane.api.within(bare))


def test_an_eviction_costs_a_job_nothing(kubelet: Kubelet) -> None:
    kubelet.api.create(job("train", backoffLimit=0))
    pod = kubelet.pod_of("train")
    for _ in range(2):
        kubelet.evict(pod)
        pod = kubelet.pod_of("train", after=pod["metadata"]["uid"])
    assert kubelet.failures("train") == 0
    kubelet.exits(pod, 1)
    assert kubelet.failed("train") == "BackoffLimitExceeded", "as written: no retries of a real error"


def test_without_the_webhook_the_first_eviction_fails_the_job(unhelped: Kubelet) -> None:
    unhelped.api.create(job("train", backoffLimit=0))
    unhelped.evict(unhelped.pod_of("train"))
    assert unhelped.failed("train") == "BackoffLimitExceeded"


def test_a_real_error_of_a_training_fails_the_job_at_once(kubelet: Kubelet) -> None:
    kubelet.api.create(training(job("train")))
    kubelet.exits(kubelet.pod_of("train"), 1)
    assert kubelet.failed("train") == "PodFailurePolicy"
    assert kubelet.job("train")["status"]["failed"] == 1


def test_the_pods_of_a_job_keep_the_end_of_their_log_and_the_job_stays_as_it_is(kubelet: Kubelet) -> None:
    made = job("logs")
    made["spec"]["template"]["metadata"] = {"annotations": {"mlchassis.dev/termination-message": "file"}}
    kubelet.api.create(job("train"))
    kubelet.api.create(made)
    policies = {
        name: kubelet.pod_of(name)["spec"]["containers"][0]["terminationMessagePolicy"]
        for name in ("train", "logs")
    }
    assert policies == {"train": "FallbackToLogsOnError", "logs": "File"}
    template = kubelet.job("train")["spec"]["template"]["spec"]["containers"][0]
    assert template["terminationMessagePolicy"] == "File"


def test_without_the_webhook_a_real_error_is_tried_again(unhelped: Kubelet) -> None:
    unhelped.api.create(job("train"))
    pod = unhelped.pod_of("train")
    unhelped.exits(pod, 1)
    again = unhelped.pod_of("train", after=pod["metadata"]["uid"])
    assert again["metadata"]["name"] != pod["metadata"]["name"]


def test_a_retryable_exit_code_is_tried_again_and_counted(kubelet: Kubelet) -> None:
    kubelet.api.create(training(job("train")))
    pod = kubelet.pod_of("train")
    kubelet.exits(pod, 143)
    kubelet.pod_of("train", after=pod["metadata"]["uid"])

    def counted(job: JSON) -> bool:
        return (job["status"].get("active"), job["status"].get("failed")) == (1, 1)

    # The pod is made before its Job's counts are written.
    kubelet.api.wait("jobs", "train", counted)


def test_a_preempted_job_runs_again_when_there_is_room(kubelet: Kubelet) -> None:
    priority = f"urgent-{kubelet.api.namespace}"
    kubelet.api.create(manifest("PriorityClass", priority) | {"value": 1000})
    kubelet.api.create(job("train", gpus=1, backoffLimit=0))
    pod = kubelet.pod_of("train")
    kubelet.api.create(training(job("urgent", gpus=1, template={"priorityClassName": priority})))
    victim = kubelet.api.wait(
        "pods", pod["metadata"]["name"], lambda it: "deletionTimestamp" in it["metadata"]
    )
    kubelet.leaves(victim)
    urgent = kubelet.pod_of("urgent")
    kubelet.exits(urgent, 1)
    assert kubelet.failed("urgent") == "PodFailurePolicy"
    again = kubelet.pod_of("train", after=pod["metadata"]["uid"])
    assert again["spec"]["nodeName"] == NODE
    assert kubelet.job("train")["status"].get("failed", 0) == 0
    kubelet.api.delete("priorityclasses", priority)


def test_a_suspended_job_has_its_policy_when_it_is_resumed(kubelet: Kubelet) -> None:
    suspended = training(job("train", suspend=True))
    suspended["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "training"
    made = kubelet.api.create(suspended).body
    assert made["spec"]["podReplacementPolicy"] == "Failed"
    assert [rule["action"] for rule in made["spec"]["podFailurePolicy"]["rules"]] == ["Ignore", "FailJob"]
    kubelet.api.patch("jobs", "train", {"spec": {"suspend": False}})
    pod = kubelet.pod_of("train")
    kubelet.api.patch("jobs", "train", {"spec": {"suspend": True}})
    kubelet.api.wait("jobs", "train", lambda it: not it["status"].get("active"))
    assert not has_condition("Failed")(kubelet.job("train"))
    assert pod["metadata"]["name"]


def test_every_form_of_job_is_accepted(kubelet: Kubelet) -> None:
    """The API server accepts all fields that job-retries writes."""
    indexed = job("indexed", completionMode="Indexed", completions=2, parallelism=2, backoffLimitPerIndex=1)
    made = kubelet.api.create({**indexed, "spec": {**indexed["spec"], "suspend": True}}).body
    assert [rule["action"] for rule in made["spec"]["podFailurePolicy"]["rules"]] == ["Ignore"]

    short = job("short", gpus=1, ttlSecondsAfterFinished=60, suspend=True)
    assert kubelet.api.create(short).body["spec"]["ttlSecondsAfterFinished"] == 60, "what was written stays"

    in_place = job("in-place", gpus=1, backoffLimit=0, suspend=True)
    in_place["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    made = kubelet.api.create(in_place).body
    assert made["spec"]["backoffLimit"] == 0
    assert "podFailurePolicy" not in made["spec"]

    nightly = manifest(
        "CronJob",
        "nightly",
        {
            "schedule": "0 3 * * *",
            "suspend": True,
            "failedJobsHistoryLimit": 0,
            "jobTemplate": {"spec": job("nightly", gpus=1)["spec"]},
        },
    )
    made = kubelet.api.create(nightly).body
    assert made["spec"]["failedJobsHistoryLimit"] == 0
    assert made["spec"]["jobTemplate"]["spec"]["podReplacementPolicy"] == "Failed"
    # An update by someone who does not know of the policy brings it back.
    del made["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]
    updated = kubelet.api.replace(made).body
    assert "podFailurePolicy" in updated["spec"]["jobTemplate"]["spec"]


# --- what the rules about evictions say, without the webhook -----------------------------------------------


def test_without_retries_per_index_the_first_eviction_fails_an_index_for_good(unhelped: Kubelet) -> None:
    unhelped.api.create(job("shards", completionMode="Indexed", completions=1, backoffLimitPerIndex=0))
    unhelped.evict(unhelped.pod_of("shards"))
    assert unhelped.failed("shards") == "FailedIndexes"
    assert unhelped.job("shards")["status"]["failedIndexes"] == "0"


def test_a_job_that_restarts_in_place_loses_the_pod_that_failed(unhelped: Kubelet) -> None:
    """Its pod still runs when the retries are used up: it is deleted, with its log and its exit code."""
    unhelped.api.create(job("train", template={"restartPolicy": "OnFailure"}, backoffLimit=1))
    name = unhelped.pod_of("train")["metadata"]["name"]
    again = {"name": "main", "image": "registry.example/train:1", "imageID": "", "ready": False}
    again |= {"restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    status = {"phase": "Running", "containerStatuses": [again]}
    unhelped.api.patch("pods", name, {"status": status}, subresource="status")
    unhelped.api.wait("pods", name, lambda pod: bool(pod["metadata"].get("deletionTimestamp")))
    unhelped.api.delete("pods", name, grace=0)
    assert unhelped.failed("train") == "BackoffLimitExceeded"


def test_a_job_whose_pods_are_replaced_keeps_the_pod_that_failed(unhelped: Kubelet) -> None:
    unhelped.api.create(job("train", backoffLimit=0))
    pod = unhelped.pod_of("train")
    unhelped.exits(pod, 1)
    assert unhelped.failed("train") == "BackoffLimitExceeded"
    assert "deletionTimestamp" not in unhelped.api.get("pods", pod["metadata"]["name"])["metadata"]


def test_an_eviction_of_one_rank_costs_as_many_retries_as_there_are_ranks(unhelped: Kubelet) -> None:
    """The others lose their peer and fail, too: 3 failures are more than a backoffLimit of 2."""
    made = job("ranks", completionMode="Indexed", completions=3, parallelism=3, backoffLimit=2)
    unhelped.api.create(made)
    ranks = unhelped.api.wait_for(
        "pods",
        lambda found: sum(bool(each["spec"].get("nodeName")) for each in found) == 3,
        labels="batch.kubernetes.io/job-name=ranks",
        timeout=BACKOFF,
    )
    unhelped.evict(ranks[0])
    for rank in ranks[1:]:
        unhelped.exits(rank, 1)
    assert unhelped.failed("ranks") == "BackoffLimitExceeded"


def test_a_misplaced_limit_of_retries_is_dropped(unhelped: Kubelet) -> None:
    unhelped.api.create(job("misplaced", template={"backoffLimit": 1}))
    spec = unhelped.job("misplaced")["spec"]
    assert "backoffLimit" not in spec["template"]["spec"]
    assert spec["backoffLimit"] == 6


def test_a_budget_keeps_a_pod_that_never_became_ready(unhelped: Kubelet) -> None:
    """Until unhealthyPodEvictionPolicy is AlwaysAllow."""
    api = unhelped.api
    labels = {"app": "broken"}
    for number in range(2):
        pod = {"nodeName": NODE, "containers": [{"name": "main", "image": "registry.example/llm:1"}]}
        api.create(manifest("Pod", f"broken-{number}", pod, labels=labels))
        api.patch("pods", f"broken-{number}", {"status": {"phase": "Running"}}, subresource="status")
    api.create(manifest("PodDisruptionBudget", "b", {"minAvailable": 1, "selector": {"matchLabels": labels}}))
    api.wait("poddisruptionbudgets", "b", lambda it: it.get("status", {}).get("expectedPods") == 2)
    path = f"/api/v1/namespaces/{api.namespace}/pods/broken-0/eviction"
    with pytest.raises(ApiError, match="disruption budget"):
        api.request("POST", path, manifest("Eviction", "broken-0"))
    api.patch("poddisruptionbudgets", "b", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    api.wait(
        "poddisruptionbudgets",
        "b",
        lambda it: it["status"]["observedGeneration"] == it["metadata"]["generation"],
    )
    api.request("POST", path, manifest("Eviction", "broken-0"))


def test_a_budget_with_max_unavailable_allows_no_eviction_of_a_job_s_pod(unhelped: Kubelet) -> None:
    api, labels = unhelped.api, {"app": "worker"}
    made = job("worker")
    made["spec"]["template"]["metadata"] = {"labels": labels}
    api.create(made)
    pod = unhelped.pod_of("worker")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.patch("pods", pod["metadata"]["name"], {"status": ready}, subresource="status")
    api.create(
        manifest("PodDisruptionBudget", "b", {"maxUnavailable": 1, "selector": {"matchLabels": labels}})
    )
    failed = api.wait(
        "poddisruptionbudgets",
        "b",
        lambda it: any(each["reason"] == "SyncFailed" for each in it.get("status", {}).get("conditions", [])),
    )
    assert failed["status"]["disruptionsAllowed"] == 0
    name = pod["metadata"]["name"]
    with pytest.raises(ApiError, match="disruption budget"):
        api.request(
            "POST", f"/api/v1/namespaces/{api.namespace}/pods/{name}/eviction", manifest("Eviction", name)
        )
