"""Whether a pod on another node waits for a claim's volume, by its StorageClass or PersistentVolume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from policies.core import data
from policies.core.facts import Facts, WholeObjects
from policies.core.listing import TypedIndex
from policies.core.settings import Field, Model
from policies.kube.group_kinds import CLAIM, SERVING
from policies.kube.json import maps, text
from policies.kube.objects.pods import Volume
from policies.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass

_WITH_LOST_AND_FOUND: Final = frozenset({"ext2", "ext3", "ext4"})
_IS_DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"


class Unattached(Model):
    """An entry of `volumes.yaml`: a provisioner for whose volumes a second pod never waits."""

    provisioner: str
    classes: tuple[str, ...] = Field(
        (), description="names of StorageClasses, which others continue: `nfs-csi` is in `fast-nfs-csi-v2`"
    )
    late: tuple[str, ...] = Field(
        (), description="names of StorageClasses that its own manifests set to wait for the first pod"
    )
    defaults: tuple[str, ...] = Field(
        (), description="names of StorageClasses that are the default where a distribution installs them"
    )
    on_one_machine: tuple[str, ...] = Field(
        (),
        description="StorageClasses that are its own in a cluster of one machine, and elsewhere others",
    )
    lock_option: str = Field(
        "", description="the mount option without which it refuses SQLite's locks, unless it mounts by NFS"
    )
    source: str


class Disk(Model):
    """An entry of `disks.yaml`: a provisioner whose volumes one node mounts at a time."""

    provisioner: str
    zonal: bool = Field(False, description="whether a volume belongs to one zone")
    source: str


disks = data.entries(Disk, __package__, "disks.yaml")


unattached = data.entries(Unattached, __package__, "volumes.yaml")
"""The entries of `volumes.yaml`."""


def class_of(claim: PersistentVolumeClaim, facts: Facts) -> StorageClass | None:
    """None if it is unknown, or if the claim has none."""
    classes = facts.cluster_objects(StorageClass)
    if not classes:
        return None
    name = claim.spec.storage_class_name
    if name is not None:
        return classes.named(name)
    defaults = [each for each in classes if each.metadata.annotations.get(_IS_DEFAULT) == "true"]
    return defaults[0] if len(defaults) == 1 else None


def disk_of(claim: PersistentVolumeClaim, facts: Facts) -> Disk | None:
    """The provisioner of disks that makes a claim's volume; None if it is another one, or unknown: a class of
    a provider's name may be one of other disks, or of files. Clusters may each have a class of a name."""
    storage, classes = class_of(claim, facts), facts.cluster_objects(StorageClass)
    if storage is None or classes is None:
        return None
    if any(each.provisioner != storage.provisioner for each in classes.all_named(storage.name)):
        return None
    return next((each for each in disks() if each.provisioner == storage.provisioner), None)


def has_lost_and_found(claim: PersistentVolumeClaim, facts: Facts) -> bool:
    """Whether the root of a claim's new volume contains a directory, as that of ext4 does. A copy of a
    snapshot or of another claim, and a volume that is there, contain the files of a store."""
    spec = claim.spec
    if spec.data_source or spec.data_source_ref or spec.volume_name or volume_of(claim, facts):
        return False
    storage = class_of(claim, facts)
    if storage is None or disk_of(claim, facts) is None:
        return False
    given = (value for key, value in storage.parameters.items() if key.lower().rpartition("/")[2] == "fstype")
    return next(given, "ext4") in _WITH_LOST_AND_FOUND


def known_claims(volumes: Iterable[Volume], facts: Facts) -> Iterator[tuple[int, PersistentVolumeClaim]]:
    """The known claims that a pod mounts, each with the index of its volume."""
    claims = facts.objects(PersistentVolumeClaim)
    for index, volume in enumerate(volumes) if claims else ():
        named = volume.persistent_volume_claim
        claim = claims.named(named.claim_name) if claims and named is not None else None
        if claim is not None:
            yield index, claim


def waits_for_a_pod(claim: PersistentVolumeClaim, facts: Facts) -> bool:
    """Whether a claim is certainly not bound before a pod mounts it."""
    if claim.spec.volume_name or volume_of(claim, facts) is not None:
        return False
    storage = class_of(claim, facts)
    if storage is not None:
        return storage.volume_binding_mode == "WaitForFirstConsumer"
    return any(claim.spec.storage_class_name in each.late for each in unattached())


