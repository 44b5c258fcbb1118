"""The pods of an InferenceService of KServe, merged over those of its ServingRuntime.

Source: KServe v0.16, pkg/controller/v1beta1/inferenceservice: components/predictor.go, utils/utils.go and
reconcilers/deployment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from policies.core import data
from policies.core.composing import OF_A_POD, OTHER_OBJECT, merged_map, without_nulls
from policies.core.pod_bases import BasedPod
from policies.core.settings import Field, Model
from policies.core.workloads import KSERVE_CONTAINER
from policies.kube.json import Json, indexed_maps, integer, mapping, maps, strings, text
from policies.kube.metadata import annotations_of

_OF_A_MODEL: Final = frozenset(
    {"modelFormat", "protocolVersion", "runtime", "runtimeVersion", "storage", "storageUri"}
)
"""Fields of a predictor's `model` that are not fields of a container."""
_OF_A_RUNTIME: Final = ("nodeSelector", "affinity", "tolerations", "volumes", "imagePullSecrets")
"""Fields of a runtime that KServe copies to the pods."""
_WORKER: Final = "worker-container"
_TRANSFORMER: Final = "transformer-container"
DEPLOYMENT_MODE: Final = "serving.kserve.io/deploymentMode"
_OF_DEPLOYMENTS: Final = ("Standard", "RawDeployment")
_KSERVE_PORT: Final = 8080
_PLACEHOLDER: Final = re.compile(r"\{\{-?\s*\.(Name|Namespace)\s*-?\}\}")
_TAG: Final = re.compile(r"(:([\w.\-_]*))$")


class OwnRuntime(Model):
    """A ClusterServingRuntime that KServe installs."""

    name: str = Field(description="its name")
    since: str = Field(description="the first release with it")
    formats: frozenset[str] = Field(
        frozenset(), description="the model formats for which each release since then chooses it"
    )
    protocols: frozenset[str] = Field(
        frozenset(), description="the versions of the protocol for which it does so; empty: all"
    )
    container: Json = Field(description="the same fields of its container in all releases")
    volumes: tuple[Json, ...] = Field((), description="the volumes of its pods")
    source: str = Field(description="where it was read")

    def is_chosen_for(self, model_format: str, model: Json) -> bool:
        """Whether KServe chooses it, among its own ones, for a model that names no runtime."""
        known = model_format in self.formats
        if not known or not self.protocols:
            return known
        version = text(model, "modelFormat", "version")
        return not version and (text(model, "protocolVersion") or "v1") in self.protocols


_own_runtimes = data.entries(OwnRuntime, __package__, "serving_runtimes.yaml")


def own_runtime(obj: Json, field: str, others: Iterable[Json] | None) -> OwnRuntime | None:
    """The runtime of KServe itself that completes the container in a field of the predictor: `model`, or one
    that is named after its format, which KServe makes a `model` of. None if it may be another one. `others`:
    the known runtimes of the cluster and of the namespace; None if they are unknown."""
    predictor, model = mapping(obj, "spec", "predictor"), mapping(obj, "spec", "predictor", field)
    if "workerSpec" in predictor or annotations_of(obj).get(DEPLOYMENT_MODE) == "ModelMesh":
        return None
    name, known = text(model, "runtime"), [*(others or ())]
    if name:
        changed = any(text(each, "metadata", "name") == name for each in known)
        return None if changed else next((each for each in _own_runtimes() if each.name == name), None)
    if others is None:
        return None  # any runtime of the cluster may come first
    model_format = text(model, "modelFormat", "name") if field == "model" else field
    found = next((each for each in _own_runtimes() if each.is_chosen_for(model_format, model)), None)
    return None if any(_supports(each, model_format) for each in known) else found


def _supports(runtime: Json, model_format: str) -> bool:
    formats = maps(runtime, "spec", "supportedModelFormats")
    return any(text(each, "name") == model_format for each in formats)


