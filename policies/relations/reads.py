"""The ConfigMaps, Secrets and claims that pods mount or read, from their templates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.core.target import PodTemplate
from policies.kube.group_kinds import CLAIM, CONFIG_MAP, SECRET, GroupKind
from policies.kube.objects.pods import ContainerSpec, LocalReference, Volume

_ROOT_CA: Final = "kube-root-ca.crt"
"""kube-controller-manager writes this ConfigMap into every namespace."""


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
