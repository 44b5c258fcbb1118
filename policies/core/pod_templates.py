"""The pod templates of an object: where its kind has them, and writing a changed pod back.

The table `workloads.yaml` says where. Some pods are composed from several fields, completed by another
object, or get fields from an operator that the object does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from policies.core.composing import OTHER_OBJECT, composed_pod, patched_pod
from policies.core.groups import leader_of
from policies.core.kserve import completed, own_runtime, served, with_own_readiness
from policies.core.pod_bases import POD_TEMPLATE, Base, BasedPod, Find, base_of
from policies.core.pod_view import PodView
from policies.core.seldon import Graphs
from policies.core.target import PodTemplate
from policies.core.trainer import trained
from policies.core.workloads import (
    KSERVE_CONTAINER,
    ClaimUri,
    CompletedBy,
    Composed,
    Shape,
    TemplatePatch,
    Workload,
)
from policies.kube.field_paths import Steps, every_value_at, field_path, maps_at
from policies.kube.group_kinds import LEADER_WORKER_SET, POD, SELDON_DEPLOYMENT, GroupKind, kind_of
from policies.kube.json import Json, appended, dig, mapping, maps, replaced, text
from policies.kube.pods import Role, containers, with_container

MAX_EMBEDDED: Final = 4
"""The deepest nesting of objects in objects."""


def pod_templates(
    obj: Json, workloads: Mapping[GroupKind, Workload], find: Find | None = None, namespace: str = ""
) -> tuple[PodTemplate, ...]:
    """Every pod template of an object; a Pod is its own. `find` looks up referenced objects."""
    kind = kind_of(obj)
    if kind == POD:
        return (PodTemplate(PodView(obj), "", "spec", None),)
    workload = workloads.get(kind)
    if workload is None:
        return ()
    found = tuple(_templates(obj, (), workload, workloads, MAX_EMBEDDED))
    if find is not None and workload.completed_by is not None:
        base = base_of(obj, workload, namespace, find)
        pods = _based_pods(obj, workload, base) if base is not None else []
        replaced_at = {path for each in pods for path in each.replaces}
        rest = (each for each in found if each.path not in replaced_at)
        found = (*(_based_template(obj, workload, each, base) for each in pods), *rest)
    for entry in workload.claims:
        found = tuple(_with_claims(obj, found, entry))
    if not workload.accepts_all(obj):
        graphs = Graphs(obj) if kind == SELDON_DEPLOYMENT else None
        found = tuple(_with_given_fields(each, graphs) for each in found)
    if workload.variables:
        found = tuple(_with_variables(each, workload.variables) for each in found)
    if workload.completed_by is CompletedBy.SERVING_RUNTIME:
        found = tuple(_with_own_readiness(obj, each) for each in found)
    return found


def with_own_runtime(
    obj: Json, templates: tuple[PodTemplate, ...], others: Iterable[Json] | None
) -> PodTemplate | None:
    """The pod of an InferenceService's model as a runtime of KServe itself completes it; None if it is not
    known which one does. `others`: the known runtimes of the cluster and of the namespace; None if they are
    unknown."""
    of_predictor = (each for each in templates if each.container_path.startswith(_PREDICTOR))
    template = next(of_predictor, None)
    if template is None or template.workload is None:
        return None
    if template.workload.completed_by is not CompletedBy.SERVING_RUNTIME:
        return None
    field = template.container_path.removeprefix(_PREDICTOR)
    runtime = own_runtime(obj, field, others)
    if runtime is None:
        return None
    view = PodView({**template.pod, "spec": completed(obj, field, template.spec, runtime)})
    origins = {"spec": template.spec_path, **template.claims}
    return replace(template, view=view, own_runtime=runtime.name, origins=origins)


_PREDICTOR: Final = "spec.predictor."


def _with_claims(obj: Json, templates: tuple[PodTemplate, ...], entry: ClaimUri) -> Iterator[PodTemplate]:
    """The templates with the claims that their operator mounts because of a URI."""
    named: dict[Steps, tuple[str, str]] = {}
    for steps, node in maps_at(obj, entry.at):
        uri = tuple(entry.uri.split("."))
        claim = _CLAIM_URI.match(text(node, *uri))
        if claim is None:
            continue
        for pod in entry.pods:
            named[(*steps, *filter(None, pod.split(".")))] = claim[1], field_path((*steps, *uri))
    for each in templates:
        name, at = named.get(each.steps, ("", ""))
        yield _with_claim(each, name, at, entry.mounted) if name else each


def _with_claim(template: PodTemplate, claim: str, uri: str, mounted: str) -> PodTemplate:
    """The template with the volume of a claim that the URI at a field path names, and with its mount if a
    serving runtime completes the container."""
    volumes = maps(template.spec, "volumes")
    if any(text(each, "persistentVolumeClaim", "claimName") == claim for each in volumes):
        return template
    volume = {"name": f"{_CLAIM}{claim}", "persistentVolumeClaim": {"claimName": claim}}
    pod = appended(template.pod, ("spec", "volumes"), volume)
    main = next(iter(template.containers(Role.MAIN)), None)
    if mounted and main is not None and (template.container_path or template.base is not None):
        mount = {"name": volume["name"], "mountPath": mounted}
        pod = with_container(pod, main, appended(main.spec, ("volumeMounts",), mount))
    at = f"spec.volumes[{len(volumes)}]"
    fields = ("", ".persistentVolumeClaim", ".persistentVolumeClaim.claimName")
    origins = {f"{at}{each}": uri for each in fields}
    if template.origins is not None:
        return replace(template, view=PodView(pod), unprojected=pod, origins={**template.origins, **origins})
    return replace(template, view=PodView(pod), unprojected=pod, claims=origins)


def _without_claims(pod: Json) -> Json:
    """A pod without the claims that `_with_claim` adds."""
    spec = mapping(pod, "spec")
    volumes = [each for each in maps(spec, "volumes") if not text(each, "name").startswith(_CLAIM)]
    rest = {key: value for key, value in spec.items() if key != "volumes"}
    return {**pod, "spec": {**rest, "volumes": volumes} if volumes else rest}


_CLAIM: Final = "claim-of-uri-"
"""The beginning of the names of such volumes."""
_CLAIM_URI: Final = re.compile(r"pvc://([^/]+)")


def _with_own_readiness(obj: Json, template: PodTemplate) -> PodTemplate:
    spec = with_own_readiness(obj, template.spec)
    if spec is template.spec or template.container_path:  # a runtime may have the probe
        return template
    return replace(template, view=PodView({**template.pod, "spec": spec}))


def _with_given_fields(template: PodTemplate, graphs: Graphs | None) -> PodTemplate:
    """The template with the fields that its operator gives to the main containers of the pods."""
    pod, gives = template.pod, template.workload.gives if template.workload is not None else {}
    predictor = template.entry if graphs is not None and template.is_exact else None
    for container in template.containers(Role.MAIN) if gives or predictor is not None else ():
        given = gives if graphs is None or predictor is None else graphs.given_to(predictor, container)
        unset = {key: value for key, value in given.items() if container.spec.get(key) is None}
        pod = with_container(pod, container, {**container.spec, **unset}) if unset else pod
    return template if pod is template.pod else replace(template, view=PodView(pod))


def _with_variables(template: PodTemplate, variables: Mapping[str, Mapping[str, str]]) -> PodTemplate:
    """The template with the variables that its operator sets. They follow the others, whose places stay."""
    pod, given = template.pod, variables.get(template.path.rpartition(".")[2], {})
    for container in template.containers() if given else ():
        env = container.spec.get("env") or []
        named = {text(each, "name") for each in maps(container.spec, "env")}
        added = [{"name": name, "value": value} for name, value in given.items() if name not in named]
        if added and isinstance(env, list):
            pod = with_container(pod, container, {**container.spec, "env": [*env, *added]})
    return template if pod is template.pod else replace(template, view=PodView(pod))


def _based_template(obj: Json, workload: Workload, each: BasedPod, base: Base | None) -> PodTemplate:
    view = PodView(_pod(obj, workload, each.metadata, each.spec))
    return PodTemplate(
        view,
        path=each.path,
        spec_path=each.path,
        workload=workload,
        steps=tuple(each.path.split(".")),
        shape=Shape.SPEC,
        origins=each.origins,
        base=base,
        reads=each.reads,
    )


def _based_pods(obj: Json, workload: Workload, base: Base) -> list[BasedPod]:
    """The pods of a workload, made from its base; empty if its operator creates none."""
    match workload.completed_by:
        case CompletedBy.SERVING_RUNTIME:
            return list(served(obj, base.obj))
        case CompletedBy.TRAINING_RUNTIME:
            return list(trained(obj, base.obj))
        case CompletedBy.TEMPLATE:
            return list(_of_template(base))
    return []


def _of_template(base: Base) -> Iterator[BasedPod]:
    """The template of another workload, as Argo Rollouts v1.8 uses it (rollout/templateref.go)."""
    steps = ("template",) if base.kind == POD_TEMPLATE else ("spec", "template")
    template = dig(base.obj, *steps)
    if not isinstance(template, dict):
        return
    at = OTHER_OBJECT + ".".join(steps)
    origins: Mapping[str, str] = {"": at, "spec": f"{at}.spec", "metadata": f"{at}.metadata"}
    spec, metadata = mapping(template, "spec"), mapping(template, "metadata")
    yield BasedPod(spec, metadata, origins, base.at, (base.at,), ())


def _element(steps: Steps) -> Steps:
    """The steps to the first list element on a path; none without one: then it is the whole object."""
    first = next((number for number, step in enumerate(steps, 1) if isinstance(step, int)), 0)
    return steps[:first]


def _templates(
    obj: Json, above: Steps, workload: Workload, workloads: Mapping[GroupKind, Workload], depth: int
) -> Iterator[PodTemplate]:
    """The templates of an object at the steps `above` in the whole object."""
    patched = {
        (*steps, *override.base.split("."))
        for override in workload.overrides
        for steps, node in maps_at(obj, override.at)
        if mapping(node, *override.patch.split("."))
    }
    rewritten = {_element(steps) for path in workload.rewritten_if for steps, _ in every_value_at(obj, path)}
    for path in workload.templates:
        for steps, node in maps_at(obj, path):
            made = _template(obj, workload, above, steps, node, workload.shape, patched=steps in patched)
            yield replace(made, rewritten=True) if _element(steps) in rewritten else made
    for path in workload.specs:
        for steps, node in maps_at(obj, path):
            made = _template(obj, workload, above, steps, node, Shape.SPEC)
            yield replace(made, rewritten=True) if _element(steps) in rewritten else made
    for path in workload.containers:
        for steps, node in maps_at(obj, path):
            yield _runtime_template(obj, workload, above, steps, node)
    for entry in workload.composed:
        for steps, node in maps_at(obj, entry.at):
            for made in _composed_template(obj, workload, above, steps, node, entry):
                yield replace(made, rewritten=True) if _element(steps) in rewritten else made
    for override in workload.overrides:
        for steps, node in maps_at(obj, override.at):
            yield from _patched_template(obj, workload, (*above, *steps), node, override)
    for path in workload.objects if depth else ():
        for steps, node in maps_at(obj, path):
            kind = kind_of(node)
            inner = workloads.get(kind)
            here = (*above, *steps)
            if kind == POD:
                at = field_path(here)
                yield PodTemplate(PodView(node), at, f"{at}.spec", workload, here, shape=workload.shape)
            elif inner is not None:
                yield from _templates(node, here, inner, workloads, depth - 1)


def _template(
    obj: Json, workload: Workload, above: Steps, steps: Steps, node: Json, shape: Shape, patched: bool = False
) -> PodTemplate:
    here = (*above, *steps)
    path = field_path(here)
    if shape is Shape.SPEC:
        pod = _pod(obj, workload, _inherited(obj, workload, steps), node)
        return PodTemplate(PodView(pod), path, path, workload, here, shape=shape)
    pod = _pod(obj, workload, mapping(node, "metadata"), mapping(node, "spec"))
    if workload.group_kind == LEADER_WORKER_SET:
        pod["metadata"]["ownerReferences"][0] |= leader_of(obj, path)
    origins = {"spec": f"{path}.spec", "metadata": f"{path}.metadata"} if patched else None
    return PodTemplate(PodView(pod), path, f"{path}.spec", workload, here, shape=shape, origins=origins)


def _composed_template(
    obj: Json, workload: Workload, above: Steps, steps: Steps, node: Json, entry: Composed
) -> Iterator[PodTemplate]:
    here = (*above, *steps)
    path = field_path(here)
    spec, metadata, origins = composed_pod(node, path, entry, mapping(obj, *steps[:-1]), obj)
    if "containers" in spec:
        if not entry.metadata:
            metadata = _inherited(obj, workload, steps)
        pod = _pod(obj, workload, metadata, spec, entry.owner)
        yield PodTemplate(PodView(pod), path, path, workload, here, shape=workload.shape, origins=origins)


def _patched_template(
    obj: Json, workload: Workload, steps: Steps, node: Json, override: TemplatePatch
) -> Iterator[PodTemplate]:
    base, patch = (mapping(node, *each.split(".")) for each in (override.base, override.patch))
    if not base or not patch:
        return
    path = field_path(steps)
    at, patch_at = f"{path}.{override.base}", f"{path}.{override.patch}"
    merged, origins = patched_pod(base, at, patch, patch_at)
    pod = _pod(obj, workload, mapping(merged, "metadata"), mapping(merged, "spec"))
    yield PodTemplate(
        PodView(pod), patch_at, f"{patch_at}.spec", workload, steps, shape=workload.shape, origins=origins
    )


def _runtime_template(
    obj: Json, workload: Workload, above: Steps, steps: Steps, container: Json
) -> PodTemplate:
    """The pod of a single container, whose siblings are the pod's other fields."""
    siblings = mapping(obj, *steps[:-1])
    spec = {key: value for key, value in siblings.items() if key not in ("containers", "initContainers")}
    spec["containers"] = [{"name": KSERVE_CONTAINER, **container}]
    here = (*above, *steps)
    return PodTemplate(
        PodView(_pod(obj, workload, _inherited(obj, workload, steps), spec)),
        path=field_path(here),
        spec_path=field_path(here[:-1]),
        workload=workload,
        steps=here,
        container_path=field_path(here),
        shape=workload.shape,
    )


