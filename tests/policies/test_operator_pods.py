"""Pods as operators make them, read in their sources: injected fields do not break the operator's
assumptions.

Each operator finds its pods by labels and owner, and some by the order of containers. None of them compares a
running pod with its template, so a field that is added does not make it recreate the pod.
"""

from __future__ import annotations

from typing import Any

import pytest

from policies.kube.json import Json
from policies.kube.pods import Role, containers
from tests.manifests import manifest
from webhook.admission.engine import mutate
from webhook.config.load import load
from webhook.kube.offline import Document, ManifestCluster

GPU: Json = {"limits": {"nvidia.com/gpu": "8"}}
MODELS: Json = manifest(
    "ConfigMap",
    "models",
    data={"models.json": '[{"modelName": "a", "modelSpec": {"storageUri": "s3://m/a"}}]'},
    namespace="ml",
    labels={"mlchassis.dev/model-config": "true"},
)


def pod(owner: tuple[str, str], labels: dict[str, str], spec: Json, **annotations: str) -> Json:
    api, kind = owner
    reference = {"apiVersion": api, "kind": kind, "name": "own", "uid": "u", "controller": True}
    asked = {"mlchassis.dev/model-config": "models"} | {
        key.replace("__", "/"): v for key, v in annotations.items()
    }
    metadata = {
        "name": "x",
        "namespace": "ml",
        "labels": labels,
        "annotations": asked,
        "ownerReferences": [reference],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


JOB_SET = pod(  # sigs.k8s.io/jobset v0.10.1, pkg/controllers/jobset_controller.go
    ("batch/v1", "Job"),
    {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "batch.kubernetes.io/job-completion-index": "1",
        "batch.kubernetes.io/job-name": "train-workers-0",
    },
    {
        "restartPolicy": "Never",
        "subdomain": "train",
        "hostname": "train-workers-0-1",
        "containers": [{"name": "worker", "image": "example.org/train:1", "resources": GPU}],
    },
)
MPI_WORKER = pod(  # github.com/kubeflow/mpi-operator v0.6.0, pkg/controller/mpi_job_controller.go
    ("kubeflow.org/v2beta1", "MPIJob"),
    {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/job-role": "worker",
        "training.kubeflow.org/replica-index": "0",
    },
    {
        "restartPolicy": "Never",
        "subdomain": "train",
        "hostname": "train-worker-0",
        "dnsConfig": {"searches": ["train.ml.svc.cluster.local"]},
        "containers": [
            {
                "name": "worker",
                "image": "example.org/mpi:1",
                "command": ["/usr/sbin/sshd", "-De"],
                "env": [{"name": "K_MPI_JOB_ROLE", "value": "worker"}],
                "resources": GPU,
                "volumeMounts": [{"name": "ssh-auth", "mountPath": "/root/.ssh"}],
            }
        ],
        "volumes": [{"name": "ssh-auth", "secret": {"secretName": "train-ssh"}}],
    },
)
MPI_LAUNCHER = pod(  # the same; its owner is the Job that the operator makes
    ("batch/v1", "Job"),
    {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/job-role": "launcher",
    },
    {
        "restartPolicy": "OnFailure",
        "subdomain": "train",
        "hostname": "train-launcher",
        "containers": [
            {
                "name": "launcher",
                "image": "example.org/mpi:1",
                "command": ["mpirun", "-n", "2", "python", "train.py"],
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES"}, {"name": "NVIDIA_DRIVER_CAPABILITIES"}],
            }
        ],
    },
)
PYTORCH = pod(  # github.com/kubeflow/training-operator v1.9.3, pkg/controller.v1
    ("kubeflow.org/v1", "PyTorchJob"),
    {
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
    },
    {
        "restartPolicy": "OnFailure",
        "initContainers": [
            {
                "name": "init-pytorch",
                "image": "alpine:3.10",
                "command": ["sh", "-c", "until nslookup train-master-0; do sleep 2; done;"],
            }
        ],
        "containers": [{"name": "pytorch", "image": "example.org/train:1", "resources": GPU}],
    },
)
ARGO = pod(  # github.com/argoproj/argo-workflows v3.7.2, workflow/controller/workflowpod.go
    ("argoproj.io/v1alpha1", "Workflow"),
    {"workflows.argoproj.io/workflow": "train", "workflows.argoproj.io/completed": "false"},
    {
        "restartPolicy": "Never",
        "initContainers": [
            {"name": "init", "image": "argoproj/argoexec:v3.7.2", "command": ["argoexec", "init"]}
        ],
        "containers": [
            {"name": "wait", "image": "argoproj/argoexec:v3.7.2", "command": ["argoexec", "wait"]},
            {
                "name": "main",
                "image": "example.org/train:1",
                "command": ["/var/run/argo/argoexec", "emissary", "--", "python", "train.py"],
                "resources": GPU,
            },
        ],
    },
    **{"workflows.argoproj.io__node-id": "train-1", "kubectl.kubernetes.io__default-container": "main"},
)
KSERVE = pod(  # github.com/kserve/kserve v0.16.0, reconcilers/deployment/deployment_reconciler.go
    ("apps/v1", "ReplicaSet"),
    {"serving.kserve.io/inferenceservice": "llm", "component": "predictor", "app": "isvc.llm-predictor"},
    {
        "containers": [
            {
                "name": "kserve-container",
                "image": "vllm/vllm-openai:v0.11.0",
                "args": ["--model", "/mnt/models", "--port", "8080"],
                "ports": [{"containerPort": 8080}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "timeoutSeconds": 1, "failureThreshold": 3},
                "resources": GPU,
            }
        ]
    },
    **{"internal.serving.kserve.io__storage-initializer-sourceuri": "pvc://models/llm"},
)
PODS = {
    "jobset": JOB_SET,
    "mpi-worker": MPI_WORKER,
    "mpi-launcher": MPI_LAUNCHER,
    "pytorch": PYTORCH,
    "argo": ARGO,
    "kserve": KSERVE,
}


def injected(made: Json) -> Json:
    request = Document("test", 0, made).request()
    return mutate(request, load({}), ManifestCluster([made, MODELS])).object


@pytest.mark.parametrize("made", PODS.values(), ids=PODS.keys())
def test_what_the_operator_relies_on_stays(made: Json) -> None:
    after = injected(made)
    assert after is not made, "something is injected"
    metadata = after["metadata"]
    for name in ("labels", "ownerReferences", "name"):
        assert metadata[name] == made["metadata"][name]
    assert made["metadata"]["annotations"].items() <= metadata["annotations"].items()
    for name in ("hostname", "subdomain", "restartPolicy", "dnsConfig", "nodeName"):
        assert after["spec"].get(name) == made["spec"].get(name)
    assert [each["name"] for each in after["spec"]["containers"]] == [
        each["name"] for each in made["spec"]["containers"]
    ], "no container is added between those of the operator: the puller is a native sidecar"


@pytest.mark.parametrize("made", PODS.values(), ids=PODS.keys())
def test_each_container_keeps_what_it_has(made: Json) -> None:
    own = {each.name: each.spec for each in containers(made)}
    for container in containers(injected(made)):
        for key, value in own.get(container.name, {}).items():
            if isinstance(value, list):
                assert [each for each in container.spec[key] if each in value] == value
            else:
                assert container.spec[key] == value


@pytest.mark.parametrize("name", ["jobset", "mpi-worker", "mpi-launcher", "pytorch", "argo"])
def test_nothing_that_completes_gets_a_probe(name: str) -> None:
    for container in containers(injected(PODS[name]), Role.MAIN):
        assert not any(key.endswith("Probe") for key in container.spec)


def test_the_probe_that_kserve_writes_stays_and_the_others_are_added() -> None:
    (container,) = containers(injected(KSERVE), Role.MAIN)
    probes: dict[str, Any] = {key: value for key, value in container.spec.items() if key.endswith("Probe")}
    assert probes["readinessProbe"] == KSERVE["spec"]["containers"][0]["readinessProbe"]
    assert probes["livenessProbe"]["httpGet"]["path"] == "/health"
    assert probes["startupProbe"]["httpGet"]["path"] == "/health"
