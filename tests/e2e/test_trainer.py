"""TrainJobs of the real Kubeflow Trainer, whose pods the real JobSet operator makes: what they look like on
arrival, and that neither operator reverts what our webhook adds."""

from __future__ import annotations

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    JOB_SET,
    TRAINER,
    TRAINING,
    Operator,
    added,
    bound_pods,
    end,
    first_of_two,
    fixture,
    new_pods,
    place,
    plain_and_changed,
    run,
    uid,
)
from tests.e2e.status import has_condition
from tests.e2e.workloads import probes
from tests.manifests import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

TRAIN_JOBS = "trainjobs.trainer.kubeflow.org"
WRITTEN = ("pods", "jobs", "services", "jobsets.jobset.x-k8s.io", TRAIN_JOBS)
GPUS = {"limits": {"nvidia.com/gpu": "1"}}
API_VERSION = "trainer.kubeflow.org/v1alpha1"


operator = fixture("trainers", JOB_SET, TRAINER)


def runtime(namespace: str, **node: object) -> JSON:
    """A runtime as Kubeflow ships it for PyTorch, with a place for its pods."""
    container = {"name": "node", "image": "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime", **node}
    pod = {"containers": [container], **place("trainers")}
    job = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        },
    }
    return manifest(
        "TrainingRuntime",
        "torch",
        {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [job]}},
        },
        version=API_VERSION,
        namespace=namespace,
        labels={"trainer.kubeflow.org/framework": "torch"},
    )


def train_job(name: str, namespace: str, **trainer: object) -> JSON:
    """Two nodes of a runtime."""
    return manifest(
        "TrainJob",
        name,
        {
            "runtimeRef": {"kind": "TrainingRuntime", "name": "torch"},
            "trainer": {
                "numNodes": 2,
                "image": "registry.example/train:1",
                "command": ["torchrun", "train.py"],
                "resourcesPerNode": GPUS,
                **trainer,
            },
        },
        version=API_VERSION,
        namespace=namespace,
    )


def pods_of(api: Api, namespace: str, name: str) -> list[JSON]:
    """The two pods of a new TrainJob."""
    api.create(train_job(name, namespace))
    return bound_pods(api, namespace, f"jobset.sigs.k8s.io/jobset-name={name}", 2)


def runs(api: Api, namespace: str, name: str) -> list[JSON]:
    """Let all pods run, and wait until the Trainer has counted their Job as ready."""
    pods = pods_of(api, namespace, name)
    for pod in pods:
        run(api, pod)
    api.wait(
        TRAIN_JOBS,
        name,
        lambda it: [each["ready"] for each in it.get("status", {}).get("jobsStatus", ())] == [1],
        namespace=namespace,
        timeout=60,
    )
    return pods


def test_pods_arrive_as_children_of_jobs_and_get_no_probes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api

    def made(namespace: str) -> list[JSON]:
        api.create(runtime(namespace))
        return pods_of(api, namespace, "train")

    (plain, _), (first, second) = plain_and_changed(control_plane, namespace, made)
    for index, pod in enumerate((first, second)):
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "train-node-0", True)
        assert pod["metadata"]["name"].startswith(f"train-node-0-{index}-")
    (container,) = first["spec"]["containers"]
    assert (container["name"], container["image"]) == ("node", "registry.example/train:1")
    assert container["resources"]["limits"] == GPUS["limits"]
    assert "PET_MASTER_ADDR" in {each["name"] for each in container["env"]}, "written by the Trainer"
    assert probes(first) == set()
    assert added(plain, first) == TRAINING
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    (job,) = api.items("jobs", namespace)
    assert "podFailurePolicy" not in job["spec"], "a failed member has to fail its Job, and so the set"


@pytest.mark.parametrize(("codes", "condition"), [({}, "Complete"), ({"node": 1}, "Failed")])
def test_the_operators_write_no_more_once_the_job_runs_and_then_see_its_end(
    codes: dict[str, int],
    condition: str,
    control_plane: ControlPlane,
    chassis: Chassis,
    operator: Operator,
    namespace: str,
) -> None:
    api = control_plane.api
    api.create(runtime(namespace))
    pods = first_of_two(api, namespace, WRITTEN, lambda name: runs(api, namespace, name))
    for pod in pods:
        end(api, pod, codes)
    api.wait(TRAIN_JOBS, "first", has_condition(condition), namespace=namespace, timeout=60)


def test_findings_name_the_place_in_the_runtime(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    heavy = {"exec": {"command": ["python", "-c", "import torch"]}}
    warnings = control_plane.api.create(runtime(namespace, livenessProbe=heavy), dry_run=True).warnings
    path = "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].livenessProbe"
    assert any(path in each for each in warnings), warnings


@pytest.mark.parametrize("ttl", [1, None], ids=["a time to live", "default"])
def test_a_failed_job_begins_again_when_its_job_set_has_been_deleted(
    ttl: int | None,
    control_plane: ControlPlane,
    chassis: Chassis,
    operator: Operator,
    bare: str,
    namespace: str,
) -> None:
    """As job-runs-again says: each time with all of its restarts, and never without a time to live."""
    api, sets = control_plane.api, "jobsets.jobset.x-k8s.io"
    made = runtime(bare)
    made["spec"]["template"]["spec"] |= {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    warned = {**made, "metadata": {**made["metadata"], "namespace": namespace}}
    assert ("job-runs-again" in api.warnings(warned)) is (ttl is not None)
    api.create(made)
    api.create(train_job("train", bare, numNodes=1))
    seen: set[str] = set()
    for _ in range(1 if ttl is None else 2):
        (pod,) = new_pods(api, "", besides=seen, namespace=bare)
        run(api, pod)
        (job_set,) = api.items(sets, bare)
        assert not job_set.get("status", {}).get("restarts")
        end(api, pod, {"node": 1})
        api.wait(sets, "train", has_condition("Failed"), namespace=bare, timeout=60)
        seen.add(uid(pod))
    if ttl is None:
        api.wait(TRAIN_JOBS, "train", has_condition("Failed"), namespace=bare, timeout=60)
        assert len(api.items("pods", bare)) == 1
