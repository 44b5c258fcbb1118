"""The few types everything speaks: modes, settings, findings, facts, policies and rules.

Nothing here knows a particular policy. A policy is a settings model, a pure function and its
metadata in one file under `policies/mutate`; a rule is a pure function with its documentation in
a file under `policies/rules`. Both are found by `policies.core.registry`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeAlias, TypeVar, overload

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from policies.kube import quantities as units

if TYPE_CHECKING:
    from policies.kube.objects import Subject

Json: TypeAlias = dict[str, Any]
"""A JSON object as the API server sent it; unknown fields included, never a typed client model."""

T = TypeVar("T")


# --- modes -----------------------------------------------------------------------------------


class Mode(StrEnum):
    """What a policy or a rule may do; the order is the order of strength."""

    OFF = "off"
    AUDIT = "audit"
    WARN = "warn"
    ENFORCE = "enforce"

    @property
    def strength(self) -> int:
        return _STRENGTH[self]

    def at_most(self, other: Mode) -> Mode:
        """The weaker of two modes."""
        return self if self.strength <= other.strength else other


_STRENGTH = {mode: n for n, mode in enumerate(Mode)}


class Profile(StrEnum):
    """A mode for everything at once; explicit modes win over it."""

    OBSERVE = "observe"
    STANDARD = "standard"
    STRICT = "strict"


# --- settings --------------------------------------------------------------------------------


class Model(BaseModel):
    """A frozen piece of configuration: camelCase in YAML, unknown keys refused, no coercion."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )


class Settings(Model):
    """The settings of one policy: the content of its key `<policy id>.yaml`."""

    mode: Mode | None = Field(
        None, description="enforce, warn, audit or off; when absent, what the profile says"
    )


S = TypeVar("S", bound=Model)

