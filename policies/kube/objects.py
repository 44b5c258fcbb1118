"""Reading pod templates out of any kind, and editing JSON by copy-on-write.

Objects may come from a file that no API server has validated: every reader answers an empty value
for a field that is absent or of the wrong type, so that policies and rules need no guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from policies.core.base import Json, Kind
from policies.core.workloads import KSERVE_CONTAINER, POD, WORKLOADS, Shape, Workload
from policies.kube.field_paths import Steps, maps_at

# --- reading ---------------------------------------------------------------------------------


def dig(obj: Any, *path: str | int) -> Any:
    """The value at a path of keys and indices, or None where the path does not lead anywhere."""
    for step in path:
        # JSON has no subclasses: exact types are told apart faster, and this is called everywhere.
        if type(obj) is dict:
            obj = obj.get(step)
        elif type(obj) is list and type(step) is int and -len(obj) <= step < len(obj):
            obj = obj[step]
        else:
            return None
    return obj


def mapping(obj: Any, *path: str | int) -> Json:
    """The map at a path; empty when it is absent or something else."""
    value = dig(obj, *path)
    return value if isinstance(value, dict) else {}


def maps(obj: Any, *path: str | int) -> list[Json]:
    """The maps in the list at a path, other elements left out.

    Where indices matter use `indexed_maps`.
    """
    return [item for _, item in indexed_maps(obj, *path)]


def indexed_maps(obj: Any, *path: str | int) -> list[tuple[int, Json]]:
    """The maps in the list at a path, each with its index in that list."""
    value = dig(obj, *path)
    return (
        [(n, item) for n, item in enumerate(value) if isinstance(item, dict)]
        if isinstance(value, list)
        else []
    )


def text(obj: Any, *path: str | int) -> str:
    """The string at a path; empty when it is absent or something else."""
    value = dig(obj, *path)
    return value if isinstance(value, str) else ""


def integer(obj: Any, *path: str | int, default: int) -> int:
    """The whole number at a path; the default when it is absent or something else."""
    value = dig(obj, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def strings(obj: Any, *path: str | int) -> list[str]:
    """The strings in the list at a path."""
    value = dig(obj, *path)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def labels_of(obj: Json) -> Mapping[str, str]:
    return mapping(obj, "metadata", "labels")


def annotations_of(obj: Json) -> Mapping[str, str]:
    return mapping(obj, "metadata", "annotations")


_ANNOTATIONS_SIZE: Final = 256 << 10
"""Bytes of all keys and values together: the API server refuses an object with more."""


def has_room(annotations: Mapping[str, Any], added: Mapping[str, str]) -> bool:
    """Whether annotations may be added to those that are there, without the object being refused."""
    both = {**added, **annotations}
    return (
        sum(len(f"{key}{value}".encode(errors="surrogatepass")) for key, value in both.items())
        <= _ANNOTATIONS_SIZE
    )


def kind_of(obj: Json) -> Kind:
    group, slash, _ = text(obj, "apiVersion").rpartition("/")
    return Kind(group if slash else "", text(obj, "kind"))


def controller(obj: Json) -> Json | None:
    """The owner reference marked as controller."""
    return next(
        (ref for ref in maps(obj, "metadata", "ownerReferences") if ref.get("controller") is True), None
    )


def matches(selector: Any, of: Mapping[str, str]) -> bool:
    """Whether a LabelSelector (`matchLabels`, `matchExpressions`) matches; an empty one does.

    None matches nothing, and so does an operator that is not known.
    """
    if not isinstance(selector, dict):
        return False
    if any(of.get(key) != value for key, value in mapping(selector, "matchLabels").items()):
        return False
    return all(_matches_expression(term, of) for term in maps(selector, "matchExpressions"))


def _matches_expression(term: Json, of: Mapping[str, str]) -> bool:
    key, values = text(term, "key"), strings(term, "values")
    match term.get("operator"):
        case "In":
            return of.get(key) in values
        case "NotIn":
            return of.get(key) not in values
        case "Exists":
            return key in of
        case "DoesNotExist":
            return key not in of
    return False


# --- pods and their containers ----------------------------------------------------------------


class Role(Enum):
    """What a container is in its pod."""

    MAIN = "main"
    SIDECAR = "sidecar"
    """A native sidecar: an init container with `restartPolicy: Always`."""
    INIT = "init"


@dataclass(frozen=True, slots=True)
class Container:
    """A container with its place: `list` is `containers` or `initContainers`."""

    spec: Json
    list: str
    index: int
    role: Role

    @property
    def name(self) -> str:
        return text(self.spec, "name")

    @property
    def image(self) -> str:
        return text(self.spec, "image")


def containers(pod: Json, *roles: Role) -> Iterator[Container]:
    """The containers of a pod (a map with `spec`), main ones first; of the given roles, or all."""
    for index, spec in indexed_maps(pod, "spec", "containers"):
        if not roles or Role.MAIN in roles:
            yield Container(spec, "containers", index, Role.MAIN)
    for index, spec in indexed_maps(pod, "spec", "initContainers"):
        role = Role.SIDECAR if spec.get("restartPolicy") == "Always" else Role.INIT
        if not roles or role in roles:
            yield Container(spec, "initContainers", index, role)


def completes(pod: Json) -> bool:
    """Whether the pod runs to completion: by its restartPolicy or as a Job's."""
    if text(pod, "spec", "restartPolicy") in ("Never", "OnFailure"):
        return True
    owner = controller(pod)
    return owner is not None and owner.get("kind") in _COMPLETING_OWNERS


