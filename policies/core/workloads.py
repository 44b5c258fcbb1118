"""The known kinds, and the field paths of their pod templates."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.metadata import annotations_of

KSERVE_CONTAINER: Final = "kserve-container"
"""The container that KServe creates from a predictor's model and a ServingRuntime."""


class Shape(StrEnum):
    """The value at a path: a pod template, or a pod spec without metadata."""

    TEMPLATE = "template"
    SPEC = "spec"


class Restarts(StrEnum):
    """What happens to the other pods when one pod of the workload fails."""

    POD = "pod"
    """Only the failed pod is restarted or replaced."""
    GROUP = "group"
    """Every pod of the group is restarted."""
    JOB = "job"
    """The pod is retried as the workload's retry settings define."""


class CompletedBy(StrEnum):
    """How another object, which the workload names, completes its pods."""

    SERVING_RUNTIME = "serving-runtime"
    """KServe merges the predictor over the containers of a ServingRuntime or ClusterServingRuntime."""
    TRAINING_RUNTIME = "training-runtime"
    """Trainer merges the TrainJob over the templates of a TrainingRuntime or ClusterTrainingRuntime."""
    TEMPLATE = "template"
    """Argo Rollouts takes the pod template of a Deployment, a ReplicaSet or a PodTemplate."""


class Requested(Model):
    """A resource that the main container of a composed pod requests."""

    fields: tuple[str, ...] = Field(
        min_length=1, description="paths of the amount; the first that exists counts"
    )
    default: str = Field(description="the amount without any of them")
    added: str = Field("", description="path of an amount that is added, if it is written as for a JVM")
    jvm: bool = Field(False, description="whether the amount is written as for a JVM: `512m` is 512 MiB")
    limited: bool = Field(False, description="whether the limit is the request")
    limit: str = Field("", description="path of the limit")


class GivenField(Model):
    """A field that the operator gives to the main container of a composed pod that has none."""

    value: Json = Field(description="what it gives")
    enabled: str = Field("", description="path of the field that turns it off with `false`")


class Mounted(Model):
    """A volume that the operator mounts into the main container of a composed pod."""

    fields: tuple[str, ...] = Field(min_length=1, description="paths of the fields, each of which names one")
    claim: str = Field("", description="path of the name of its claim, if the object has that")
    path: str = Field(description="where it is mounted")
    variable: str = Field("", description="the variable that the operator sets to that path")


class ClaimUri(Model):
    """A URI `pvc://CLAIM/PATH` whose claim the operator mounts into pods."""

    at: str = Field(description="path of the map, or of each map, that has the URI")
    uri: str = Field(description="path of the URI, relative to that map")
    mounted: str = Field(
        "", description="where the main container has it, if a serving runtime completes that container"
    )
    pods: tuple[str, ...] = Field(
        ("",), description="paths of the pods, relative to it; empty: the map itself"
    )


class CountedDevice(Model):
    """How the resources of a composed pod count an extended resource, next to `cpu` and `memory`."""

    count: str = Field(description="key of the number")
    type: str = Field("", description="key of the name of the resource")
    default: str = Field(description="its name without that key")
    more: str = Field("", description="key of a map with further resources")


class Composed(Model):
    """A pod whose parts are in fields of the kind. All other paths are relative to `at`."""

    at: str = Field(description="path of the map, or of each map, that describes a pod")
    containers: tuple[str, ...] = Field((), description="paths of its containers")
    init_containers: tuple[str, ...] = Field((), description="paths of its init containers")
    main: str = Field("", description="path of the main container; its fields take precedence over `fields`")
    fields: dict[str, str] = Field(
        default_factory=dict, description="fields of the main container, with their paths"
    )
    shared: dict[str, str] = Field(
        default_factory=dict,
        description="fields of the main container that several pods share, with their paths relative to the "
        "map around `at`; those in `fields` take precedence",
    )
    gives: dict[str, GivenField] = Field(
        default_factory=dict, description="fields that the operator gives to a main container without them"
    )
    mounts: tuple[Mounted, ...] = Field((), description="volumes that the operator mounts into it")
    requests: dict[str, Requested] = Field(
        default_factory=dict,
        description="by resource, what the main container requests at least: the operator or its program "
        "always sets these requests",
    )
    device: str = Field(
        "", description="path of a map with the `name` and `quantity` of an extended resource"
    )
    counted: CountedDevice | None = Field(
        None, description="keys of `requests` and `limits` that are no names of resources"
    )
    name: str = Field("main", description="name of a container that has none")
    base: str = Field("", description="path of a map that is merged under each container")
    spec: str = Field("", description="path of a map with further fields of a pod spec")
    metadata: str = Field(
        "",
        description="path of the pod's labels and annotations; without one it has those of the object",
    )
    pods: str = Field("", description="path, in the whole object, of a map with fields of all pods")
    pod_fields: tuple[str, ...] = Field(
        (), description="the fields of that map, unless a pod has its own; of `volumes` those that it mounts"
    )
    pod_metadata: str = Field("", description="path in that map of labels and annotations of all pods")
    owner: str = Field("", description="kind of the pod's owner, if it is not that of the workload")


