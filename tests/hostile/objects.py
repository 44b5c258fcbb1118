"""Objects written to be costly, each class at any size: what a review must not choke on.

A size counts what the class is about: digits, containers, terms. Everything is an AdmissionReview's object,
for UPDATE with the old one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.manifests import manifest
from tests.policies.accelerators.nodes import affinity, expression

Json = dict[str, Any]
Made = Json | tuple[Json, Json]
"""An object that is created, or one that is updated: old and new."""


def pod(*containers: Json, annotations: Json | None = None, **spec: Any) -> Json:
    spec = {"containers": list(containers) or [server()], **spec}
    return manifest("Pod", "p", spec, namespace="ml", annotations=annotations or {})


def server(name: str = "server", **fields: Any) -> Json:
    return {"name": name, "image": "registry.example/server:1", "ports": [{"containerPort": 8080}], **fields}


def gpu_server(**fields: Any) -> Json:
    return server(resources={"limits": {"nvidia.com/gpu": "1"}}, **fields)


def deployment(made: Json, **spec: Any) -> Json:
    template = {"metadata": made["metadata"], "spec": made["spec"]}
    return manifest(
        "Deployment",
        "d",
        {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
        namespace="ml",
    )


_PATH: Final = "mlchassis.dev/health-path"


def _annotated(key: str, value: Callable[[int], str]) -> Callable[[int], Json]:
    return lambda size: deployment(pod(gpu_server(), annotations={f"mlchassis.dev/{key}": value(size)}))


def _containers(size: int) -> list[Json]:
    return [server(f"c{n}", command=["sh", "-c", f"exec serve --port {n}"]) for n in range(size)]


def _probed_containers(size: int) -> list[Json]:
    check: Json = {"exec": {"command": ["buildctl", "debug"]}}
    late = {**check, "initialDelaySeconds": 600}
    return [
        server(f"c{n}", livenessProbe=late, readinessProbe={**check, "failureThreshold": 1})
        for n in range(size)
    ]


def _containers_and_annotations(size: int) -> Json:
    annotations = {f"mlchassis.dev/health-path.x{n}": "/health" for n in range(size * 5 // 3)}
    return pod(*[server(f"c{n}") for n in range(size)], annotations=annotations)


def _script(size: int) -> str:
    return "set -e\n" + "if [ -f /etc/x ]; then echo y; fi\n" * (size // 34) + "exec vllm serve m"


def _long_script(size: int) -> Json:
    return deployment(pod(server(command=["sh", "-c", _script(size)])))


def _terms(size: int) -> Json:
    terms = [{"matchExpressions": [expression(f"k{n}", "Exists")]} for n in range(size)]
    return deployment(_any_product(*terms))


def _values(size: int) -> Json:
    return _any_product({"matchExpressions": [expression("k", "In", *(f"v{n}" for n in range(size)))]})


def _any_product(*terms: Json) -> Json:
    return pod(gpu_server(), annotations={"mlchassis.dev/gpu-product": "*"}, affinity=affinity(*terms))


def _of_pod(field: str, each: Callable[[int], Any]) -> Callable[[int], Json]:
    def build(size: int) -> Json:
        fields: dict[str, Any] = {field: [each(n) for n in range(size)]}
        return deployment(pod(gpu_server(), **fields))

    return build


def _of_container(field: str, each: Callable[[int], Any]) -> Callable[[int], Json]:
    return lambda size: deployment(pod(gpu_server(**{field: [each(n) for n in range(size)]})))


def _owner(kind: Any) -> Callable[[int], Json]:
    def made(size: int) -> Json:
        found = pod()
        owner = {"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": True}
        found["metadata"]["ownerReferences"] = [owner] * max(1, size // 100)
        return found

    return made


def _job_set(size: int) -> Json:
    job = {"replicas": 1, "template": {"spec": {"template": _gpu_template()}}}
    jobs = [{"name": f"r{n}", **job} for n in range(size)]
    return manifest("JobSet", "j", {"replicatedJobs": jobs}, namespace="ml")


def _gpu_template() -> Json:
    return {"metadata": {}, "spec": {"containers": [gpu_server()]}}


def _ray_cluster(size: int) -> Json:
    template = _gpu_template()
    groups = [{"groupName": f"g{n}", "replicas": 1, "template": template} for n in range(size)]
    spec = {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}
    return manifest("RayCluster", "r", spec, namespace="ml")


def _long_replica_types(size: int) -> Json:
    specs = {"." * size + str(n): {"template": _gpu_template()} for n in range(8)}
    return manifest("PyTorchJob", "t", {"pytorchReplicaSpecs": specs}, namespace="ml")


def _budget(size: int) -> Json:
    terms = [expression(f"k{n}", "NotIn", "a", "b") for n in range(size)]
    spec = {"minAvailable": 1, "selector": {"matchExpressions": terms}}
    return manifest("PodDisruptionBudget", "b", spec, namespace="ml")


def _model_config(size: int) -> Json:
    one = '[{"modelName": "m%d", "modelSpec": {"storageUri": "s3://a/b", "framework": "sklearn"}}]'
    data, labels = {f"k{n}": one % max(n, 1) for n in range(size)}, {"mlchassis.dev/model-config": "true"}
    return manifest("ConfigMap", "m", data=data, namespace="ml", labels=labels)


def _waiting(size: int) -> Json:
    script = ";".join(f"until curl -sf http://$H{n}.db; do sleep 1; done" for n in range(size))
    env = [{"name": f"H{n}", "value": "d-1"} for n in range(size)]
    return deployment(pod(initContainers=[server("wait", command=["sh", "-c", script], env=env)]))


def _asking(size: int) -> Json:
    script = ";".join(f"curl http://db{n}" for n in range(size))
    probe = {"exec": {"command": ["sh", "-c", script]}}
    fields: dict[str, Any] = dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), probe)
    return deployment(pod(server(**fields)))


def _get(host: str) -> Json:
    return {"httpGet": {"path": "/", "port": 1, "host": host}}


def _findings(size: int) -> Json:
    probe = {**_get("db"), "failureThreshold": 1}
    return deployment(pod(*[server(f"c{n}", livenessProbe=probe, readinessProbe=probe) for n in range(size)]))


def _nested(size: int) -> Json:
    made = pod()
    node: Json = made["spec"]
    for _ in range(min(size, 240)):
        node["x"] = {"y": [1] * 10}
        node = node["x"]
    return made


def _update(make: Callable[[int], Json]) -> Callable[[int], Made]:
    def made(size: int) -> Made:
        old, new = make(size), make(size)
        new["spec"]["paused"] = False
        return old, new

    return made


def _doubling(size: int) -> Json:
    levels = ";".join(f"f{n}(){{ f{n + 1};f{n + 1}; }}" for n in range(20))
    return pod(*[server(f"c{n}", command=["sh", "-c", f"{levels};f0 {n}"]) for n in range(size)])


def _texts(size: int) -> Json:
    """A workflow whose steps apply objects in texts, which together have `size` numbers."""
    text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: '{{a}}'}\na: [" + "1," * (size // 8) + "]\n"
    templates = [{"name": f"a{k}", "resource": {"action": "create", "manifest": text}} for k in range(8)]
    metadata, spec = {"name": "a"}, {"entrypoint": "a0", "templates": templates}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": spec}


def _launchers(size: int) -> Json:
    words = ["torchrun", *["-a"] * size]
    return deployment(pod(server(command=words), server("b", command=["uv", "run"] * (size // 2))))


def _named_group(size: int) -> Json:
    template = {"spec": {"hostNetwork": True, "containers": [server(command=["sh", "-c", "exec serve"])]}}
    jobs = [{"name": "a", "template": {"spec": {"template": template}}}]
    return manifest("JobSet", "a" * size, {"replicatedJobs": jobs}, namespace="ml")


HOSTILE: Final[dict[str, tuple[Callable[[int], Made], int]]] = {
    "a size of digits and a letter": (_annotated("model-size", lambda n: "9" * n + "x"), 20_000),
    "a start of digits": (_annotated("expected-start", lambda n: "9" * n), 20_000),
    "a bound of blanks": (_annotated("gpu-memory", lambda n: " " * n), 20_000),
    "globs of products": (_annotated("gpu-product", lambda n: "*a*b*," * (n // 6)), 2_000),
    "globs of products, too many": (_annotated("gpu-product", lambda n: "*a*b*," * (n // 6)), 200_000),
    "names of containers that read models": (
        lambda n: pod(
            *_containers(n // 20),
            annotations={
                "mlchassis.dev/model-config": "m",
                "mlchassis.dev/model-containers": "a," * (n // 2),
            },
        ),
        2_000,
    ),
    "exit codes": (_annotated("retryable-exit-codes", lambda n: "1," * (n // 2)), 2_000),
    "exemptions": (_annotated("exempt", lambda n: "x=y;" * (n // 4)), 32_000),
    "exemptions, too many": (_annotated("exempt", lambda n: "x=y;" * (n // 4)), 200_000),
    "a topology": (_annotated("topology", lambda n: "a" * n), 2_000),
    "a model directory": (_annotated("model-dir", lambda n: "/a" * (n // 2) + "!"), 2_000),
    "options of sh": (
        lambda n: deployment(pod(initContainers=[server("i", command=["sh", "-c", f"-{'e' * n}!;curl db"])])),
        100_000,
    ),
    "containers, and annotations for others": (_containers_and_annotations, 3_000),
    "containers": (lambda n: deployment(pod(*_containers(n))), 1_000),
    "some containers": (lambda n: deployment(pod(*_containers(n))), 200),
    "some containers with probes": (lambda n: deployment(pod(*_probed_containers(n))), 200),
    "a port of digits": (
        lambda n: deployment(pod(server(command=["vllm", "serve", "m", "--port", "7" * n]))),
        100_000,
    ),
    "a script": (_long_script, 100_000),
    "scripts": (
        lambda n: deployment(
            pod(*[server(f"c{k}", command=["sh", "-c", _script(n // 10) + str(k)]) for k in range(10)])
        ),
        100_000,
    ),
    "an update of scripts": (_update(_long_script), 100_000),
    "functions that double": (_doubling, 60),
    "launchers of launchers": (_launchers, 20_000),
    "an accelerator of digits": (
        lambda n: deployment(pod(server(resources={"limits": {"nvidia.com/gpu": "9" * n}}))),
        5_000,
    ),
    "kinds of accelerators": (
        lambda n: deployment(pod(server(resources={"limits": {f"a.b/c{k}": "1" for k in range(n)}}))),
        10_000,
    ),
    "an owner whose kind is a map": (_owner({}), 1),
    "an owner whose kind is a list": (_owner([]), 1),
    "owners": (_owner("ReplicaSet"), 1_000_000),
    "an owner of a long kind": (_owner("K" * 100_000), 1),
    "terms of node affinity": (_terms, 4_000),
    "some terms of node affinity": (_terms, 60),
    "values of node affinity": (_values, 50_000),
    "tolerations": (_of_pod("tolerations", lambda n: {"key": f"k{n}", "operator": "Exists"}), 10_000),
    "volumes": (
        _of_pod("volumes", lambda n: {"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}}),
        10_000,
    ),
    "aliases of hosts": (
        _of_pod("hostAliases", lambda n: {"ip": "127.0.0.1", "hostnames": [f"h{n}"]}),
        10_000,
    ),
    "init containers": (
        _of_pod("initContainers", lambda n: server(f"i{n}", command=["curl", "http://db"])),
        1_000,
    ),
    "variables": (_of_container("env", lambda n: {"name": f"A{n}", "value": f"$(A{n - 1})x"}), 10_000),
    "ports": (
        _of_container("ports", lambda n: {"containerPort": n + 1, "name": f"p{n}", "hostPort": n + 1}),
        10_000,
    ),
    "mounts": (_of_container("volumeMounts", lambda n: {"name": f"v{n}", "mountPath": f"/m{n}"}), 10_000),
    "waits": (_waiting, 1_000),
    "hosts that probes ask": (_asking, 2_000),
    "findings": (_findings, 500),
    "jobs of a set": (_job_set, 2_000),
    "groups of workers": (_ray_cluster, 2_000),
    "long names of replica types": (_long_replica_types, 100_000),
    "terms of a budget": (_budget, 10_000),
    "models": (_model_config, 40_000),
    "a long name": (lambda n: deployment(pod(*[server("n" * n + str(k)) for k in range(10)])), 100_000),
    "a long name of a group on the network of its node": (_named_group, 400_000),
    "a long image": (lambda n: deployment(pod(server(image="a/" * (n // 2) + "b"))), 200_000),
    "a long host": (
        lambda n: deployment(pod(server(livenessProbe=_get("a." * (n // 2))))),
        200_000,
    ),
    "a long path of a probe": (
        _annotated("health-path", lambda n: "/" + "a" * n),
        1_900,
    ),
    "a long key": (
        lambda n: deployment(pod(annotations={f"{_PATH}.{'.' * n}": "/"})),
        100_000,
    ),
    "labels": (
        lambda n: deployment({**pod(), "metadata": {"labels": {f"k{k}": "v" for k in range(n)}}}),
        20_000,
    ),
    "annotations of others": (
        lambda n: deployment(pod(annotations={f"a.b/c{k}": "v" for k in range(n)})),
        20_000,
    ),
    "nested maps": (_nested, 240),
    "texts with objects": (_texts, 120_000),
    "texts with objects, too long": (_texts, 400_000),
}
"""Each class with its maker and the size that was found to be costly."""