_COMPLETING_OWNERS: Final = frozenset(w.owner or w.kind for w in WORKLOADS if w.completes)


def is_ray_node(pod: Json) -> bool:
    """Whether KubeRay made the pod as a Ray head or worker (and fills its probes itself)."""
    owner = controller(pod)
    if owner is not None and owner.get("kind") == "RayCluster":
        return labels_of(pod).get("ray.io/node-type") != "redis-cleanup"
    return labels_of(pod).get("ray.io/is-ray-node") == "yes"


# --- what rules judge -------------------------------------------------------------------------


@dataclass(frozen=True)
class PodTemplate:
    """One pod template of an object: the pod that will be made, and where it stands.

    `pod` is shaped like a Pod (apiVersion, kind, metadata, spec) whatever it was read from, with
    the controller's owner reference that its pods will carry. `path` is the field path of the
    template (empty for a Pod), `spec_path` that of its pod spec.
    """

    pod: Json
    path: str
    spec_path: str
    workload: Workload | None
    steps: Steps = ()
    container_path: str = ""
    """Where the only container stands, if it is one that a serving runtime completes: what is missing in
    it may be the runtime's to give."""

    @property
    def spec(self) -> Json:
        return mapping(self.pod, "spec")

    @property
    def metadata_path(self) -> str:
        """Field path of the metadata that the pods carry."""
        workload = self.workload
        inline = workload is not None and (workload.shape is Shape.SPEC or bool(self.container_path))
        return "metadata" if inline or not self.path else f"{self.path}.metadata"

    @property
    def completes(self) -> bool:
        return completes(self.pod)

    @property
    def is_ray(self) -> bool:
        return is_ray_node(self.pod)

    def containers(self, *roles: Role) -> Iterator[Container]:
        """The containers of the pod, main ones first; of the given roles, or all."""
        return (each for each in self._containers if not roles or each.role in roles)

    @cached_property
    def _containers(self) -> tuple[Container, ...]:
        return tuple(containers(self.pod))

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What rules have worked out about this template, so that the next one need not."""
        return {}

    def at(self, container: Container, *fields: str) -> str:
        """Field path of a container, or of a field inside it."""
        place = self.container_path or f"{self.spec_path}.{container.list}[{container.index}]"
        return ".".join((place, *fields))


@dataclass(frozen=True, slots=True)
class Subject:
    """The object under judgement: as it will be stored, with its pods as they will be made."""

    obj: Json
    kind: Kind
    templates: tuple[PodTemplate, ...] = ()

    @property
    def spec(self) -> Json:
        return mapping(self.obj, "spec")

    @property
    def name(self) -> str:
        return text(self.obj, "metadata", "name") or text(self.obj, "metadata", "generateName")


def pod_templates(obj: Json, workloads: Mapping[Kind, Workload]) -> tuple[PodTemplate, ...]:
    """Every pod template of an object; a Pod is its own."""
    kind = kind_of(obj)
    if kind == POD:
        return (PodTemplate(obj, "", "spec", None),)
    workload = workloads.get(kind)
    if workload is None:
        return ()
    return (
        *(
            _template(obj, workload, steps, node)
            for path in workload.templates
            for steps, node in maps_at(obj, path)
        ),
        *(
            _runtime_template(obj, workload, steps, node)
            for path in workload.containers
            for steps, node in maps_at(obj, path)
        ),
    )


def _template(obj: Json, workload: Workload, steps: Steps, node: Json) -> PodTemplate:
    path = field_path(steps)
    if workload.shape is Shape.SPEC:
        pod = _pod(obj, workload, _inherited(obj), node)
        return PodTemplate(pod, path, path, workload, steps)
    pod = _pod(obj, workload, mapping(node, "metadata"), mapping(node, "spec"))
    return PodTemplate(pod, path, f"{path}.spec", workload, steps)


def _runtime_template(obj: Json, workload: Workload, steps: Steps, container: Json) -> PodTemplate:
    """The pod around a single container: the pod's other fields stand beside it."""
    beside = mapping(obj, *steps[:-1])
    spec = {key: value for key, value in beside.items() if key not in ("containers", "initContainers")}
    spec["containers"] = [{"name": KSERVE_CONTAINER, **container}]
    path, spec_path = field_path(steps), field_path(steps[:-1])
    return PodTemplate(_pod(obj, workload, _inherited(obj), spec), path, spec_path, workload, steps, path)


