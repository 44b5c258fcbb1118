"""What the whole rule set costs over one large Deployment in a cluster of which much is known.

Two figures, since the commands in a spec are read once and remembered: a Deployment whose commands
were seen before (every replica of the webhook soon has), and one that is wholly new.
"""

from __future__ import annotations

from dataclasses import replace

import orjson

from benchmarks._timing import best, table
from policies.containers import commands as _commands
from policies.core.contracts import Rule
from policies.core.pod_templates import pod_templates
from policies.core.pod_view import PodView
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.admission.projection import project
from webhook.admission.review import Context
from webhook.config.load import load, rules
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document

SIZE = 15_000
"""Bytes of the Deployment as JSON, at the least."""


def container(name: str, port: int) -> Json:
    """A server with exec probes, a hook, forty variables and a few mounts."""
    check = f'[ "$(curl -s -m 2 -o /dev/null -w "%{{http_code}}" http://localhost:{port}/health)" = 200 ]'
    return {
        "name": name,
        "image": f"registry.example/models/{name}:1.4.2",
        "command": ["/bin/bash", "-ec", f"exec /opt/{name}/serve --port {port} --workers $WORKERS"],
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "env": [{"name": f"OPTION_{n}", "value": f"{name}-{n}-" + "x" * 24} for n in range(40)]
        + [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"nvidia.com/gpu": "1"}},
        "startupProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 10,
            "failureThreshold": 30,
        },
        "livenessProbe": {
            "exec": {"command": ["/bin/sh", "-c", check]},
            "timeoutSeconds": 5,
            "periodSeconds": 20,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 10},
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 10; kill -QUIT 1"]}}},
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(6)],
    }


def deployment() -> Json:
    """A Deployment of at least SIZE bytes without a certain finding."""
    wait = "n=0; until nc -z -w 2 database 5432; do n=$((n+1)); [ $n -gt 60 ] && exit 1; sleep 5; done"
    template: Json = {
        "metadata": {"labels": {"app": "models"}, "annotations": {}},
        "spec": {
            "terminationGracePeriodSeconds": 60,
            "initContainers": [
                {"name": "wait", "image": "registry.example/tools:1", "command": ["sh", "-c", wait]}
            ],
            "containers": [
                container(name, 8000 + n) for n, name in enumerate(("ranker", "embedder", "gate"))
            ],
            "volumes": [
                {"name": f"volume-{n}", "persistentVolumeClaim": {"claimName": f"claim-{n}"}}
                for n in range(6)
            ],
        },
    }
    obj: Json = manifest(
        "Deployment",
        "models",
        {
            "replicas": 4,
            "progressDeadlineSeconds": 1800,
            "selector": {"matchLabels": {"app": "models"}},
            "template": template,
        },
        namespace="ml",
    )
    notes = template["metadata"]["annotations"]
    while len(orjson.dumps(obj)) < SIZE:
        notes[f"notes.example/{len(notes)}"] = "as large as real ones are " * 4
    return obj


def surroundings() -> list[Json]:
    """A namespace of some size: Services, claims, budgets, workloads; and nodes with accelerators."""

    def named(api: str, kind: str, name: str, **rest: object) -> Json:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "ml"}, **rest}

    services = [
        named(
            "v1",
            "Service",
            f"service-{n}",
            spec={"selector": {"app": f"app-{n}"}, "clusterIP": f"10.0.0.{n}"},
        )
        for n in range(250)
    ]
    claims = [
        named("v1", "PersistentVolumeClaim", f"claim-{n}", spec={"accessModes": ["ReadWriteMany"]})
        for n in range(250)
    ]
    budgets = [
        named(
            "policy/v1",
            "PodDisruptionBudget",
            f"budget-{n}",
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": f"app-{n}"}}},
        )
        for n in range(100)
    ]
    nodes: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"gpu-{n}", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "96"}},
        }
        for n in range(100)
    ]
    return [*services, *claims, *budgets, *nodes]


def main() -> None:
    obj = deployment()
    sent = orjson.dumps(obj)
    config = load({})
    request = Document("benchmark", 0, obj).request()
    context = Context.of(obj, request.namespace, config, ManifestCluster(surroundings()))
    facts = context.facts
    target = project(obj, pod_templates(obj, config.workloads), context).target
    judging = [rule for rule in rules().values() if rule.kinds is None or target.kind in rule.kinds]

    def judged() -> int:
        fresh = replace(
            target, templates=tuple(each.with_view(PodView(each.pod)) for each in target.templates)
        )
        return sum(len(list(rule.check(fresh, facts))) for rule in judging)

    def judged_anew() -> int:
        _commands.clear_cache()
        return judged()

    def one(rule: Rule) -> float:
        return best(lambda: list(rule.check(target, facts)), rounds=3, seconds=0.02)

    slowest = sorted(((one(rule), rule.id) for rule in judging), reverse=True)[:5]
    table(
        f"a Deployment of {len(sent):,} bytes, {len(judging)} rules, {judged()} findings",
        "orjson.loads",
        {
            "orjson.loads": best(lambda: orjson.loads(sent)),
            "all rules, commands read before": best(judged),
            "all rules, first look at the pod": best(judged_anew),
            **{f"  {name}": seconds for seconds, name in slowest},
        },
    )


if __name__ == "__main__":
    main()