Duration = Annotated[
    int,
    BeforeValidator(units.parse_duration),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
"""Whole seconds; written as a number of seconds or as `90s`, `15m`, `24h`, `7d`, `1h30m`."""

Quantity = Annotated[
    int,
    BeforeValidator(units.parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
"""Bytes; written as a number or as a Kubernetes quantity such as `40Gi` or `500M`."""


# --- findings --------------------------------------------------------------------------------


class Certainty(Enum):
    """How sure a rule is of one finding; it caps the mode in which the finding is answered."""

    SURE = "sure"
    """The hazard is certain: the rule's own mode applies."""
    LIKELY = "likely"
    """The W half of a rule marked E/W: the profile's mode for likely findings applies."""
    UNDECIDED = "undecided"
    """It can't be decided from what is known: at most a warning, in every profile."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule or a policy has to say about one place of one object.

    `path` is a Kubernetes field path such as `spec.template.spec.containers[0].livenessProbe`;
    `message` one sentence why, `hint` one sentence how to mend it.
    """

    path: str
    message: str
    hint: str
    certainty: Certainty = Certainty.SURE


# --- facts -----------------------------------------------------------------------------------


class Resource(StrEnum):
    """The kinds of cluster object that policies and rules may ask about."""

    SERVICES = "services"
    CLAIMS = "persistentvolumeclaims"
    BUDGETS = "poddisruptionbudgets"
    AUTOSCALERS = "horizontalpodautoscalers"
    WORKLOADS = "workloads"
    """Deployments, StatefulSets and ReplicaSets without a controller, each with its `kind`."""
    NODES = "nodes"
    MODEL_CONFIGS = "configmaps"
    """ConfigMaps with the label `mlchassis.dev/model-config: "true"`, with their `data`."""
    NAMESPACES = "namespaces"


FIELDS: Mapping[Resource, tuple[str, ...]] = {
    Resource.SERVICES: (
        "spec.selector",
        "spec.clusterIP",
        "spec.type",
        "spec.externalName",
        "spec.publishNotReadyAddresses",
    ),
    Resource.CLAIMS: ("spec.accessModes", "spec.volumeName", "spec.storageClassName"),
    Resource.BUDGETS: ("spec.selector", "spec.minAvailable", "spec.maxUnavailable"),
    Resource.AUTOSCALERS: ("spec.scaleTargetRef", "spec.minReplicas", "spec.maxReplicas"),
    Resource.WORKLOADS: ("kind", "spec.replicas", "spec.selector", "spec.template.metadata.labels"),
    Resource.NODES: (
        "metadata.labels",
        "spec.taints",
        "spec.unschedulable",
        "status.allocatable",
        "status.nodeInfo.kubeletVersion",
    ),
    Resource.MODEL_CONFIGS: ("metadata.labels", "data"),
    Resource.NAMESPACES: ("metadata.labels",),
}
"""What a cache keeps of each object, beside `metadata.name` and `metadata.namespace`.

A rule that wants to read another field adds it here; a cache of 50,000 claims must fit in memory.
"""


class Listing(Sequence[Json]):
    """The objects of one resource at one moment, with what was derived from them.

    Immutable; a changed object makes a new Listing, so whatever is derived is computed at most
    once per change however many requests ask for it.
    """

    __slots__ = ("_derived", "_items")

    def __init__(self, items: Iterable[Json] = ()) -> None:
        self._items = tuple(items)
        self._derived: dict[Callable[[Listing], Any], Any] = {}

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Json, ...]: ...
    def __getitem__(self, index: int | slice) -> Json | tuple[Json, ...]:
        return self._items[index]

    def __iter__(self) -> Iterator[Json]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def derive(self, function: Callable[[Listing], T]) -> T:
        """`function(self)`, remembered for as long as this Listing lives.

        Pass a module-level function, not a lambda: the function itself is the key.
        """
        try:
            return self._derived[function]  # type: ignore[no-any-return]
        except KeyError:
            value = self._derived[function] = function(self)
            return value


class Cluster(Protocol):
    """What is known of the cluster. Implemented by the watch caches and by a set of manifests."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        """The objects of a resource (in one namespace, or all); None when that is not known."""
        ...


class NoCluster:
    """Nothing is known."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return None


class SettingsLookup(Protocol):
    """The settings in force for one object."""

    def __call__(self, model: type[S], /) -> S: ...


def default_settings(model: type[S], /) -> S:
    """Every model's defaults; what is in force where no policy is configured.

    One instance a model: what a settings object derives from itself is then derived once.
    """
    value = _defaults(model)
    assert isinstance(value, model)
    return value


@cache
def _defaults(model: type[Model]) -> Model:
    return model()


def _no_problems(files: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy or rule may know beyond the object: the cluster and the settings in force.

    Every reader answers None when the fact is not known (no permission, not synced yet, not in
    the input); a rule must then say nothing or warn, never deny.
    """

    namespace: str = "default"
    cluster: Cluster = field(default_factory=NoCluster)
    settings: SettingsLookup = default_settings
    policy_problems: Callable[[Mapping[str, str]], Iterable[tuple[str, str]]] = _no_problems
    """What is wrong with the data of a policy ConfigMap, as (path, sentence) pairs."""

    def listing(self, resource: Resource) -> Listing | None:
        """The objects of a namespaced resource in the object's own namespace."""
        return self.cluster.listing(resource, self.namespace)

    def nodes(self) -> Listing | None:
        return self.cluster.listing(Resource.NODES)

    def oldest_kubelet(self) -> tuple[int, int] | None:
        """(major, minor) of the oldest kubelet: what every node, and so the API server, can do."""
        nodes = self.nodes()
        return nodes.derive(_oldest_kubelet) if nodes else None

    def namespace_labels(self) -> Mapping[str, str] | None:
        """The labels of the object's namespace."""
        found = _named(self.cluster.listing(Resource.NAMESPACES), self.namespace)
        if found is None:
            return None
        labels = found["metadata"].get("labels")
        return labels if isinstance(labels, dict) else {}

    def model_config(self, name: str) -> Json | None:
        """The model-config ConfigMap of that name in the object's namespace."""
        return _named(self.listing(Resource.MODEL_CONFIGS), name)


def _named(listing: Listing | None, name: str) -> Json | None:
    return None if listing is None else listing.derive(_by_name).get(name)


def _kubelet_version(node: Json) -> str:
    """What a node says of its kubelet; empty where it says nothing, as in a manifest of a Node."""
    found: Any = node
    for key in ("status", "nodeInfo", "kubeletVersion"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _oldest_kubelet(nodes: Listing) -> tuple[int, int] | None:
    found = [match for node in nodes if (match := re.match(r"v(\d+)\.(\d+)", _kubelet_version(node)))]
    return min(((int(match[1]), int(match[2])) for match in found), default=None)


def _by_name(listing: Listing) -> dict[str, Json]:
    return {obj["metadata"]["name"]: obj for obj in listing}


# --- policies and rules ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A Kubernetes kind without its version: versions are the API server's to convert."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


@dataclass(frozen=True, slots=True)
class Policy(Generic[S]):
    """A mutating policy.

    `mutate(obj, settings, facts)` returns the object as it should be: the same object when
    nothing is to change, else a copy that shares what did not change (`policies.kube.objects` has the
    helpers). It must be idempotent. `advise` sees the object that `mutate` returned and yields
    what a person should know beside the change; its findings are warnings at most.
    The module's docstring is the policy's documentation.
    """

    id: str
    settings: type[S]
    mutate: Callable[[Json, S, Facts], Json] | None = None
    advise: Callable[[Json, S, Facts], Iterable[Finding]] | None = None
    kinds: tuple[Kind, ...] = ()
    on_update: tuple[Kind, ...] = ()
    """The kinds that it changes on UPDATE too: pods and jobs are mostly immutable once they exist."""
    needs: tuple[Resource, ...] = ()
    after: tuple[str, ...] = ()
    """Ids of the policies whose changes this one must see."""


class Family(StrEnum):
    """Why a rule exists; each family has its page in docs/rules."""

    DEADLOCK = "deadlock"
    CASCADE = "cascade"
    JOBS = "jobs"


class Check(Protocol):
    """The function of a rule: everything it finds in one object, in any order."""

    def __call__(self, subject: Subject, facts: Facts, /) -> Iterable[Finding]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A validating rule with its documentation: the one truth behind hints, explain and docs."""

    id: str
    family: Family
    check: Check
    standard: Mode
    """Mode under the profile `standard`; under `observe` every rule is at `audit`."""
    strict: Mode
    likely: tuple[Mode, Mode] | None = None
    """Modes (standard, strict) for LIKELY findings where they differ: the W of an E/W rule."""
    kinds: tuple[Kind, ...] | None = None
    """The kinds it looks at; None: whatever holds a pod template."""
    needs: tuple[Resource, ...] = ()
    exemptable: bool = True
    """False where an exemption would only hide what stays broken."""
    what: str
    """One sentence: what is flagged."""
    why: str
    """Why it hangs, cascades or loses work; with the mechanism named."""
    mend: str
    """How to mend it, in general; a finding's own hint is more specific."""
    source: str
    """Where this comes from: documentation, issue or incident, as a reference a reader can find."""
    bad: str
    """Smallest YAML that the rule flags."""
    good: str
    """The same YAML, mended."""

    def mode(self, profile: Profile, certainty: Certainty = Certainty.SURE) -> Mode:
        """The mode of a finding under a profile, before explicit modes."""
        if profile is Profile.OBSERVE:
            return Mode.AUDIT
        sure = self.standard if profile is Profile.STANDARD else self.strict
        if certainty is Certainty.UNDECIDED:
            return sure.at_most(Mode.WARN)
        if certainty is Certainty.LIKELY and self.likely:
            return self.likely[profile is Profile.STRICT]
        return sure
