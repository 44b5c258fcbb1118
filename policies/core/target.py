"""The reviewed object with all its pod templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from policies.core.composing import OTHER_OBJECT, Origins, origin_of
from policies.core.pod_bases import Base
from policies.core.pod_view import PodView
from policies.core.workloads import Shape, Workload
from policies.kube.cache import Cache, lazy
from policies.kube.field_paths import Steps
from policies.kube.group_kinds import POD, GroupKind
from policies.kube.json import Json, integer, mapping, strings, text
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Object
from policies.kube.objects.pods import Pod
from policies.kube.objects.reading import read
from policies.kube.pods import Container, Role

T = TypeVar("T", bound=Object)


@dataclass(eq=False, repr=False)
class PodTemplate:
    """An immutable pod template of an object.

    `pod` is a Pod (apiVersion, kind, metadata, spec) for every kind of owner, with the controller's owner
    reference of its pods.
    """

    view: PodView
    path: str
    """Field path of the template; empty for a Pod."""
    spec_path: str
    """Field path of the pod spec."""
    workload: Workload | None
    steps: Steps = ()
    container_path: str = ""
    """Field path of the only container, if a serving runtime may add the missing fields."""
    own_runtime: str = ""
    """The name of the serving runtime of KServe itself, if the missing fields are assumed to be its own."""
    shape: Shape = Shape.TEMPLATE
    origins: Origins | None = None
    """The origins of the pod's fields, if it is composed from several fields of the object."""
    claims: Origins = field(default_factory=dict)
    """The same for the claims that the operator mounts into a pod that is the object's own otherwise."""
    by_shape: bool = False
    """Whether the kind is unknown, and the template was found by its structure."""
    base: Base | None = None
    """The other object that completes the pod."""
    reads: tuple[str, ...] = ()
    """Fields that the table of kinds declares unread, and that are read in this pod."""
    rewritten: bool = False
    """Whether an operator writes its own containers over the template's."""
    unprojected: Json = field(default_factory=dict)
    """The pod before the mutators, and without the fields that its operator adds to the object's."""
    pod: Json = field(init=False)
    spec: Json = field(init=False)
    cache: Cache = field(init=False)

    def __post_init__(self) -> None:
        self.pod = self.view.json
        self.spec = mapping(self.pod, "spec")
        self.unprojected = self.unprojected or self.pod
        self.cache = Cache()

    def with_view(self, view: PodView) -> PodTemplate:
        """The template with another pod."""
        return replace(self, view=view)

    @lazy
    def typed(self) -> Pod:
        """The pod's fields. Raises WrongTypeError; in a review the template is undecided then."""
        return self.view.typed

    @lazy
    def is_exact(self) -> bool:
        """Whether the pods will equal the template; otherwise findings in it warn at most."""
        return self.origins is None and not self.by_shape and not self.rewritten

    @lazy
    def is_as_written(self) -> bool:
        """Whether the pods have only the ports, volumes and devices of the template, as far as is known."""
        return not self.by_shape and (self.workload is None or self.workload.as_written)

    @lazy
    def has_own_volumes(self) -> bool:
        """Whether its containers get no other volumes, devices and users, as far as is known."""
        exact = not (self.by_shape or self.rewritten or self.is_incomplete)
        return self.is_as_written or (exact and self.workload is not None and self.workload.own_volumes)

    @property
    def is_incomplete(self) -> bool:
        """Whether a serving runtime that is not known may add the missing fields."""
        return bool(self.container_path) and not self.own_runtime

    @property
    def is_merged_later(self) -> bool:
        """Whether an operator merges objects into the pods that are not known: no addition is certain."""
        return self.base is None and self.workload is not None and self.workload.merged

    @property
    def is_projected(self) -> bool:
        """Whether rules read the pod with the fields that the mutators will add."""
        edited = self.workload is None or not self.workload.projected or self.rewritten
        return not (edited or self.container_path)

    @property
    def metadata_path(self) -> str:
        """Field path of the metadata of the pods."""
        if self.origins is not None:
            found = self.origins.get("metadata", "metadata")
            return self.base.at if self.base is not None and found.startswith(OTHER_OBJECT) else found
        inline = self.workload is not None and (self.shape is Shape.SPEC or bool(self.container_path))
        return "metadata" if inline or not self.path else f"{self.path}.metadata"

    @property
    def entry(self) -> int | None:
        """The index of the first list element on the way to the template, such as that of its worker group;
        None without one."""
        return next((step for step in self.steps if isinstance(step, int)), None)

    def command_path(self, container: Container) -> str:
        """Field path of a container's `command`, or of its `args` if it has only these."""
        return self.at(container, "command" if strings(container.spec, "command") else "args")

    @lazy
    def completes(self) -> bool:
        return self.view.completes

    @lazy
    def is_ray(self) -> bool:
        return self.view.is_ray

    def containers(self, *roles: Role) -> Sequence[Container]:
        """The containers with the given roles, or all; main containers first."""
        if roles == (Role.MAIN,):
            return self.view.main
        every = self.view.containers
        return [each for each in every if each.role in roles] if roles else every

    def at(self, container: Container, *fields: str) -> str:
        """Field path of a container, or of a field inside it."""
        path = self.container_path or f"{self.spec_path}.{container.list}[{container.index}]"
        return ".".join((path, *fields))

    def path_in_object(self, path: str) -> str:
        """The field path in the object of a field path in the pod; the path of the reference if another
        object has the field."""
        if path in self.claims:
            return self.claims[path]
        if self.origins is not None and path.startswith("spec"):
            found = origin_of(path, self.origins)
            return self.base.at if self.base is not None and found.startswith(OTHER_OBJECT) else found
        for root, where in (("metadata", self.metadata_path), ("spec", self.spec_path)):
            if path.startswith(root) and path[len(root) : len(root) + 1] in ("", ".", "["):
                return where + path[len(root) :]
        return path

    def source_path(self, path: str) -> str:
        """The origin of a field path below `spec_path`; it begins with `OTHER_OBJECT` if it is in the object
        that completes the pod."""
        if not path.startswith(self.spec_path):
            return path
        rest = path[len(self.spec_path) :]
        if self.origins is None:
            return self.claims.get(f"spec{rest}", path)
        return origin_of(f"spec{rest}", self.origins) if rest[:1] in ("", ".", "[") else path


