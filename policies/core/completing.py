"""Pods that another object completes: a serving runtime, a training runtime, or a workload with the template.

Each function merges as the operator does. If the other object is missing or lacks a required field, there is
no pod, and the object counts as partly read.

Source: KServe v0.16, pkg/controller/v1beta1/inferenceservice: components/predictor.go, utils/utils.go and
reconcilers/deployment;
Trainer v2.1 and v2.3, pkg/runtime/core/trainingruntime.go, pkg/runtime/framework/plugins/jobset/builder.go;
Argo Rollouts v1.8, rollout/templateref.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from policies.core.composing import OF_A_POD, OTHER_OBJECT, Origins, merged_list, merged_map, without_nulls
from policies.core.workloads import KSERVE_CONTAINER, Completion, Workload
from policies.kube.group_kinds import DEPLOYMENT, REPLICA_SET, GroupKind
from policies.kube.json import Json, dig, indexed_maps, integer, mapping, maps, strings, text
from policies.kube.metadata import annotations_of, labels_of

Find = Callable[[GroupKind, str, str], Json | None]
"""The whole object of a kind, a namespace (empty: not namespaced) and a name; None if it is unknown."""

SERVING_RUNTIME: Final = GroupKind("serving.kserve.io", "ServingRuntime")
CLUSTER_SERVING_RUNTIME: Final = GroupKind("serving.kserve.io", "ClusterServingRuntime")
TRAINING_RUNTIME: Final = GroupKind("trainer.kubeflow.org", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIME: Final = GroupKind("trainer.kubeflow.org", "ClusterTrainingRuntime")
POD_TEMPLATE: Final = GroupKind("", "PodTemplate")
COMPLETING: Final = (
    SERVING_RUNTIME,
    CLUSTER_SERVING_RUNTIME,
    TRAINING_RUNTIME,
    CLUSTER_TRAINING_RUNTIME,
    DEPLOYMENT,
    REPLICA_SET,
    POD_TEMPLATE,
)
"""The kinds whose objects complete the pods of others."""


class Reference(Struct, frozen=True):
    """A reference to an object that completes pods."""

    at: str
    """Field path of the reference."""
    candidates: tuple[tuple[GroupKind, bool], ...]
    """The possible kinds in order, each with whether it is namespaced."""
    name: str


class Base(Struct, frozen=True):
    """The object that completes pods."""

    obj: Json
    kind: GroupKind
    at: str
    """Field path of the reference to it."""

    @property
    def name(self) -> str:
        return text(self.obj, "metadata", "name")


class Completed(Struct, frozen=True):
    """One pod that is completed by another object."""

    spec: Json
    metadata: Json
    origins: Origins
    """Paths in the other object begin with `ELSEWHERE`."""
    path: str
    """Field path of the pod's description in the workload."""
    reads: tuple[str, ...]
    """Field paths that are read here, although the table of kinds declares them unread."""
    replaces: tuple[str, ...]
    """Field paths of the templates that this pod replaces."""


def reference_of(obj: Json, workload: Workload) -> Reference | None:
    """The reference to the object that completes the pods of a workload."""
    match workload.completed_by:
        case Completion.SERVING_RUNTIME:
            name = text(obj, "spec", "predictor", "model", "runtime")
            candidates = ((SERVING_RUNTIME, True), (CLUSTER_SERVING_RUNTIME, False))
            return Reference("spec.predictor.model.runtime", candidates, name) if name else None
        case Completion.TRAINING_RUNTIME:
            name = text(obj, "spec", "runtimeRef", "name")
            kind = text(obj, "spec", "runtimeRef", "kind") or CLUSTER_TRAINING_RUNTIME.kind
            known = {each.kind: each for each in (TRAINING_RUNTIME, CLUSTER_TRAINING_RUNTIME)}
            if not name or kind not in known:
                return None
            return Reference("spec.runtimeRef", ((known[kind], kind == TRAINING_RUNTIME.kind),), name)
        case Completion.TEMPLATE:
            name, kind = text(obj, "spec", "workloadRef", "name"), text(obj, "spec", "workloadRef", "kind")
            known = {each.kind: each for each in (DEPLOYMENT, REPLICA_SET, POD_TEMPLATE)}
            return (
                Reference("spec.workloadRef", ((known[kind], True),), name)
                if name and kind in known
                else None
            )
    return None


