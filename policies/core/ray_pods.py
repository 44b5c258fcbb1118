"""The pods that KubeRay makes from a template, as far as mutators distinguish them from the template.

Source: github.com/ray-project/kuberay v1.6, ray-operator/controllers/ray/common/pod.go (labelPod,
initLivenessAndReadinessProbe, configureGCSFaultTolerance).
"""

from __future__ import annotations

from typing import Any, Final

from policies.core.target import PodTemplate
from policies.kube.group_kinds import RAY_KINDS, kind_of
from policies.kube.json import Json, mapping, maps, replaced, text
from policies.kube.objects.kinds import type_of
from policies.kube.objects.ray import FT_ENABLED, RayObject
from policies.kube.objects.reading import WrongTypeError, read

_HEAD: Final = ".headGroupSpec"
_RAYLET: Final = "wget --tries 1 -T 2 -q -O- http://localhost:52365/api/local_raylet_healthz | grep success"
_PROBES: Final = {
    "livenessProbe": {"initialDelaySeconds": 30, "periodSeconds": 5, "failureThreshold": 120},
    "readinessProbe": {"initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 10},
}
_TIMEOUTS: Final = {"head": 5, "worker": 2}


def pod_of_kuberay(obj: Json, template: PodTemplate) -> Json | None:
    """The pod of a template of a Ray cluster; None for the templates of other pods and kinds."""
    if kind_of(obj) not in RAY_KINDS or not template.is_exact:
        return None
    try:
        typed = read(obj, type_of(kind_of(obj)))
    except WrongTypeError:
        return None
    role = "head" if _HEAD in template.path else "worker"
    group = "headgroup" if role == "head" else text(obj, *template.steps[:-1], "groupName")
    labels = {
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": role,
        "ray.io/group": group,
        "ray.io/originated-from-crd": text(obj, "kind"),
    }
    pod = template.pod
    pod = replaced(pod, ("metadata", "labels"), {**mapping(pod, "metadata", "labels"), **labels})
    if isinstance(typed, RayObject) and typed.keeps_gcs:
        pod = replaced(pod, ("metadata", "annotations", FT_ENABLED), "true")
    first = next(iter(maps(pod, "spec", "containers")), None)
    return pod if first is None else replaced(pod, ("spec", "containers", 0), _with_probes(first, role))


def _with_probes(container: Json, role: str) -> Json:
    handler: dict[str, Any] = {
        "exec": {"command": ["bash", "-c", _RAYLET]},
        "timeoutSeconds": _TIMEOUTS[role],
    }
    added = {field: {**handler, **times} for field, times in _PROBES.items() if not container.get(field)}
    return {**container, **added}
