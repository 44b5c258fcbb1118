"""Volumes, claims and StorageClasses."""

from __future__ import annotations

from collections.abc import Mapping

from policies.kube.objects.base import EMPTY, Part
from policies.kube.objects.metadata import Object
from policies.kube.objects.placement import NodeSelector
from policies.kube.objects.pods import ClaimResources


class ClaimSpec(Part):
    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    storage_class_name: str | None = None
    """An empty text means no class; None means the default class."""
    resources: ClaimResources = ClaimResources()


class PersistentVolumeClaim(Object):
    spec: ClaimSpec = ClaimSpec()


class VolumeNodeAffinity(Part):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Part):
    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()


class PersistentVolume(Object):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class TopologyRequirement(Part):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(Part):
    match_label_expressions: tuple[TopologyRequirement, ...] = ()


class StorageClass(Object):
    provisioner: str = ""
    parameters: Mapping[str, str] = EMPTY
    volume_binding_mode: str = ""
    allowed_topologies: tuple[TopologyTerm, ...] = ()