def base_of(obj: Json, workload: Workload, namespace: str, find: Find) -> Base | None:
    """The object that completes the pods of a workload; None if it is unknown."""
    reference = reference_of(obj, workload)
    if reference is None:
        return None
    for kind, namespaced in reference.candidates:
        found = find(kind, namespace if namespaced else "", reference.name)
        if found is not None:
            return Base(found, kind, reference.at)
    return None


def completed(obj: Json, workload: Workload, base: Base) -> list[Completed]:
    """The completed pods of a workload; empty if its operator creates none."""
    match workload.completed_by:
        case Completion.SERVING_RUNTIME:
            return list(_served(obj, base.obj))
        case Completion.TRAINING_RUNTIME:
            return list(_trained(obj, base.obj))
        case Completion.TEMPLATE:
            return list(_of_template(base))
    return []


# --- KServe ------------------------------------------------------------------------------------------

_OF_A_MODEL: Final = frozenset(
    {"modelFormat", "protocolVersion", "runtime", "runtimeVersion", "storage", "storageUri"}
)
"""Fields of a predictor's `model` that are not fields of a container."""
_OF_A_RUNTIME: Final = ("nodeSelector", "affinity", "tolerations", "volumes", "imagePullSecrets")
"""Fields of a runtime that KServe copies to the pods."""
_WORKER: Final = "worker-container"
_TRANSFORMER: Final = "transformer-container"
_OF_DEPLOYMENTS: Final = ("Standard", "RawDeployment")
_KSERVE_PORT: Final = 8080
_PLACEHOLDER: Final = re.compile(r"\{\{-?\s*\.(Name|Namespace)\s*-?\}\}")
_TAG: Final = re.compile(r"(:([\w.\-_]*))$")


def _served(obj: Json, runtime: Json) -> Iterator[Completed]:
    given, predictor = mapping(runtime, "spec"), mapping(obj, "spec", "predictor")
    if given.get("disabled") is True:
        return
    model = {key: value for key, value in mapping(predictor, "model").items() if key not in _OF_A_MODEL}
    at, metadata = "spec.predictor", _labelled(obj, given, predictor)
    made = _of_runtime(obj, given, "spec", predictor, at, KSERVE_CONTAINER, model, f"{at}.model")
    if made is None:
        return
    spec, origins = made
    version = text(predictor, "model", "runtimeVersion")
    image = text(spec["containers"][0], "image")
    if version and image and "@sha256:" not in image:
        tagged = _TAG.sub(f":{version}", image) if _TAG.search(image) else f"{image}:{version}"
        spec["containers"][0]["image"] = tagged
        origins["spec.containers[0].image"] = f"{at}.model.runtimeVersion"
    _other_containers(spec, origins, given, predictor, at)
    reads = (f"{at}.model",)
    yield Completed(spec, metadata, origins, f"{at}.model", reads, (at, f"{at}.model"))
    worker, own = mapping(given, "workerSpec"), predictor.get("workerSpec")
    if isinstance(own, dict) and worker:
        first = next(iter(maps(own, "containers")), {})
        place = f"{at}.workerSpec"
        made = _of_runtime(
            obj, worker, "spec.workerSpec", own, place, _WORKER, first, f"{place}.containers[0]"
        )
        if made is not None:
            yield Completed(made[0], metadata, made[1], place, reads, (place,))