def _inherited(obj: Json) -> Json:
    """The metadata that pods have from the object itself, where no pod template has its own."""
    metadata = mapping(obj, "metadata")
    return {key: metadata[key] for key in ("labels", "annotations") if key in metadata}


def _pod(obj: Json, workload: Workload, metadata: Json, spec: Json) -> Json:
    owner = {
        "apiVersion": text(obj, "apiVersion"),
        "kind": workload.owner or workload.kind,
        "name": text(obj, "metadata", "name"),
        "controller": True,
    }
    metadata = {**metadata, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def with_template(obj: Json, template: PodTemplate, pod: Json) -> Json:
    """The object with one template's pod replaced: how a projected pod is shown in its workload."""
    if template.workload is None:
        return pod
    if template.workload.shape is Shape.SPEC:
        return replaced(obj, template.steps, pod["spec"])
    node = mapping(obj, *template.steps)
    metadata = {key: value for key, value in mapping(pod, "metadata").items() if key != "ownerReferences"}
    if metadata != mapping(node, "metadata"):
        node = {**node, "metadata": metadata}
    if pod["spec"] is not node.get("spec"):
        node = {**node, "spec": pod["spec"]}
    return replaced(obj, template.steps, node)


def field_path(steps: Iterable[str | int]) -> str:
    """Kubernetes' spelling of a path: `spec.containers[0].env`, `metadata.labels[a.b/c]`."""
    path = ""
    for step in steps:
        if isinstance(step, int) or not step.replace("_", "").replace("-", "").isalnum():
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


# --- copy-on-write editing ---------------------------------------------------------------------


def replaced(obj: Json, path: Iterable[str | int], value: Any) -> Json:
    """A copy of `obj` with `value` at `path`; everything off the path is shared, not copied.

    Missing maps on the way are made; an index must exist, or be the list's length to append.
    """
    result: Json = _replaced(obj, tuple(path), value)
    return result


def _replaced(obj: Any, steps: tuple[str | int, ...], value: Any) -> Any:
    if not steps:
        return value
    head, rest = steps[0], steps[1:]
    if isinstance(head, str):
        copy = dict(obj) if isinstance(obj, dict) else {}
        copy[head] = _replaced(copy.get(head), rest, value)
        return copy
    items = list(obj) if isinstance(obj, list) else []
    if head == len(items):
        items.append(_replaced(None, rest, value))
    else:
        items[head] = _replaced(items[head], rest, value)
    return items


def defaulted(obj: Json, path: Iterable[str | int], value: Any) -> Json:
    """`replaced`, but only where nothing (or null) stands at the path: what the user wrote stays."""
    steps = tuple(path)
    return obj if dig(obj, *steps) is not None else replaced(obj, steps, value)


def appended(obj: Json, path: Iterable[str | int], *values: Any) -> Json:
    """A copy with values appended to the list at a path, which is made when absent."""
    steps = tuple(path)
    present = dig(obj, *steps)
    return replaced(obj, steps, [*(present if isinstance(present, list) else ()), *values])


def edited(pod: Json, container: Container, spec: Json) -> Json:
    """A copy of a pod with one container replaced."""
    if spec is container.spec:
        return pod
    return replaced(pod, ("spec", container.list, container.index), spec)
