"""TrainJobs of the real Kubeflow Trainer, whose pods the real JobSet operator makes: what they look like on
arrival, and that neither operator reverts what our webhook adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import JOB_SET, TRAINER, Operator, added, bound, end, run, versions
from tests.e2e.workloads import probes

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

NODE = "node-of-trainers"
TRAIN_JOBS = "trainjobs.trainer.kubeflow.org"
WRITTEN = ("pods", "jobs", "services", "jobsets.jobset.x-k8s.io", TRAIN_JOBS)
GPUS = {"limits": {"nvidia.com/gpu": "1"}}
API_VERSION = "trainer.kubeflow.org/v1alpha1"


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    taint = {"key": "trainers", "effect": "NoSchedule"}
    # Only these tests run the pods of this node: no other pod may be bound to it.
    control_plane.add_node(NODE, {"trainers": "yes"}, [taint], {"nvidia.com/gpu": "64"}, runs_pods=False)
    with (
        Operator(JOB_SET, control_plane, tmp_path_factory.mktemp("jobset")),
        Operator(TRAINER, control_plane, tmp_path_factory.mktemp("trainer")) as running,
    ):
        yield running
    control_plane.api.delete("nodes", NODE)


def runtime(namespace: str, **node: object) -> JSON:
    """A runtime as Kubeflow ships it for PyTorch, with a place for its pods."""
    pod = {
        "nodeSelector": {"trainers": "yes"},
        "tolerations": [{"key": "trainers", "operator": "Exists"}],
        "containers": [{"name": "node", "image": "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime", **node}],
    }
    job = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        },
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime",
        "metadata": {
            "name": "torch",
            "namespace": namespace,
            "labels": {"trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [job]}},
        },
    }


def train_job(name: str, namespace: str, **trainer: object) -> JSON:
    """Two nodes of a runtime."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": "torch"},
            "trainer": {
                "numNodes": 2,
                "image": "registry.example/train:1",
                "command": ["torchrun", "train.py"],
                "resourcesPerNode": GPUS,
                **trainer,
            },
        },
    }


def pods_of(api: Api, namespace: str, name: str, count: int = 2) -> list[JSON]:
    """The bound pods of a TrainJob."""
    pods = api.wait_for(
        "pods",
        lambda found: len(found) == count and all(map(bound, found)),
        namespace=namespace,
        labels=f"jobset.sigs.k8s.io/jobset-name={name}",
        timeout=60,
    )
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


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
    bare = f"{namespace}-bare"
    control_plane.create_namespace(bare, {"mlchassis.dev/admission": "disabled"})
    for place in (bare, namespace):
        api.create(runtime(place))
        api.create(train_job("train", place))
    (plain, _), (first, second) = (pods_of(api, place, "train") for place in (bare, namespace))
    api.delete("namespaces", bare)

    for index, pod in enumerate((first, second)):
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "train-node-0", True)
        assert pod["metadata"]["name"].startswith(f"train-node-0-{index}-")
    (container,) = first["spec"]["containers"]
    assert (container["name"], container["image"]) == ("node", "registry.example/train:1")
    assert container["resources"]["limits"] == GPUS["limits"]
    assert "PET_MASTER_ADDR" in {each["name"] for each in container["env"]}, "written by the Trainer"
    assert probes(first) == set()
    # Whether affinity is added depends on the nodes that other tests have added.
    assert added(plain, first) - {"affinity"} == {
        "annotations.cluster-autoscaler.kubernetes.io/safe-to-evict",
        "annotations.karpenter.sh/do-not-disrupt",
        "annotations.mlchassis.dev/changed",
        "tolerations",
    }
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
    api.create(train_job("first", namespace))
    pods = runs(api, namespace, "first")
    before = versions(api, namespace, WRITTEN)
    # By the time that another job runs, the operators would have written again.
    api.create(train_job("second", namespace))
    runs(api, namespace, "second")
    after = versions(api, namespace, WRITTEN)
    assert {key: after.get(key) for key in before} == before
    for pod in pods:
        end(api, pod, codes)
    api.wait(
        TRAIN_JOBS,
        "first",
        lambda it: any(
            (each["type"], each["status"]) == (condition, "True")
            for each in it["status"].get("conditions", ())
        ),
        namespace=namespace,
        timeout=60,
    )


def test_findings_name_the_place_in_the_runtime(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    heavy = {"exec": {"command": ["python", "-c", "import torch"]}}
    warnings = control_plane.api.create(runtime(namespace, livenessProbe=heavy), dry_run=True).warnings
    path = "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].livenessProbe"
    assert any(path in each for each in warnings), warnings
