"""ray-workers-die-with-head: what ends Ray workers while they wait for a restarted head."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import RAY_KINDS
from policies.kube.objects.ray import RayObject
from policies.kube.pods import Container, Role
from policies.kube.quantities import whole_number
from policies.probes.probe import LIVENESS, probes

_RECONNECT: Final = "RAY_gcs_rpc_server_reconnect_timeout_s"
_KUBERAYS: Final = 600
"""Seconds that KubeRay 1.0 to 1.6 sets for workers if the GCS is fault tolerant, in
ray-operator/controllers/ray/utils/constant.go."""
_HEAD: Final = 120
"""Seconds until a new head's GCS usually answers, as KubeRay's source says next to that constant."""


def check(target: Target, facts: Facts) -> Findings:
    if not target.read(RayObject).keeps_gcs:
        return  # the workers are lost with their head anyway
    yield from _impatient(target)
    for probe in probes(target, LIVENESS):
        if ".workerGroupSpecs" not in probe.template.path or probe.container.index:
            continue
        waits = _reconnect(probe.container)
        if probe.give_up < min(waits, _HEAD):
            yield Finding(
                probe.at("failureThreshold"),
                f"The {probe.name} gives up after {probe.give_up} s. While the head restarts, Ray's health "
                f"check may not answer, and the worker may wait up to {waits} s for the head. The kubelet "
                "then ends the workers although the state of the cluster is kept.",
                "Remove the probe, since KubeRay adds one of 600 s, or set failureThreshold: 120.",
            )


def _impatient(target: Target) -> Findings:
    """Workers that end before a new head usually answers."""
    for template in target.templates:
        if ".workerGroupSpecs" not in template.path:
            continue
        for container in template.containers(Role.MAIN):
            waits = _reconnect(container)
            if container.index == 0 and waits < _HEAD:
                index = [each.name for each in container.typed.env].index(_RECONNECT)
                yield Finding(
                    template.at(container, f"env[{index}]", "value"),
                    f"The raylet of container {container.name} ends when the head hasn't answered for "
                    f"{waits} s, but a restarted head often needs up to {_HEAD} s. The workers then restart "
                    "although the state of the cluster is kept.",
                    f"Remove {_RECONNECT}: KubeRay sets {_KUBERAYS} for workers.",
                )


def _reconnect(container: Container) -> int:
    """Seconds for which the worker waits for the GCS."""
    values = [variable.value for variable in container.typed.env if variable.name == _RECONNECT]
    seconds = whole_number(values[-1]) if values else None
    return _KUBERAYS if seconds is None else seconds


RULE = rule(__name__, check, RAY_KINDS)
