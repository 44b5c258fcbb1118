"""The pods that KubeRay makes from a template, as far as mutators distinguish them from the template.

The release of KubeRay is unknown: these are the pods of 1.6. Up to 1.5 its probes run commands for all
versions of Ray.

Source: github.com/ray-project/kuberay v1.6.2, ray-operator/controllers/ray/common/pod.go (labelPod, BuildPod,
initLivenessAndReadinessProbe, configureGCSFaultTolerance) and controllers/ray/utils/constant.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from policies.core.groups import RAY_GROUP, RAY_NODE_TYPE, RAY_SERVES
from policies.core.target import PodTemplate
from policies.kube.group_kinds import RAY_KINDS, RAY_SERVICE, kind_of
from policies.kube.json import Json, integer, mapping, maps, replaced, text
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import EMPTY
from policies.kube.objects.ray import FT_ENABLED, RayClusterSpec, RayObject
from policies.kube.objects.reading import WrongTypeError, read
from policies.kube.quantities import whole_number

_HEAD: Final = ".headGroupSpec"
_AGENT_PORT, _DASHBOARD_PORT, SERVE_PORT = 52365, 8265, 8000
SERVE_PORT_NAME: Final = "serve"
_PROBES: Final = {
    "livenessProbe": {"initialDelaySeconds": 30, "periodSeconds": 5, "failureThreshold": 120},
    "readinessProbe": {"initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 10},
}
_HEAD_TIMEOUT, _WORKER_TIMEOUT = 5, 2
_SERVE_FAILURES: Final = 1
_HTTP_SINCE: Final = (2, 53)
"""The version of Ray with one endpoint for the health of a node."""
_VERSION: Final = re.compile(r"\s*v?([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)


def pod_of_kuberay(obj: Json, template: PodTemplate) -> Json | None:
    """The pod of a template of a Ray cluster; None for the templates of other pods and kinds."""
    if kind_of(obj) not in RAY_KINDS or not template.is_exact:
        return None
    try:
        typed = read(obj, type_of(kind_of(obj)))
    except WrongTypeError:
        return None
    if not isinstance(typed, RayObject):
        return None
    role = "head" if _HEAD in template.path else "worker"
    group = "headgroup" if role == "head" else text(obj, *template.steps[:-1], "groupName")
    labels = {"ray.io/is-ray-node": "yes", RAY_NODE_TYPE: role, RAY_GROUP: group}
    serves = kind_of(obj) == RAY_SERVICE
    if serves:
        labels[RAY_SERVES] = "false" if role == "head" else "true"
    pod = template.pod
    pod = replaced(pod, ("metadata", "labels"), {**mapping(pod, "metadata", "labels"), **labels})
    if role == "head":
        marked = "true" if typed.is_fault_tolerant else "false"
        pod = replaced(pod, ("metadata", "annotations", FT_ENABLED), marked)
    first = next(iter(maps(pod, "spec", "containers")), None)
    if first is None:
        return pod
    added = _probes(first, template, typed.cluster, serves=serves)
    return replaced(pod, ("spec", "containers", 0), {**first, **added})


def _probes(container: Json, template: PodTemplate, cluster: RayClusterSpec, *, serves: bool) -> Json:
    """The probes that KubeRay adds to the Ray container."""
    is_head = template.entry is None
    parameters = start_parameters(cluster, template)
    checks = list(_checks(parameters, is_head=is_head))
    handler: Json = _command(checks)
    if _has_one_endpoint(cluster.ray_version):
        port = _port(parameters, "dashboard-agent-listen-port", _AGENT_PORT)
        handler = {"httpGet": {"path": "/api/healthz", "port": port}}
    timeout = {"timeoutSeconds": _HEAD_TIMEOUT if is_head else _WORKER_TIMEOUT}
    added = {field: {**handler, **timeout, **times} for field, times in _PROBES.items()}
    if serves and not is_head:
        proxy = _wget(10, serve_port(container), "-/healthz")
        times = {**_PROBES["readinessProbe"], "failureThreshold": _SERVE_FAILURES}
        added["readinessProbe"] = {**_command([*checks, proxy]), **timeout, **times}
    return {field: probe for field, probe in added.items() if not container.get(field)}


def serve_port(container: Json) -> int:
    """The port of a worker that KubeRay asks for Serve's proxy."""
    named = (each for each in maps(container, "ports") if text(each, "name") == SERVE_PORT_NAME)
    return next((integer(each, "containerPort", default=SERVE_PORT) for each in named), SERVE_PORT)


def start_parameters(cluster: RayClusterSpec, template: PodTemplate) -> Mapping[str, str]:
    """The rayStartParams of the group whose pods a template describes."""
    index = template.entry
    if index is None:
        return cluster.head_group_spec.ray_start_params
    groups = cluster.worker_group_specs
    return groups[index].ray_start_params if index < len(groups) else EMPTY


def _checks(parameters: Mapping[str, str], *, is_head: bool) -> Iterator[str]:
    """The commands of a probe: a raylet's, and on the head that of the GCS."""
    yield _wget(2, _port(parameters, "dashboard-agent-listen-port", _AGENT_PORT), "api/local_raylet_healthz")
    if is_head:
        yield _wget(10, _port(parameters, "dashboard-port", _DASHBOARD_PORT), "api/gcs_healthz")


def _wget(timeout: int, port: int, path: str) -> str:
    return f"wget --tries 1 -T {timeout} -q -O- http://localhost:{port}/{path} | grep success"


def _command(checks: list[str]) -> dict[str, Any]:
    return {"exec": {"command": ["bash", "-c", " && ".join(checks)]}}


def _port(parameters: Mapping[str, str], name: str, default: int) -> int:
    value = whole_number(parameters.get(name), 5)
    return default if value is None else value


def _has_one_endpoint(version: str) -> bool:
    """Whether `rayVersion` is one with httpGet probes."""
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) >= _HTTP_SINCE