def _of_runtime(
    obj: Json, given: Json, given_at: str, own: Json, at: str, name: str, container: Json, container_at: str
) -> tuple[Json, dict[str, str]] | None:
    """The pod of the runtime's container with a name, and a container merged over it; None if the runtime has
    no such container."""
    named = (each for each in indexed_maps(given, "containers") if text(each[1], "name") == name)
    index, below = next(named, (0, None))
    if below is None:
        return None
    below_at = f"{OTHER_OBJECT}{given_at}.containers[{index}]"
    origins = {"spec": at, "metadata": "metadata", "spec.containers[0]": container_at}
    origins |= {f"spec.containers[0].{key}": f"{below_at}.{key}" for key in below}
    merged = merged_map(below, without_nulls(container), "spec.containers[0]", container_at, origins)
    merged["name"] = text(container, "name") or name
    first, last = strings(below, "args"), strings(container, "args")
    if first or last:  # KServe joins the lists, a strategic merge would replace them
        merged["args"] = [*first, *last]
        origins["spec.containers[0].args"] = f"{container_at if last else below_at}.args"
        sources = [f"{below_at}.args[{number}]" for number in range(len(first))]
        sources += [f"{container_at}.args[{number}]" for number in range(len(last))]
        origins |= {f"spec.containers[0].args[{number}]": source for number, source in enumerate(sources)}
    pod: Json = {key: given[key] for key in _OF_A_RUNTIME if key in given}
    origins |= {f"spec.{key}": f"{OTHER_OBJECT}{given_at}.{key}" for key in pod}
    siblings = {key: own[key] for key in (*OF_A_POD, "initContainers") if own.get(key) is not None}
    spec = merged_map(pod, without_nulls(siblings), "spec", at, origins)
    return {**spec, "containers": [_with_names(merged, obj)]}, origins


def _other_containers(spec: Json, origins: dict[str, str], given: Json, predictor: Json, at: str) -> None:
    """Append the transformer, merged from both, then the runtime's other containers, then the service's."""
    theirs, own = [*indexed_maps(given, "containers")], [*indexed_maps(predictor, "containers")]
    transformers = [
        [
            (f"{place}.containers[{index}]", each)
            for index, each in found
            if text(each, "name") == _TRANSFORMER
        ]
        for place, found in ((f"{OTHER_OBJECT}spec", theirs), (at, own))
    ]
    base, patch = (next(iter(found), None) for found in transformers)
    into = spec["containers"]
    if base or patch:
        where, below = base or patch or ("", {})
        path = f"spec.containers[{len(into)}]"
        origins[path] = where
        if base and patch:
            below = merged_map(below, without_nulls(patch[1]), path, patch[0], origins)
            joined = [*strings(base[1], "args"), *strings(patch[1], "args")]
            below = {**below, "args": joined} if joined else below
        into.append(below)
    for place, found in ((f"{OTHER_OBJECT}spec", theirs), (at, own)):
        for index, each in found:
            name = text(each, "name")
            if name == _TRANSFORMER or (place != at and name == KSERVE_CONTAINER):
                continue
            origins[f"spec.containers[{len(into)}]"] = f"{place}.containers[{index}]"
            into.append(each)


def with_own_readiness(obj: Json, spec: Json) -> Json:
    """A service's pod with the readiness probes that KServe adds to Deployments. KServe records the cluster's
    mode in an annotation of every service."""
    if annotations_of(obj).get("serving.kserve.io/deploymentMode") not in _OF_DEPLOYMENTS:
        return spec
    given = spec.get("containers")
    changed = [_ready(each) for each in given] if isinstance(given, list) else given
    return spec if changed == given else {**spec, "containers": changed}


def _ready(container: Any) -> Any:
    if not isinstance(container, dict) or container.get("readinessProbe") is not None:
        return container
    if text(container, "name") not in (KSERVE_CONTAINER, _TRANSFORMER):
        return container
    ports = maps(container, "ports")
    port = integer(ports[0], "containerPort", default=0) if ports else _KSERVE_PORT
    timing = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    return {**container, "readinessProbe": {"tcpSocket": {"port": port}, **timing}} if port else container


def _with_names(value: Any, obj: Json) -> Any:
    """The container with the service's name and namespace in their placeholders."""
    if isinstance(value, str):
        named = {key: text(obj, "metadata", key.lower()) for key in ("Name", "Namespace")}
        return _PLACEHOLDER.sub(lambda match: named[match[1]], value) if "{{" in value else value
    if isinstance(value, dict):
        return {key: _with_names(each, obj) for key, each in value.items()}
    return [_with_names(each, obj) for each in value] if isinstance(value, list) else value


