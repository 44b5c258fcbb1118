"""Volumes, claims, StorageClasses and ConfigMaps."""

from __future__ import annotations

from collections.abc import Mapping

from policies.kube.objects.metadata import EMPTY, Object, Part, Present
from policies.kube.objects.placement import NodeSelector
from policies.kube.objects.pods import ClaimResources


class ClaimSpec(Part):
    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    storage_class_name: str | None = None
    """An empty text means no class; None means the default class."""
    volume_mode: str = "Filesystem"
    resources: ClaimResources = ClaimResources()
    data_source: Present | None = None
    data_source_ref: Present | None = None


class PersistentVolumeClaim(Object):
    spec: ClaimSpec = ClaimSpec()


class VolumeNodeAffinity(Part):
    required: NodeSelector | None = None


class VolumeDriver(Part):
    driver: str = ""


class ClaimReference(Part):
    name: str = ""
    namespace: str = ""


class PersistentVolumeSpec(Part):
    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    claim_ref: ClaimReference = ClaimReference()
    local: Present | None = None
    host_path: Present | None = None
    nfs: Present | None = None
    cephfs: Present | None = None
    azure_file: Present | None = None
    csi: VolumeDriver | None = None

    @property
    def is_attached(self) -> bool:
        """Whether it may be attached to a node. A directory or a network file system is not."""
        sources = (self.local, self.host_path, self.nfs, self.cephfs, self.azure_file)
        return all(source is None for source in sources)


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
    mount_options: tuple[str, ...] = ()
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class ConfigMap(Object):
    data: Mapping[str, str] = EMPTY