class MadeDeployment(Model):
    """A Deployment that the operator makes of a pod template. All other paths are relative to `at`."""

    at: str = Field(description="path of the map, or of each map, that describes one")
    pod: str = Field("", description="path of the pod spec; empty: the map itself")
    replicas: str = Field(description="field with the number of its pods, by default 1")
    inherited: bool = Field(False, description="whether `replicas` of a map around `at` counts, too")
    most: str = Field("", description="field with the most pods that its autoscaler makes, if it has one")
    most_unless: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="annotations with values with which it makes no autoscaler",
    )
    metric: str = Field("", description="field with the metric of its autoscaler, if there is one")
    by_cpu: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="annotations with values with which its autoscaler scales by CPU without `metric`",
    )
    by_cpu_unless: tuple[str, ...] = Field((), description="fields with which it does not")
    strategy: str = Field("", description="field with its strategy, if there is one")
    max_surge: int | str = Field("25%", description="of the rolling update, if there is no strategy")
    max_unavailable: int | str = Field("25%", description="the same")
    unless: tuple[str, ...] = Field((), description="fields with which it makes something else")


class TemplatePatch(Model):
    """A patch that an operator merges over a pod template, with the paths of both relative to `at`."""

    at: str = Field(description="path of the map, or of each map, that holds both")
    base: str = Field(description="path of the pod template")
    patch: str = Field(description="path of the patch")


class UnreadField(Model):
    """A field that affects pods and is not read."""

    path: str = Field(description="path of the field")
    why: str = Field(description="what the field contains, as half a sentence")


class Naming(Model):
    """Names with which its pods are created, if the API server also accepts others."""

    most: int = Field(63, description="the most characters")
    form: Literal["service", "label", "any"] = Field(
        "service",
        description="`service`: a label of DNS that begins with a letter; `label`: a label of DNS; `any`: "
        "all that the API server accepts",
    )
    then: str = Field(description="what happens with other names, as half a sentence")
    source: str = Field(description="where this was read")


class Applied(Model):
    """Whole objects in an object, which its controller applies as they are."""

    at: str = Field(description="path of the map, or of each map, that has the objects")
    object: str = Field(description="path of the object, or of each, relative to that map")
    as_text: bool = Field(
        False,
        description="whether a text has it, as YAML with placeholders `{{...}}`, and it is applied later: of "
        "the cluster, only the labels of namespaces are known then",
    )
    when: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="fields of the map with the values with which it is applied"
    )
    unless: tuple[str, ...] = Field(
        (), description="fields of the map with which it is only a part of the object, or changed before"
    )
    elsewhere: bool = Field(
        False, description="whether it is applied to another cluster, of which nothing is known"
    )
    without: tuple[str, ...] = Field(
        (), description="ids of rules whose hazards the controller prevents, or that judge the outer object"
    )