def _labelled(obj: Json, given: Json, predictor: Json) -> Json:
    """Labels and annotations of the predictor's pods: the component's precede the service's."""
    own = mapping(obj, "metadata")
    fields = {
        key: {**mapping(given, key), **mapping(own, key), **mapping(predictor, key)}
        for key in ("labels", "annotations")
    }
    fields["labels"] |= {"serving.kserve.io/inferenceservice": text(own, "name"), "component": "predictor"}
    return fields


# --- Trainer -----------------------------------------------------------------------------------------

_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE: Final = "node"


def _trained(obj: Json, runtime: Json) -> Iterator[Completed]:
    spec = mapping(obj, "spec")
    for index, job in indexed_maps(runtime, "spec", "template", "spec", "replicatedJobs"):
        at = f"{OTHER_OBJECT}spec.template.spec.replicatedJobs[{index}].template.spec.template"
        template = mapping(job, "template", "spec", "template")
        origins = {"": at, "spec": f"{at}.spec", "metadata": f"{at}.metadata"}
        for number, override in indexed_maps(spec, "podTemplateOverrides"):
            targets = {text(each, "name") for each in maps(override, "targetJobs")}
            if text(job, "name") in targets:
                patch: Json = {key: override[key] for key in ("metadata", "spec") if key in override}
                where = f"spec.podTemplateOverrides[{number}]"
                template = merged_map(template, without_nulls(patch), "", where, origins)
        for where, given in _runtime_patches(spec, text(job, "name")):
            template = merged_map(template, without_nulls(given), "", where, origins)
        pod = dict(mapping(template, "spec"))
        if labels_of(mapping(job, "template")).get(_STEP) == "trainer":
            pod["containers"] = [
                _with_trainer(each, number, mapping(spec, "trainer"), origins)
                for number, each in enumerate(maps(pod, "containers"))
            ]
        reads = ("spec.runtimeRef", "spec.podTemplateOverrides", "spec.runtimePatches")
        path = f"spec.runtimeRef.{text(job, 'name') or index}"
        metadata = mapping(template, "metadata")
        if pod.get("containers"):
            yield Completed(pod, metadata, origins, path, reads, ("spec.trainer",))


def _runtime_patches(spec: Json, name: str) -> Iterator[tuple[str, Json]]:
    """The patches of Trainer 2.2 and later over the pod template of a job of the runtime."""
    steps = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
    for number, patch in indexed_maps(spec, "runtimePatches"):
        for index, job in indexed_maps(patch, *steps):
            template = mapping(job, "template", "spec", "template")
            if text(job, "name") == name and template:
                at = f"spec.runtimePatches[{number}].{'.'.join(steps)}[{index}].template.spec.template"
                yield at, template


def _with_trainer(container: Json, number: int, trainer: Json, origins: dict[str, str]) -> Json:
    """The container `node` with the fields of the TrainJob; only `env` is merged."""
    if text(container, "name") != _NODE:
        return container
    result, path = dict(container), f"spec.containers[{number}]"
    resources = mapping(trainer, "resourcesPerNode")
    given = {key: trainer[key] for key in ("image", "command", "args") if trainer.get(key)}
    if resources.get("limits") or resources.get("requests"):
        given["resources"] = resources
    for key, value in given.items():
        result[key] = value
        origins[f"{path}.{key}"] = f"spec.trainer.{'resourcesPerNode' if key == 'resources' else key}"
    if maps(trainer, "env"):
        result["env"] = merged_list(
            maps(container, "env"), maps(trainer, "env"), f"{path}.env", "spec.trainer.env", origins
        )
    return result


# --- Argo Rollouts -----------------------------------------------------------------------------------


def _of_template(base: Base) -> Iterator[Completed]:
    steps = ("template",) if base.kind == POD_TEMPLATE else ("spec", "template")
    template = dig(base.obj, *steps)
    if not isinstance(template, dict):
        return
    at = OTHER_OBJECT + ".".join(steps)
    origins: Mapping[str, str] = {"": at, "spec": f"{at}.spec", "metadata": f"{at}.metadata"}
    spec, metadata = mapping(template, "spec"), mapping(template, "metadata")
    yield Completed(spec, metadata, origins, base.at, (base.at,), ())
