"""The ConfigMaps, Secrets and claims that pods mount or read, from their templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.core.target import PodTemplate
from policies.kube.group_kinds import CLAIM, CONFIG_MAP, SECRET, GroupKind
from policies.kube.json import Json, dig, indexed_maps, text
from policies.kube.pods import Container

_VOLUMES: Final = (
    ("persistentVolumeClaim", "claimName", CLAIM),
    ("configMap", "name", CONFIG_MAP),
    ("secret", "secretName", SECRET),
)
_PROJECTED: Final = (("configMap", CONFIG_MAP), ("secret", SECRET))
_SOURCES: Final = (("configMapRef", CONFIG_MAP), ("secretRef", SECRET))
_KEYS: Final = (("configMapKeyRef", CONFIG_MAP), ("secretKeyRef", SECRET))


@dataclass(frozen=True, slots=True)
class Read:
    """An object that pods of a template name."""

    kind: GroupKind
    name: str
    path: str
    """Field path of the name."""
    mounted: bool
    """As a volume; otherwise as environment variables."""
    optional: bool
    """Whether a pod starts without it."""


def objects_read(template: PodTemplate) -> Iterator[Read]:
    """The objects that the pods mount or read, in reading order."""
    yield from filter(lambda read: read.name, _reads(template))


def _reads(template: PodTemplate) -> Iterator[Read]:
    for index, volume in indexed_maps(template.spec, "volumes"):
        at = f"{template.spec_path}.volumes[{index}]"
        for source, key, kind in _VOLUMES:
            yield Read(
                kind, text(volume, source, key), f"{at}.{source}.{key}", True, _optional(volume, source)
            )
        for part, projected in indexed_maps(volume, "projected", "sources"):
            for source, kind in _PROJECTED:
                path = f"{at}.projected.sources[{part}].{source}.name"
                yield Read(kind, text(projected, source, "name"), path, True, _optional(projected, source))
    for container in template.containers():
        yield from _environment(template, container)


def _environment(template: PodTemplate, container: Container) -> Iterator[Read]:
    for index, source_of in indexed_maps(container.spec, "envFrom"):
        for source, kind in _SOURCES:
            path = template.at(container, f"envFrom[{index}]", source, "name")
            yield Read(kind, text(source_of, source, "name"), path, False, _optional(source_of, source))
    for index, entry in indexed_maps(container.spec, "env"):
        for source, kind in _KEYS:
            path = template.at(container, f"env[{index}]", "valueFrom", source, "name")
            name = text(entry, "valueFrom", source, "name")
            yield Read(kind, name, path, False, _optional(entry, "valueFrom", source))


def _optional(obj: Json, *path: str) -> bool:
    return dig(obj, *path, "optional") is True