def volume_of(claim: PersistentVolumeClaim, facts: Facts) -> PersistentVolume | None:
    """The volume to which a claim is bound, or that is reserved for it; None if there is none, or if it is
    unknown."""
    volumes, name = facts.cluster_objects(PersistentVolume), claim.spec.volume_name
    if volumes is None:
        return None
    if name:
        return volumes.named(name)
    reserved = [
        volume
        for volume in volumes.by(_BY_CLAIM, claim.name)
        if volume.spec.claim_ref.namespace == (claim.metadata.namespace or facts.namespace)
    ]
    return reserved[0] if len(reserved) == 1 else None


def keeps_others_waiting(claim: PersistentVolumeClaim, facts: Facts) -> bool:
    """Whether a pod on another node may wait until the volume is detached from the first one."""
    nodes = facts.nodes()
    if nodes is not None and len(nodes) == 1:
        return False
    volumes = _volumes_of(claim, facts)
    if volumes:
        attached = any(volume.spec.is_attached for volume in volumes)
        return attached and not _is_named(claim.spec.storage_class_name or "")
    storage, name = class_of(claim, facts), claim.spec.storage_class_name
    if storage is not None:
        return all(storage.provisioner != each.provisioner for each in unattached())
    if name is None:
        return nodes is not None or not _once(_tells_it, facts)
    if _is_named(name):
        return False
    of_one_machine = any(name in each.on_one_machine for each in unattached())
    return nodes is not None or not (of_one_machine and _once(_never_pulls, facts))


def _once(question: Callable[[WholeObjects, str], bool], facts: Facts) -> bool:
    """The answer of the objects of the same namespace."""
    whole = facts.whole
    return whole is not None and whole.cache.once_for(facts.namespace, question, whole, facts.namespace)


def _tells_it(whole: WholeObjects, namespace: str) -> bool:
    """Whether objects tell that the default StorageClass keeps volumes on a node."""
    return _never_pulls(whole, namespace) or _names_a_local_default(whole, namespace)


def _names_a_local_default(whole: WholeObjects, namespace: str) -> bool:
    """Whether each claim that names a class names one that is the default of a distribution, such as k3s."""
    known = {name for each in unattached() for name in each.defaults}
    claims = whole.typed(CLAIM, namespace, PersistentVolumeClaim)
    named = {claim.spec.storage_class_name for claim in claims} - {None, ""}
    return bool(named) and named <= known


def _never_pulls(whole: WholeObjects, namespace: str) -> bool:
    """Whether a server has an image that is on the nodes already."""
    workloads = (obj for kind in SERVING for obj in whole.every(kind, namespace))
    # Somebody built the image on the only node, as in minikube, Docker Desktop or kind:
    # https://minikube.sigs.k8s.io/docs/handbook/pushing/
    return any(
        text(container, "imagePullPolicy") == "Never"
        for obj in workloads
        for container in maps(obj, "spec", "template", "spec", "containers")
    )


@lru_cache(maxsize=256)
def _is_named(storage_class: str) -> bool:
    """Whether the name of an unknown StorageClass tells that its volumes are not attached."""
    name = f"-{storage_class}-"
    return any(f"-{known}-" in name for each in unattached() for known in each.classes)


def _volumes_of(claim: PersistentVolumeClaim, facts: Facts) -> list[PersistentVolume]:
    """The claim's volume, or those to which it may be bound because a person made them for its class."""
    spec = claim.spec
    if spec.volume_name:
        bound = volume_of(claim, facts)
        return [] if bound is None else [bound]
    return [
        volume
        for volume in facts.cluster_objects(PersistentVolume) or ()
        if volume.spec.storage_class_name == (spec.storage_class_name or "")
        and volume.spec.claim_ref.name in ("", claim.name)
    ]


_BY_CLAIM: Final = TypedIndex(PersistentVolume, lambda volume: filter(None, (volume.spec.claim_ref.name,)))
"""The volumes by the name of the claim that each is reserved for."""