def _inherited(obj: Json, workload: Workload, steps: Steps) -> Json:
    """The labels and annotations of the object, which pods without a pod template have, and those of the maps
    around such a pod."""
    metadata = mapping(obj, "metadata")
    found: Json = {key: metadata[key] for key in _INHERITED if key in metadata}
    for end in range(1, len(steps) + 1) if workload.own_metadata else ():
        around = dig(obj, *steps[:end])
        for key in _INHERITED:
            if own := mapping(around, key):
                found[key] = {**mapping(found, key), **own}
    return found


_INHERITED: Final = ("labels", "annotations")


def _pod(obj: Json, workload: Workload, metadata: Json, spec: Json, owner_kind: str = "") -> Json:
    owner = {
        "apiVersion": text(obj, "apiVersion"),
        "kind": owner_kind or workload.owner or workload.kind,
        "name": text(obj, "metadata", "name"),
        "controller": True,
    }
    metadata = {**metadata, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def with_template(obj: Json, template: PodTemplate, pod: Json) -> Json:
    """The object with one template's pod replaced by the projected pod."""
    if template.workload is None:
        return pod
    if not template.is_exact:
        return obj
    pod = _without_given_fields(template, pod)
    if template.claims:
        pod = _without_claims(pod)
    if template.shape is Shape.SPEC:
        return replaced(obj, template.steps, pod["spec"])
    node = mapping(obj, *template.steps)
    metadata = {key: value for key, value in mapping(pod, "metadata").items() if key != "ownerReferences"}
    if metadata != mapping(node, "metadata") and isinstance(node.get("metadata"), dict | None):
        node = {**node, "metadata": metadata}
    if pod["spec"] is not node.get("spec"):
        node = {**node, "spec": pod["spec"]}
    return replaced(obj, template.steps, node)


def _without_given_fields(template: PodTemplate, pod: Json) -> Json:
    """The pod without the fields that the operator gives to its main containers: they belong to the pods, not
    to the object."""
    if template.unprojected is template.pod:
        return pod
    written = {each.name: each.spec for each in containers(template.unprojected, Role.MAIN)}
    made = {each.name: each.spec for each in template.containers(Role.MAIN)}
    for container in containers(pod, Role.MAIN):
        own, given = written.get(container.name, {}), made.get(container.name, {})
        spec = {
            key: value
            for key, value in container.spec.items()
            if value is None or own.get(key) is not None or value != given.get(key)
        }
        if len(spec) < len(container.spec):
            pod = with_container(pod, container, spec)
    return pod
