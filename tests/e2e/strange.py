"""Pods and Jobs that are odd and yet valid, put together by chance from what the API allows.

Tables of fragments and a seed: the same number gives the same object. Fragments may contradict each
other; what the API server makes of that is for the test to find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from tests.e2e.api import JSON
from tests.manifests import manifest

LARGEST = 2**31 - 1
_WAIT = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFER = "preferredDuringSchedulingIgnoredDuringExecution"
_ZONE = {"key": "topology.kubernetes.io/zone", "operator": "Exists"}
_APP = {"labelSelector": {"matchLabels": {"app": "strange"}}, "topologyKey": "kubernetes.io/hostname"}
_GET = {"httpGet": {"path": "/ready", "port": 8000}}
_NAMED = {"httpGet": {"path": "/ready", "port": "http", "httpHeaders": [{"name": "X-Probe", "value": "1"}]}}
_RETRY = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]


def _node_affinity(**affinity: object) -> JSON:
    return {"affinity": {"nodeAffinity": affinity}}


def _terms(*terms: JSON) -> JSON:
    return _node_affinity(**{_WAIT: {"nodeSelectorTerms": list(terms)}})


IMAGES = (
    "vllm/vllm-openai:v0.11.0",
    "nvcr.io/nvidia/tritonserver:24.12-py3",
    "seldonio/mlserver:1.7.1",
    "tensorflow/serving:2.19.0",
    "ghcr.io/huggingface/text-generation-inference:3.3",
    "rayproject/ray:2.52.0",
    "istio/proxyv2:1.27.0",
    "registry.example:5000/recommender@sha256:" + "0" * 64,
)

SPEC: Mapping[str, JSON] = {
    "host network": {"hostNetwork": True},
    "windows": {"os": {"name": "windows"}},
    "linux": {"os": {"name": "linux"}},
    **{f"grace {n}": {"terminationGracePeriodSeconds": n} for n in (0, 1, 5, 30, 60)},
    "tolerates everything": {"tolerations": [{"operator": "Exists"}]},
    "tolerates an effect": {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]},
    "tolerates accelerators": {"tolerations": [{"key": "nvidia.com/gpu", "value": "present"}]},
    "two terms": _terms(
        {"matchExpressions": [_ZONE]}, {"matchExpressions": [{**_ZONE, "operator": "DoesNotExist"}]}
    ),
    "term of fields": _terms(
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["cpu-0"]}]}
    ),
    "empty term": _terms({}),
    "own accelerator term": _terms(
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}
    ),
    "preference": _node_affinity(**{_PREFER: [{"weight": 1, "preference": {"matchExpressions": [_ZONE]}}]}),
    "empty affinity": {"affinity": {"nodeAffinity": {}, "podAffinity": {}, "podAntiAffinity": {}}},
    "pod affinity": {
        "affinity": {"podAffinity": {_WAIT: [_APP], _PREFER: [{"weight": 9, "podAffinityTerm": _APP}]}}
    },
    "pod anti-affinity": {"affinity": {"podAntiAffinity": {_WAIT: [_APP]}}},
    "node selector": {"nodeSelector": {"nvidia.com/gpu.present": "false"}},
    "claim of devices": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]},
    "priority": {"priorityClassName": "system-node-critical"},
    "gated": {"schedulingGates": [{"name": "example.com/wait"}]},
    "bound": {"nodeName": "gpu-0"},
    "never restarted": {"restartPolicy": "Never"},
    "restarted on failure": {"restartPolicy": "OnFailure"},
    "requests of the pod": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}},
    "limits of the pod": {"resources": {"limits": {"cpu": "50m", "memory": "64Mi"}}},
    "memory of the pod": {"resources": {"requests": {"memory": "1"}, "limits": {"memory": "512Mi"}}},
    "own user namespace": {"hostUsers": False},
    "root": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}},
    "not root": {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 1000}},
    "deadline": {"activeDeadlineSeconds": 60},
    "one process namespace": {"shareProcessNamespace": True},
    "our volumes' names": {"volumes": [{"name": n, "emptyDir": {}} for n in ("mlchassis-models", "models")]},
    "a read-only volume of our name": {"volumes": [{"name": "mlchassis-models", "configMap": {"name": "x"}}]},
    "no token": {"automountServiceAccountToken": False},
    "spread": {
        "topologySpreadConstraints": [
            {**_APP, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "topologyKey": "zone"}
        ]
    },
}

CONTAINER: Mapping[str, JSON] = {
    "UDP port": {"ports": [{"containerPort": 8000, "protocol": "UDP"}]},
    "SCTP port": {"ports": [{"containerPort": 8000, "protocol": "SCTP", "name": "http"}]},
    "host port": {"ports": [{"containerPort": 8000, "hostPort": 8000}]},
    "named ports": {
        "ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 8001, "name": "grpc"}]
    },
    "a port for two protocols": {"ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]},
    "the puller's port": {"ports": [{"containerPort": 9081, "name": "puller"}]},
    "readiness that never gives up": {"readinessProbe": _GET | {"failureThreshold": LARGEST}},
    "readiness without haste": {
        "readinessProbe": _GET
        | {"periodSeconds": LARGEST, "timeoutSeconds": LARGEST, "initialDelaySeconds": LARGEST}
    },
    "readiness of many successes": {"readinessProbe": _GET | {"successThreshold": 7}},
    "readiness by name": {"readinessProbe": _NAMED, "ports": [{"containerPort": 8000, "name": "http"}]},
    "readiness by gRPC": {"readinessProbe": {"grpc": {"port": 9000, "service": "ready"}, "periodSeconds": 1}},
    "readiness by command": {"readinessProbe": {"exec": {"command": ["cat", "/ready"]}}},
    "readiness elsewhere": {"readinessProbe": {"tcpSocket": {"host": "127.0.0.1", "port": 5432}}},
    "liveness of one failure": {"livenessProbe": _GET | {"failureThreshold": 1, "periodSeconds": 1}},
    "liveness with a grace": {"livenessProbe": _GET | {"terminationGracePeriodSeconds": 5}},
    "liveness that never gives up": {
        "livenessProbe": _GET | {"failureThreshold": LARGEST, "periodSeconds": 1},
    },
    "startup with a grace": {"startupProbe": _GET | {"terminationGracePeriodSeconds": 1}},
    "every probe": {"livenessProbe": _GET, "readinessProbe": _GET, "startupProbe": _GET},
    "sleeps before it stops": {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
    "a command before it stops": {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "90"]}}}},
    "a hook after its start": {"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}},
    "empty lifecycle": {"lifecycle": {}},
    "never restarted itself": {"restartPolicy": "Never"},
    "restarted by rules": {"restartPolicy": "Never", "restartPolicyRules": _RETRY},
    "always restarted itself": {"restartPolicy": "Always"},
    "accelerators": {"resources": {"limits": {"nvidia.com/gpu": "2", "memory": "1.5Gi"}}},
    "a slice": {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}, "requests": {"cpu": "100m"}}},
    "AMD": {"resources": {"limits": {"amd.com/gpu": "1"}, "requests": {"amd.com/gpu": "1"}}},
    "its claim": {"resources": {"claims": [{"name": "gpu"}]}},
    "models mounted": {"volumeMounts": [{"name": "models", "mountPath": "/mnt/models/", "readOnly": True}]},
    "models mounted from a path": {
        "volumeMounts": [{"name": "models", "mountPath": "/mnt/models", "subPath": "a/b"}]
    },
    "a block device": {"volumeDevices": [{"name": "disk", "devicePath": "/mnt/models"}]},
    "privileged": {"securityContext": {"privileged": True}},
    "resized without restart": {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]},
}

INIT: Mapping[str, JSON] = {
    "init container": {},
    "native sidecar": {"restartPolicy": "Always"},
    "native sidecar that serves": {
        "restartPolicy": "Always",
        "ports": [{"containerPort": 9000, "name": "http"}],
    },
    "native sidecar with probes": {
        "restartPolicy": "Always",
        "ports": [{"containerPort": 9000}],
        "livenessProbe": _GET,
        "readinessProbe": _GET,
        "startupProbe": _GET | {"failureThreshold": 90},
    },
    "init container with an accelerator": {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
}

ANNOTATIONS: Mapping[str, tuple[str, ...]] = {
    "mlchassis.dev/model-config": ("models", "unknown", "a..b", ""),
    "mlchassis.dev/model-dir": ("/mnt/models", "/mnt/configs", "/mnt", "/mnt/pvc/x", "relative", "/"),
    "mlchassis.dev/model-claim": ("models", "a..b"),
    "mlchassis.dev/model-credentials": ("keys", "a..b", "Keys", "a" * 254),
    "mlchassis.dev/model-server": ("v2", "triton", "none", "other"),
    "mlchassis.dev/model-server-port": ("8000", "http", "0", "99999"),
    "mlchassis.dev/model-size": ("40Gi", "-1", "9e400", "9" * 400, "\u0663Gi", "1e-9", "8Ei"),
    "mlchassis.dev/expected-start": ("20m", "-1s", "9" * 400, "300000d", "0", "\u0663"),
    "mlchassis.dev/health-path": ("/health", "health", "/" + "h" * 3000, "/\u00fc", "/a b", ""),
    "mlchassis.dev/health-port": ("8000", "http", "-1", "65536", "\u0663"),
    "mlchassis.dev/live-path": ("/live", "/live?deep=0"),
    "mlchassis.dev/gpu-product": ("*A100*", "H100", "NVIDIA H100", "\u00fc*", "x" * 90, ",", "[", "-a"),
    "mlchassis.dev/gpu-memory": (">=40Gi", ">=0", "<0", ">=9e400", "<=7Ei", "-1", "", ">=\u0663Gi"),
    "mlchassis.dev/topology": ("same-zone required", "a..b/rack", "zone", "Rack/x preferred", "x" * 64, ","),
    "mlchassis.dev/retryable-exit-codes": ("75", "0", "\u0663", "1,2,3", "256", ",", "7_5"),
    "mlchassis.dev/exempt": ("gpu-affinity=because", "all", "\u00fc=\u00fc"),
    "kubectl.kubernetes.io/default-container": ("first", "none"),
    "sidecar.istio.io/status": ("{}",),
    "filler": ("x" * 262000,),
}

JOB: Mapping[str, JSON] = {
    "several": {"completions": 3, "parallelism": 2},
    "indexed": {"completions": 3, "completionMode": "Indexed"},
    "retries by index": {
        "completions": 3,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 1,
    },
    "success": {
        "completions": 3,
        "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    },
    "own failure policy": {
        "podFailurePolicy": {
            "rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}}]
        },
    },
    "managed": {"managedBy": "kueue.x-k8s.io/multikueue"},
    "managed by its controller": {"managedBy": "kubernetes.io/job-controller"},
    "suspended": {"suspend": True},
    "replaced at once": {"podReplacementPolicy": "TerminatingOrFailed"},
    "replaced when gone": {"podReplacementPolicy": "Failed"},
    "no retries": {"backoffLimit": 0},
    "retries without end": {"backoffLimit": LARGEST},
    "gone at once": {"ttlSecondsAfterFinished": 0},
    "deadline": {"activeDeadlineSeconds": 3600},
}


@dataclass
class Strange:
    """An object, with the names of the fragments in it."""

    obj: JSON
    features: set[str] = field(default_factory=set)


def pods(count: int, seed: int) -> Iterator[Strange]:
    """So many Pods, the same ones for the same seed."""
    for number in range(count):
        random = Random(f"{seed} {number}")
        strange = Strange({"apiVersion": "v1", "kind": "Pod"})
        strange.obj |= _template(random, strange.features)
        strange.obj["metadata"]["name"] = _name(random, 253)
        yield strange


def jobs(count: int, seed: int) -> Iterator[Strange]:
    """So many Jobs, every fourth of them the template of a CronJob."""
    for number in range(count):
        random = Random(f"{seed} {number}")
        strange = Strange(manifest("Job", _name(random, 52)))
        template = _template(random, strange.features)
        template["spec"]["restartPolicy"] = random.choice(("Never", "Never", "OnFailure"))
        strange.obj["spec"] = {**_drawn(random, JOB, "job", strange.features, most=3), "template": template}
        if number % 4 == 3:
            spec = {"schedule": "0 3 * * *", "jobTemplate": {"spec": strange.obj["spec"]}}
            limits = random.choice(({}, {"failedJobsHistoryLimit": 0}, {"successfulJobsHistoryLimit": 0}))
            strange.obj |= {"kind": "CronJob", "spec": spec | limits}
        yield strange


def _template(random: Random, features: set[str]) -> JSON:
    """A pod template: now and then of many containers, mostly of one or two."""
    number = random.choice((1, 1, 1, 2, 2, 25))
    names = ["first", "second", *(f"c{n}" for n in range(23))][:number]
    main = [_container(random, name, features, busy=n < 2) for n, name in enumerate(names)]
    spec = _drawn(random, SPEC, "spec", features, most=5)
    volumes = spec.setdefault("volumes", [])
    mounted: dict[str, JSON] = {
        "models": {"emptyDir": {}},
        "disk": {"persistentVolumeClaim": {"claimName": "disk"}},
    }
    used = {use["name"] for it in main for use in (*it.get("volumeMounts", ()), *it.get("volumeDevices", ()))}
    present = {volume["name"] for volume in volumes}
    volumes += [{"name": name, **mounted[name]} for name in sorted(used - present)]
    inits = random.sample(sorted(INIT), random.choice((0, 0, 1, 2)))
    features.update(f"init: {name}" for name in inits)
    if inits:
        spec["initContainers"] = [
            {"name": f"init-{n}", "image": random.choice(IMAGES), **deepcopy(INIT[it])}
            for n, it in enumerate(inits)
        ]
    labels = random.choice(
        ({}, {"app": "strange"}, {"pod-template-hash": "abc"}, {"ray.io/is-ray-node": "yes"})
    )
    metadata = {"labels": dict(labels), "annotations": _annotations(random, features)}
    return {"metadata": metadata, "spec": {**spec, "containers": main}}


def _container(random: Random, name: str, features: set[str], *, busy: bool) -> JSON:
    container: JSON = {"name": name, "image": random.choice(IMAGES)}
    if random.random() < 0.7:
        container["ports"] = [{"containerPort": 8000}]
    return container | (_drawn(random, CONTAINER, "container", features, most=4) if busy else {})


def _drawn(random: Random, table: Mapping[str, JSON], of: str, features: set[str], most: int) -> JSON:
    drawn: JSON = {}
    for name in random.sample(sorted(table), random.randint(0, most)):
        features.add(f"{of}: {name}")
        drawn |= deepcopy(table[name])
    return drawn


def _annotations(random: Random, features: set[str]) -> dict[str, str]:
    keys = random.sample(sorted(ANNOTATIONS), random.randint(0, 6))
    if any(key.startswith("mlchassis.dev/model-") for key in keys):
        keys.append("mlchassis.dev/model-config")
    drawn = {key: random.choice(ANNOTATIONS[key]) for key in keys}
    features.update(f"annotation: {key}" for key in drawn)
    return drawn


def _name(random: Random, longest: int) -> str:
    return random.choice(("strange", "a.b-c.0", "x" * longest))
