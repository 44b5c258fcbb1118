"""The complete manifest on the page of a model server, made of the facts about it.

A test reviews each with the built-in policy: no warning may be left.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from policies.probes.preset import Preset, Protocol

_DEFAULT_START: Final = 300
_PERIOD: Final = 10
_MARGIN: Final = 600
"""Seconds for the scheduling and the image, which count in progressDeadlineSeconds."""


def server_manifest(name: str, preset: Preset) -> str:
    """A Deployment, its Service and its claim as YAML; empty if the page has none."""
    example = preset.example
    if example is None:
        return ""
    labels = {"app": name.replace(".", "-")}
    replicas = 1 if preset.single_state is not None else 2
    budget = 3 * (preset.expected_start or _DEFAULT_START)
    container = _container(preset, budget)
    volumes: list[dict[str, Any]] = []
    claims = {
        **({"models": preset.cache.directory} if preset.cache else {}),
        **({"data": preset.data.directory} if preset.data else {}),
    }
    for claim, directory in claims.items():
        container.setdefault("volumeMounts", []).append({"name": claim, "mountPath": directory})
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
    if example.gpus > 1:
        container.setdefault("volumeMounts", []).append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}})
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": _grace(preset),
        "enableServiceLinks": False,
        "containers": [container],
    }
    if volumes:
        pod["volumes"] = volumes
    alone = {"type": "Recreate"}
    rolling = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": labels["app"]},
            "spec": {
                "replicas": replicas,
                "progressDeadlineSeconds": budget + _MARGIN,
                "strategy": alone if replicas == 1 else rolling,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": labels["app"]},
            "spec": {"selector": labels, "ports": [{"port": preset.port, "targetPort": "serving"}]},
        },
    ]
    modes = ["ReadWriteOnce" if replicas == 1 else "ReadWriteMany"]
    objects += [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim},
            "spec": {"accessModes": modes, "resources": {"requests": {"storage": "100Gi"}}},
        }
        for claim in claims
    ]
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)


def _container(preset: Preset, budget: int) -> dict[str, Any]:
    example = preset.example
    assert example is not None
    limits: dict[str, Any] = {"memory": example.memory}
    if example.gpus:
        limits["nvidia.com/gpu"] = example.gpus
    env = [{"name": name, "value": value} for name, value in example.env.items()]
    given = {"command": list(example.command), "args": list(example.args), "env": env}
    return {
        "name": "server",
        "image": example.image,
        **{field: value for field, value in given.items() if value},
        "ports": [{"name": "serving", "containerPort": preset.port}],
        **_probes(preset, budget),
        "lifecycle": {"preStop": {"sleep": {"seconds": _sleep(preset)}}},
        "resources": {"requests": {"cpu": 4, "memory": example.memory}, "limits": limits},
    }


def _probes(preset: Preset, budget: int) -> dict[str, Any]:
    """The probes by the preset; liveness by progress is left to the webhook."""
    live, ready = _handler(preset, preset.live_path), _handler(preset, preset.ready_path)
    if preset.live_socket:
        live = {"tcpSocket": {"port": "serving"}}
    slow = {"timeoutSeconds": max(10, preset.timeout or 0), "periodSeconds": max(15, preset.timeout or 0)}
    probes: dict[str, Any] = {}
    if live or ready:
        probes["startupProbe"] = {
            **(live or ready),
            "periodSeconds": max(_PERIOD, preset.timeout or 0),
            "timeoutSeconds": max(5, preset.timeout or 0),
            "failureThreshold": -(-budget // max(_PERIOD, preset.timeout or 0)),
        }
    if live and preset.progress is None:
        waits = preset.live_timeout
        times = {"timeoutSeconds": waits, "periodSeconds": waits} if waits else slow
        patience = max(6 * slow["periodSeconds"], preset.live_silence)
        failures = max(3, -(-patience // times["periodSeconds"]))
        probes["livenessProbe"] = {**live, **times, "failureThreshold": failures}
    if ready:
        probes["readinessProbe"] = {**ready, **slow}
    return probes


def _handler(preset: Preset, path: str | None) -> dict[str, Any]:
    if preset.doubt:
        return {"tcpSocket": {"port": "serving"}}
    if preset.protocol is Protocol.GRPC:
        return {"grpc": {"port": preset.port}}
    return {"httpGet": {"path": path, "port": "serving"}} if path and "{" not in path else {}


def _sleep(preset: Preset) -> int:
    """Seconds of the preStop hook: for a server that aborts at SIGTERM or soon after, until requests have
    ended."""
    drain = preset.drain.seconds if preset.drain is not None else None
    return 5 if drain is None else max(5, 25 - drain)


def _grace(preset: Preset) -> int:
    drain = preset.drain.seconds if preset.drain is not None and preset.drain.seconds else 30
    return _sleep(preset) + drain + 5


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True
