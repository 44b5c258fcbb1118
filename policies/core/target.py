"""The object that rules judge, with every pod template that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.core.look import PodLook
from policies.core.workloads import KSERVE_CONTAINER, Shape, Workload
from policies.kube.field_paths import Steps, field_path, maps_at
from policies.kube.group_kinds import POD, GroupKind, kind_of
from policies.kube.json import Json, mapping, replaced, text
from policies.kube.pods import Container, Role


class PodTemplate:
    """One pod template of an object: the pod that will be made, and where it stands. Never changed once made.

    `pod` is shaped like a Pod (apiVersion, kind, metadata, spec) whatever it was read from, with
    the controller's owner reference that its pods will carry. `path` is the field path of the
    template (empty for a Pod), `spec_path` that of its pod spec.
    """

    __slots__ = ("container_path", "look", "memo", "path", "pod", "spec", "spec_path", "steps", "workload")

    def __init__(
        self,
        look: PodLook,
        path: str,
        spec_path: str,
        workload: Workload | None,
        steps: Steps = (),
        container_path: str = "",
    ) -> None:
        self.look = look
        """The look at its pod that all rules share."""
        self.pod = look.pod
        self.spec = mapping(look.pod, "spec")
        self.path, self.spec_path, self.workload, self.steps = path, spec_path, workload, steps
        self.container_path = container_path
        """Where the only container stands, if it is one that a serving runtime completes: what is missing in
        it may be the runtime's to give."""
        self.memo: dict[Any, Any] = {}
        """What rules have worked out about this template, so that the next one need not."""

    def remade(self, look: PodLook) -> PodTemplate:
        """The template with another pod."""
        return PodTemplate(look, self.path, self.spec_path, self.workload, self.steps, self.container_path)

    @property
    def metadata_path(self) -> str:
        """Field path of the metadata that the pods carry."""
        workload = self.workload
        inline = workload is not None and (workload.shape is Shape.SPEC or bool(self.container_path))
        return "metadata" if inline or not self.path else f"{self.path}.metadata"

    @property
    def completes(self) -> bool:
        return self.look.completes

    @property
    def is_ray(self) -> bool:
        return self.look.is_ray

    def containers(self, *roles: Role) -> Sequence[Container]:
        """The containers of the pod, main ones first; of the given roles, or all."""
        every = self.look.containers
        return [each for each in every if each.role in roles] if roles else every

    def at(self, container: Container, *fields: str) -> str:
        """Field path of a container, or of a field inside it."""
        place = self.container_path or f"{self.spec_path}.{container.list}[{container.index}]"
        return ".".join((place, *fields))

    def placed(self, path: str) -> str:
        """The field path, in the object that holds the template, of a field path in its pod."""
        for root, place in (("metadata", self.metadata_path), ("spec", self.spec_path)):
            if path.startswith(root) and path[len(root) : len(root) + 1] in ("", ".", "["):
                return place + path[len(root) :]
        return path


@dataclass(frozen=True, slots=True)
class Target:
    """The object under judgement: as it will be stored, with its pods as they will be made."""

    obj: Json
    kind: GroupKind
    templates: tuple[PodTemplate, ...] = ()

    @property
    def spec(self) -> Json:
        return mapping(self.obj, "spec")

    @property
    def name(self) -> str:
        return text(self.obj, "metadata", "name") or text(self.obj, "metadata", "generateName")


def pod_templates(obj: Json, workloads: Mapping[GroupKind, Workload]) -> tuple[PodTemplate, ...]:
    """Every pod template of an object; a Pod is its own."""
    kind = kind_of(obj)
    if kind == POD:
        return (PodTemplate(PodLook(obj), "", "spec", None),)
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
        return PodTemplate(PodLook(pod), path, path, workload, steps)
    pod = _pod(obj, workload, mapping(node, "metadata"), mapping(node, "spec"))
    return PodTemplate(PodLook(pod), path, f"{path}.spec", workload, steps)


def _runtime_template(obj: Json, workload: Workload, steps: Steps, container: Json) -> PodTemplate:
    """The pod around a single container: the pod's other fields stand beside it."""
    beside = mapping(obj, *steps[:-1])
    spec = {key: value for key, value in beside.items() if key not in ("containers", "initContainers")}
    spec["containers"] = [{"name": KSERVE_CONTAINER, **container}]
    path, spec_path = field_path(steps), field_path(steps[:-1])
    pod = _pod(obj, workload, _inherited(obj), spec)
    return PodTemplate(PodLook(pod), path, spec_path, workload, steps, path)


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
    if metadata != mapping(node, "metadata") and isinstance(node.get("metadata"), dict | None):
        node = {**node, "metadata": metadata}
    if pod["spec"] is not node.get("spec"):
        node = {**node, "spec": pod["spec"]}
    return replaced(obj, template.steps, node)
