"""The reviews that servers are measured with: pods as ReplicaSets make them, and Deployments.

A stream depends only on a seed, so that every server of a round answers the same reviews in the same
order.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

import orjson

from policies.kube.json import Json

NAMESPACE = "ml"
SERVERS = (
    ("nvcr.io/nvidia/tritonserver", 8000, ["tritonserver", "--model-repository=/models"]),
    ("vllm/vllm-openai", 8000, ["--model", "meta-llama/Llama-3.1-8B-Instruct"]),
    ("pytorch/torchserve", 8080, ["torchserve", "--start", "--foreground"]),
    ("ghcr.io/example/ranker", 9090, ["python", "-m", "ranker.serve"]),
)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Stream:
    """Reviews to send in this order, after `known` has been sent once, unmeasured."""

    known: list[bytes]
    measured: list[bytes]


def cluster() -> list[Json]:
    """What the servers know of the cluster: the namespace, 50 Nodes of which 10 have GPUs, 200 Services."""
    gpus = {"nvidia.com/gpu": "8"}
    nodes: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"node-{number}", "labels": {"kubernetes.io/os": "linux"}},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", **(gpus if number % 5 == 0 else {})},
                "nodeInfo": {"kubeletVersion": "v1.34.1"},
            },
        }
        for number in range(50)
    ]
    services: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"service-{number}", "namespace": NAMESPACE},
            "spec": {"selector": {"app": f"app-{number}"}, "clusterIP": f"10.0.1.{number}"},
        }
        for number in range(200)
    ]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {}}}
    return [namespace, *nodes, *services]


class Workloads:
    """What sends the reviews: each call makes another workload, or another replica of one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pods(self, count: int, seen: float) -> Stream:
        """Creations of pods; the share `seen` of them are further replicas of 20 known ReplicaSets."""
        known, pods = self.replicas(count, seen)
        return Stream([*map(self._created, known)], [*map(self._created, pods)])

    def replicas(self, count: int, seen: float) -> tuple[list[Json], list[Json]]:
        """The pods of 20 known ReplicaSets, and others as a controller sends them to be created."""
        known = [self._pod() for _ in range(20)]
        old = round(count * seen)
        pods = [self._random.choice(known) for _ in range(old)] + [self._pod() for _ in range(count - old)]
        self._random.shuffle(pods)
        return known, pods

    def deployments(self, count: int, seen: float) -> Stream:
        """Creations of Deployments of 15 KB; `seen` of them were sent before, as a rollout's retry is."""
        known = [self._deployment() for _ in range(20)]
        old = round(count * seen)
        new = [self._deployment() for _ in range(count - old)]
        sent = [self._random.choice(known) for _ in range(old)] + new
        self._random.shuffle(sent)
        return Stream([*map(self._created, known)], [*map(self._created, sent)])

    def rollouts(self, count: int) -> Stream:
        """Creations of Deployments whose pod templates were sent before, in Deployments of another text."""
        known = [self._deployment() for _ in range(20)]
        sent = [self._reworded(self._random.choice(known)) for _ in range(count)]
        return Stream([*map(self._created, known)], [*map(self._created, sent)])

    def _reworded(self, deployment: Json) -> Json:
        metadata = {**deployment["metadata"], "annotations": {"example.com/description": self._text(4000)}}
        return {**deployment, "metadata": metadata}

    # --- objects ---------------------------------------------------------------------------------------

    def _text(self, length: int) -> str:
        return "".join(self._random.choices(_SUFFIX, k=length))

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _containers(self, options: int) -> list[Json]:
        image, port, args = self._random.choice(SERVERS)
        return [
            {
                "name": "server",
                "image": f"{image}:24.{self._random.randrange(1000)}",
                "args": [*args, f"--seed={self._random.randrange(10**9)}"],
                "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
                "env": [{"name": f"OPTION_{number}", "value": self._text(20)} for number in range(options)],
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "memory": "32Gi"},
                    "requests": {"cpu": "4", "memory": "32Gi"},
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ]

    def _spec(self, options: int) -> Json:
        return {
            "containers": self._containers(options),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
        }

    def _pod(self) -> Json:
        """A pod as one ReplicaSet makes them, except for the fields of each replica."""
        app, generation = f"model-{self._text(6)}", self._text(10)
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": f"{app}-{generation}",
            "uid": self._uuid(),
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {
            "generateName": f"{app}-{generation}-",
            "namespace": NAMESPACE,
            "labels": {"app": app, "pod-template-hash": generation},
            "ownerReferences": [owner],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self._spec(20)}

    def _deployment(self) -> Json:
        app = f"model-{self._text(6)}"
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": app,
                "namespace": NAMESPACE,
                "labels": {"app": app},
                "annotations": {"example.com/description": self._text(4000)},
            },
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"app": app}},
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
                },
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
                "template": {"metadata": {"labels": {"app": app}}, "spec": self._spec(100)},
            },
        }

    # --- reviews ---------------------------------------------------------------------------------------

    def _created(self, obj: Json) -> bytes:
        """The review of an object's creation, with what the API server adds to each one."""
        second = self._random.randrange(60)
        metadata = {
            **obj["metadata"],
            "uid": self._uuid(),
            "creationTimestamp": f"2026-01-05T09:30:{second:02}Z",
        }
        metadata["managedFields"] = [
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "apiVersion": obj["apiVersion"],
                "time": metadata["creationTimestamp"],
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {f"f:{key}": {} for key in obj["spec"]},
                },
            }
        ]
        obj = {**obj, "metadata": metadata}
        if obj["kind"] == "Pod":
            obj["spec"] = self._with_token(obj["spec"])
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = {"group": group, "version": version, "kind": obj["kind"]}
        resource = {"group": group, "version": version, "resource": f"{obj['kind'].lower()}s"}
        account = "replicaset-controller" if obj["kind"] == "Pod" else "deployer"
        request = {
            "uid": self._uuid(),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": obj["metadata"].get("name", ""),
            "namespace": NAMESPACE,
            "operation": "CREATE",
            "userInfo": {
                "username": f"system:serviceaccount:kube-system:{account}",
                "uid": "6a7c9f3e-5e0b-4c0c-9f2e-1d2f3a4b5c6d",
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:kube-system",
                    "system:authenticated",
                ],
            },
            "object": obj,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        }
        return orjson.dumps(
            {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
        )

    def _with_token(self, spec: Json) -> Json:
        """The pod with its service account's token, whose volume gets a name at random."""
        name = f"kube-api-access-{self._text(5)}"
        mount = {
            "name": name,
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
        sources = [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        return {
            **spec,
            "volumes": [{"name": name, "projected": {"sources": sources, "defaultMode": 420}}],
            "containers": [{**container, "volumeMounts": [mount]} for container in spec["containers"]],
        }
