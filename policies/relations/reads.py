"""The ConfigMaps, Secrets and claims that pods mount or read, from their templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.core.target import PodTemplate
from policies.kube.group_kinds import CLAIM, CONFIG_MAP, SECRET, GroupKind
from policies.kube.json import Json, indexed_maps, mapping, text

_VOLUMES: Final = (
    ("persistentVolumeClaim", "claimName", CLAIM),
    ("configMap", "name", CONFIG_MAP),
    ("secret", "secretName", SECRET),
)
_PROJECTED: Final = (("configMap", CONFIG_MAP), ("secret", SECRET))
_ROOT_CA: Final = "kube-root-ca.crt"
"""kube-controller-manager writes this ConfigMap into every namespace."""
_ENV_FROM: Final = (("configMapRef", CONFIG_MAP), ("secretRef", SECRET))
_ENV: Final = (("configMapKeyRef", CONFIG_MAP), ("secretKeyRef", SECRET))


@dataclass(frozen=True, slots=True)
class Read:
    kind: GroupKind
    name: str
    path: str
    """Field path of the name."""
    mounted: bool
    """As a volume; otherwise as environment variables."""
    optional: bool
    """Whether a pod starts without it."""


def objects_read(template: PodTemplate) -> Iterator[Read]:
    for index, volume in indexed_maps(template.spec, "volumes"):
        at = f"{template.spec_path}.volumes[{index}]"
        for field, key, kind in _VOLUMES:
            yield from _read(kind, mapping(volume, field), key, f"{at}.{field}.{key}", mounted=True)
        for part, projected in indexed_maps(volume, "projected", "sources"):
            for field, kind in _PROJECTED:
                path = f"{at}.projected.sources[{part}].{field}.name"
                yield from _read(kind, mapping(projected, field), "name", path, mounted=True)
    for container in template.containers():
        for index, entry in indexed_maps(container.spec, "envFrom"):
            for field, kind in _ENV_FROM:
                path = template.at(container, f"envFrom[{index}]", field, "name")
                yield from _read(kind, mapping(entry, field), "name", path, mounted=False)
        for index, entry in indexed_maps(container.spec, "env"):
            for field, kind in _ENV:
                path = template.at(container, f"env[{index}]", "valueFrom", field, "name")
                yield from _read(kind, mapping(entry, "valueFrom", field), "name", path, mounted=False)


def _read(kind: GroupKind, reference: Json, key: str, path: str, *, mounted: bool) -> Iterator[Read]:
    name = text(reference, key)
    if name and (kind, name) != (CONFIG_MAP, _ROOT_CA):
        yield Read(kind, name, path, mounted, reference.get("optional") is True)
