"""The pods of a TrainJob of Kubeflow, merged over those of its training runtime.

Source: Trainer v2.1 and v2.3, pkg/runtime/core/trainingruntime.go and
pkg/runtime/framework/plugins/jobset/builder.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.composing import OTHER_OBJECT, merged_list, merged_map, without_nulls
from policies.core.pod_bases import BasedPod
from policies.kube.json import Json, indexed_maps, mapping, maps, text
from policies.kube.metadata import labels_of

_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE: Final = "node"


def trained(obj: Json, runtime: Json) -> Iterator[BasedPod]:
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
            yield BasedPod(pod, metadata, origins, path, reads, ("spec.trainer",))


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