class Workload(Model):
    """The pod templates of a kind, and the properties of its pods."""

    api_group: str = Field(description="API group of the kind; empty for the core group")
    kind: str = Field(description="the kind, such as RayCluster")
    templates: tuple[str, ...] = Field(
        (),
        description="paths of pod templates: names joined by dots, `[*]` for every element of a "
        "list and `.*` for every value of a map",
    )
    shape: Shape = Field(
        Shape.TEMPLATE,
        description="`template` if metadata and spec are at the path, `spec` if a pod spec is (its pods "
        "then have the object's own labels and annotations)",
    )
    specs: tuple[str, ...] = Field((), description="paths of pod specs without metadata, next to `templates`")
    containers: tuple[str, ...] = Field(
        (),
        description="paths of single containers that a serving runtime completes to a pod, such as the "
        "`model` of KServe's predictor; the pod's other fields are at the same level",
    )
    composed: tuple[Composed, ...] = Field(
        (), description="pods whose parts are in several fields; findings in them are never refused"
    )
    deployments: tuple[MadeDeployment, ...] = Field(
        (), description="the Deployments that the operator makes, which are updated as any Deployment is"
    )
    overrides: tuple[TemplatePatch, ...] = Field(
        (),
        description=(
            "patches that an operator merges over pod templates; findings in the merged pods are never "
            "refused"
        ),
    )
    objects: tuple[str, ...] = Field(
        (), description="paths of whole objects, such as a Job, that are read as their own kind is"
    )
    applied: tuple[Applied, ...] = Field(
        (),
        description="whole objects that its controller applies, judged by the rules of their kinds; findings "
        "in them are never refused",
    )
    claims: tuple[ClaimUri, ...] = Field(
        (), description="claims that the operator mounts because a URI names them, next to those in volumes"
    )
    completed_by: CompletedBy | None = Field(
        None,
        description="how an object that the workload names completes its pods: `serving-runtime`, "
        "`training-runtime` or `template`; findings in the merged pods are never refused. If that object is "
        "not available, as in admission, the fields in `unread` are not read",
    )
    merged: bool = Field(
        False,
        description="whether its operator merges other objects, with arguments, resources and probes, into "
        "its pods; no injection is shown or written then",
    )
    rewritten_if: tuple[str, ...] = Field(
        (),
        description="paths of fields with which an operator merges pod templates into its own containers: "
        "those of the same list element, or all if the path has no list; findings there are never refused, "
        "and no injection is shown",
    )
    unread: tuple[UnreadField, ...] = Field((), description="fields that affect pods and are not read")
    completes: bool = Field(False, description="whether its pods run to completion, as a Job's do")
    projected: bool = Field(
        True,
        description="whether rules read the template with the fields that the policies will add; false if "
        "another operator edits the pods afterwards",
    )
    as_written: bool = Field(
        False, description="whether its pods have only the ports, volumes and devices of the template"
    )
    own_volumes: bool = Field(
        False,
        description="whether the containers of the template get no other volumes, devices and users, as "
        "those of `asWritten` kinds, although the operator may add ports, variables or containers",
    )
    without_shm: bool = Field(
        False,
        description="whether its operator mounts nothing at /dev/shm, as that of `asWritten` kinds",
    )
    names: Naming | None = Field(
        None, description="the names with which its pods are created, if the API server accepts others"
    )
    only_pods: bool = Field(
        False,
        description="whether its controller creates only pods and their owners: nothing that other pods need",
    )
    own_metadata: bool = Field(
        False,
        description="whether the maps around a pod's spec have further `labels` and `annotations` of its "
        "pods, which precede those of the object",
    )
    no_claims: bool = Field(
        False, description="whether its controller creates no claims, although it creates more than pods"
    )
    own_names: bool = Field(
        False, description="whether the names of all Services that its controller creates begin with its own"
    )
    owner: str = Field("", description="kind of the object that owns the pods; empty: the workload itself")
    group: bool = Field(
        False, description="whether its pods work as one group that starts and serves together"
    )
    restarts: Restarts = Field(
        Restarts.POD, description="which pods are restarted when one fails: `pod`, `group` or `job`"
    )
    probes: str = Field("", description="the probes that the operator adds or replaces, in words")
    adds_liveness: bool = Field(
        False, description="whether the operator adds a livenessProbe to a main container that has none"
    )
    gives: dict[str, Json] = Field(
        default_factory=dict, description="fields that the operator gives to each main container of the pods"
    )
    variables: Mapping[str, Mapping[str, str]] = Field(
        default_factory=dict,
        description="variables that the operator sets in the containers of the pods that lack them, by the "
        "last name in the path of their template",
    )
    refuses: tuple[str, ...] = Field(
        (),
        description="fields of a pod that the kind's API refuses in the workload unless a feature is on; "
        "`chassis fix` does not write them, and the pods get them at their admission",
    )
    accepts_with: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="annotations with values with which it refuses none and the operator gives nothing",
    )
    versions: tuple[str, ...] = Field((), description="the API versions that the paths were checked against")
    source: str = Field("", description="where the paths are from")
    no_pods: str = Field("", description="why objects of the kind have no pods to read")

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind(self.api_group, self.kind)

    def accepts_all(self, obj: Json) -> bool:
        """Whether an object's annotations exclude `refuses` and `gives`: KServe without Knative."""
        annotations = annotations_of(obj) if self.accepts_with else {}
        return any(annotations.get(key) in values for key, values in self.accepts_with.items())

    @property
    def whole(self) -> bool:
        """Whether the pod templates of an object contain everything about its pods."""
        return not (self.containers or self.composed or self.overrides or self.unread)


_table = data.entries(Workload, __package__, "workloads.yaml")


@cache
def known_workloads() -> tuple[Workload, ...]:
    """The kinds of workloads.yaml that have pods; `webhook.yaml` may add to them."""
    return tuple(each for each in _table() if not each.no_pods)


@cache
def workloads_by_kind() -> Mapping[GroupKind, Workload]:
    return MappingProxyType({each.group_kind: each for each in known_workloads()})


@cache
def known_without_pods() -> Mapping[GroupKind, str]:
    """Further kinds whose objects have no pods to read, with the reason."""
    return MappingProxyType({each.group_kind: each.no_pods for each in _table() if each.no_pods})


def is_builtin(kind: GroupKind) -> bool:
    """Whether the kind is in a group of Kubernetes itself, where no kind outside the table has pods."""
    return kind.group in _BUILTIN


_BUILTIN: Final = frozenset(
    (
        *("", "apps", "batch", "autoscaling", "policy", "extensions"),
        *(
            f"{group}.k8s.io"
            for group in (
                "admissionregistration",
                "apiextensions",
                "apiregistration",
                "authentication",
                "authorization",
                "certificates",
                "coordination",
                "discovery",
                "events",
                "flowcontrol.apiserver",
                "internal.apiserver",
                "metrics",
                "networking",
                "node",
                "rbac.authorization",
                "resource",
                "scheduling",
                "storage",
                "storagemigration",
            )
        ),
    )
)
