"""The workloads that end-to-end tests send to the API server, as plain objects."""

from __future__ import annotations

from copy import deepcopy

from tests.e2e.api import JSON, Api
from tests.manifests import manifest

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
VLLM = "vllm/vllm-openai:v0.10.2"
UNKNOWN = "registry.example/recommender:7"


def container(image: str = VLLM, port: int | None = 8000, **fields: object) -> JSON:
    """A container named `main`, with a port if one is given."""
    ports = {"ports": [{"containerPort": port}]} if port else {}
    return {"name": "main", "image": image, **ports, **fields}


def pod(name: str, *containers: JSON, **spec: object) -> JSON:
    """A pod; without containers it gets one that serves a model with vLLM."""
    return manifest(
        "Pod", name, {"containers": list(containers) or [container()], **spec}, labels={"app": name}
    )


def template(name: str, *containers: JSON, **spec: object) -> JSON:
    """The same pod as a template."""
    made = pod(name, *containers, **spec)
    return {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}


def workload(
    kind: str, name: str, *containers: JSON, replicas: int = 1, pod: JSON | None = None, **spec: object
) -> JSON:
    """A Deployment, StatefulSet or DaemonSet of that pod; `pod` adds fields to the pod's spec."""
    if kind != "DaemonSet":
        spec["replicas"] = replicas
    if kind == "StatefulSet":
        spec["serviceName"] = name
    selected = {
        "selector": {"matchLabels": {"app": name}},
        "template": template(name, *containers, **pod or {}),
    }
    return manifest(kind, name, selected | spec)


def job(name: str, *containers: JSON) -> JSON:
    """A Job whose pod runs once."""
    made = template(name, *containers, restartPolicy="Never")
    return manifest("Job", name, {"template": made})


def named(item: JSON, name: str) -> JSON:
    """A copy of an object under another name."""
    copy = deepcopy(item)
    copy["metadata"]["name"] = name
    return copy


def probes(pod_or_template: JSON, index: int = 0) -> set[str]:
    """Which probes a container has."""
    found = pod_or_template["spec"]["containers"][index]
    return {probe for probe in PROBES if probe in found}


def injected(api: Api, namespace: str = "default") -> set[str]:
    """The probes that a pod created now gets, by dry run."""
    return probes(api.create(pod("now"), namespace, dry_run=True).body)
