"""The ConfigMaps, Secrets and claims that pods mount or read, and the keys that these certainly lack."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain
from typing import Final

from msgspec import Struct

from policies.core import data
from policies.core.facts import WholeObjects
from policies.core.target import PodTemplate
from policies.kube.group_kinds import CLAIM, CLUSTER_ROLE, CONFIG_MAP, ROLE, SECRET, GroupKind
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.objects.pods import ContainerSpec, LocalReference, Volume
from policies.kube.objects.rbac import ClusterRole, Role

_ROOT_CA: Final = "kube-root-ca.crt"
"""kube-controller-manager writes this ConfigMap into every namespace."""
_KEYS: Final = ("data", "stringData", "binaryData")
_DEPLOYERS: Final = ("helm.sh", "argoproj.io", "kubernetes.io", "toolkit.fluxcd.io")
"""Ends of the domains of labels and annotations that let nobody add keys to a Secret or ConfigMap."""


class Read(Struct, frozen=True):
    kind: GroupKind
    name: str
    path: str
    """Field path of the name."""
    mounted: bool
    """As a volume; otherwise as environment variables."""
    optional: bool
    """Whether a pod starts without it."""
    key: str = ""
    """The only key of a ConfigMap or Secret that a variable reads."""

    @property
    def key_path(self) -> str:
        """Field path of the key."""
        return f"{self.path.removesuffix('name')}key"


def objects_read(template: PodTemplate) -> Iterator[Read]:
    for index, volume in enumerate(template.typed.spec.volumes):
        for kind, name, field, optional in _of_volume(volume):
            if _counts(kind, name):
                path = f"{template.spec_path}.volumes[{index}].{field}"
                yield Read(kind, name, path, mounted=True, optional=optional)
    for container in template.containers():
        for kind, reference, field in _of_environment(container.typed):
            if reference is not None and _counts(kind, reference.name):
                path = template.at(container, field, "name")
                yield Read(kind, reference.name, path, False, reference.optional, reference.key)


def _counts(kind: GroupKind, name: str) -> bool:
    return bool(name) and (kind, name) != (CONFIG_MAP, _ROOT_CA)


def _of_volume(volume: Volume) -> Iterator[tuple[GroupKind, str, str, bool]]:
    """Kind and name of each object, the field of the name, and whether a pod starts without it."""
    if volume.persistent_volume_claim is not None:
        yield CLAIM, volume.persistent_volume_claim.claim_name, "persistentVolumeClaim.claimName", False
    if volume.config_map is not None:
        yield CONFIG_MAP, volume.config_map.name, "configMap.name", volume.config_map.optional
    if volume.secret is not None:
        yield SECRET, volume.secret.secret_name, "secret.secretName", volume.secret.optional
    for index, source in enumerate(() if volume.projected is None else volume.projected.sources):
        for kind, reference, field in (
            (CONFIG_MAP, source.config_map, "configMap"),
            (SECRET, source.secret, "secret"),
        ):
            if reference is not None:
                path = f"projected.sources[{index}].{field}.name"
                yield kind, reference.name, path, reference.optional


def _of_environment(container: ContainerSpec) -> Iterator[tuple[GroupKind, LocalReference | None, str]]:
    """Each reference of `env` and `envFrom` with its kind and field."""
    for index, each in enumerate(container.env_from):
        yield CONFIG_MAP, each.config_map_ref, f"envFrom[{index}].configMapRef"
        yield SECRET, each.secret_ref, f"envFrom[{index}].secretRef"
    for index, variable in enumerate(container.env):
        if variable.value_from is not None:
            at = f"env[{index}].valueFrom"
            yield CONFIG_MAP, variable.value_from.config_map_key_ref, f"{at}.configMapKeyRef"
            yield SECRET, variable.value_from.secret_key_ref, f"{at}.secretKeyRef"


# --- keys ----------------------------------------------------------------------------------------


_writers = data.names("policies.relations", "secret_writers.yaml")


def keys_without(read: Read, namespace: str, cluster: WholeObjects) -> Set[str]:
    """All keys of a ConfigMap or Secret, if no version of it has the one that a variable reads; empty if it
    has that key, or if others may write to the object."""
    if not read.key or read.optional or not read.key.isprintable() or "$" in read.key:
        return frozenset()
    versions = cluster.versions(read.kind, namespace, read.name)
    keys = {key for each in versions for field in _KEYS for key in mapping(each, field)}
    if read.key in keys or any("$" in key or "{" in key for key in keys):
        return frozenset()
    complete = all(map(_is_complete, versions)) and not _is_written(read, namespace, cluster)
    return keys if complete else frozenset()


def _is_complete(obj: Json) -> bool:
    """Whether a ConfigMap or Secret has all its keys in its manifest."""
    if text(obj, "type") not in ("", "Opaque") or not any(mapping(obj, field) for field in _KEYS):
        return False
    marks = (*annotations_of(obj), *(key for key in labels_of(obj) if "/" in key))
    return all(key.partition("/")[0].endswith(_DEPLOYERS) for key in marks)


def _is_written(read: Read, namespace: str, cluster: WholeObjects) -> bool:
    """Whether another program of the set may add keys to a ConfigMap or Secret."""
    once = cluster.cache.once_for
    return once((read.kind, namespace), _may_change, read.kind, cluster, namespace) or (
        read.name in once(("writers", namespace), _text_of_writers, cluster, namespace)
    )


def _may_change(kind: GroupKind, cluster: WholeObjects, namespace: str) -> bool:
    """Whether a role of the set allows changes of the objects of a kind."""
    roles = chain(cluster.typed(ROLE, namespace, Role), cluster.typed(CLUSTER_ROLE, None, ClusterRole))
    return any(role.may_change(kind) for role in roles)


def _text_of_writers(cluster: WholeObjects, namespace: str) -> str:
    return " ".join(
        str(obj) for kind in map(GroupKind.parse, _writers()) for obj in cluster.every(kind, namespace)
    )