def completed(obj: Json, field: str, spec: Json, runtime: OwnRuntime) -> Json:
    """The pod spec of the container in a field of the predictor with a runtime under it."""
    model = mapping(obj, "spec", "predictor", field)
    own = {key: value for key, value in without_nulls(model).items() if key not in _OF_A_MODEL}
    version = text(model, "runtimeVersion")
    below = dict(runtime.container)
    if "image" in below:
        below["image"] += f":{version}" if version else _OF_SOME_RELEASE
    origins: dict[str, str] = {}
    container = merged_map(below, own, "", "", origins)
    args = [*strings(below, "args"), *strings(own, "args")]
    container |= {"name": text(own, "name") or KSERVE_CONTAINER, **({"args": args} if args else {})}
    given = maps(spec, "volumes")
    names = {text(each, "name") for each in given}
    volumes = [*given, *(each for each in runtime.volumes if text(each, "name") not in names)]
    rest: Mapping[str, Any] = {"volumes": volumes} if volumes else {}
    return {**spec, **rest, "containers": [_with_names(container, obj)]}


_OF_SOME_RELEASE: Final = "@unknown"
"""A digest: the tag of the image is another one in each release."""


def served(obj: Json, runtime: Json) -> Iterator[BasedPod]:
    given, predictor = mapping(runtime, "spec"), mapping(obj, "spec", "predictor")
    if given.get("disabled") is True:
        return
    model = {key: value for key, value in mapping(predictor, "model").items() if key not in _OF_A_MODEL}
    at, metadata = "spec.predictor", _labelled(obj, given, predictor)
    own, container = _Located(predictor, at), _Located(model, f"{at}.model")
    made = _of_runtime(obj, _Located(given, f"{OTHER_OBJECT}spec"), own, KSERVE_CONTAINER, container)
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
    yield BasedPod(spec, metadata, origins, f"{at}.model", reads, (at, f"{at}.model"))
    worker, workers = mapping(given, "workerSpec"), predictor.get("workerSpec")
    if isinstance(workers, dict) and worker:
        place = f"{at}.workerSpec"
        first = _Located(next(iter(maps(workers, "containers")), {}), f"{place}.containers[0]")
        below = _Located(worker, f"{OTHER_OBJECT}spec.workerSpec")
        made = _of_runtime(obj, below, _Located(workers, place), _WORKER, first)
        if made is not None:
            yield BasedPod(made[0], metadata, made[1], place, reads, (place,))


class _Located(NamedTuple):
    fields: Json
    at: str
    """Their field path."""


def _of_runtime(
    obj: Json, given: _Located, own: _Located, name: str, container: _Located
) -> tuple[Json, dict[str, str]] | None:
    """The pod of the container of a name in a runtime's spec (`given`), with a container merged over it and
    with the fields of the service (`own`); None if the runtime has no such container."""
    named = (each for each in indexed_maps(given.fields, "containers") if text(each[1], "name") == name)
    index, below = next(named, (0, None))
    if below is None:
        return None
    below_at = f"{given.at}.containers[{index}]"
    origins = {"spec": own.at, "metadata": "metadata", "spec.containers[0]": container.at}
    origins |= {f"spec.containers[0].{key}": f"{below_at}.{key}" for key in below}
    over = without_nulls(container.fields)
    merged = merged_map(below, over, "spec.containers[0]", container.at, origins)
    merged["name"] = text(container.fields, "name") or name
    first, last = strings(below, "args"), strings(container.fields, "args")
    if first or last:  # KServe joins the lists, a strategic merge would replace them
        merged["args"] = [*first, *last]
        origins["spec.containers[0].args"] = f"{container.at if last else below_at}.args"
        sources = [f"{below_at}.args[{number}]" for number in range(len(first))]
        sources += [f"{container.at}.args[{number}]" for number in range(len(last))]
        origins |= {f"spec.containers[0].args[{number}]": source for number, source in enumerate(sources)}
    pod: Json = {key: given.fields[key] for key in _OF_A_RUNTIME if key in given.fields}
    origins |= {f"spec.{key}": f"{given.at}.{key}" for key in pod}
    siblings = {
        key: own.fields[key] for key in (*OF_A_POD, "initContainers") if own.fields.get(key) is not None
    }
    spec = merged_map(pod, without_nulls(siblings), "spec", own.at, origins)
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


def makes_deployments(service: Json) -> bool:
    """Whether KServe makes Deployments of a service, not Knative's. It records the cluster's mode in an
    annotation of every service."""
    return annotations_of(service).get(DEPLOYMENT_MODE) in _OF_DEPLOYMENTS


def with_own_readiness(obj: Json, spec: Json) -> Json:
    """A service's pod with the readiness probes that KServe adds to Deployments."""
    if not makes_deployments(obj):
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