@dataclass(frozen=True)
class Target:
    """The reviewed object as it will be stored, with its pods as they will be created."""

    obj: Json
    kind: GroupKind
    templates: tuple[PodTemplate, ...] = ()
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)

    @lazy
    def has_controller(self) -> bool:
        """Whether another object controls it: then rules judge that object."""
        return self.read(Object).metadata.controller is not None

    def annotations_at(self, template: PodTemplate) -> Mapping[str, str]:
        """The annotations of the object and of one of its pod templates, whose own take precedence."""
        return {**self.read(Object).metadata.annotations, **template.typed.metadata.annotations}

    @lazy
    def spec(self) -> Json:
        return mapping(self.obj, "spec")

    def read(self, as_type: type[T]) -> T:
        """The object as the type of its kind or a base of that. Raises WrongTypeError; in a review the object
        is undecided then."""
        typed = self._typed
        return typed if isinstance(typed, as_type) else read(self.obj, as_type)

    @lazy
    def _typed(self) -> Object:
        if self.kind == POD and self.templates and self.templates[0].pod is self.obj:
            return self.templates[0].typed
        return read(self.obj, type_of(self.kind))

    @lazy
    def replicas(self) -> int:
        """`spec.replicas`, by default 1. From JSON, since any kind may have it."""
        return integer(self.obj, "spec", "replicas", default=1)

    @property
    def name(self) -> str:
        return text(self.obj, "metadata", "name") or text(self.obj, "metadata", "generateName")
