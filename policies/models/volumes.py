"""The volumes and mounts of a puller, its ConfigMap and the containers that read the models.

The functions return an edited copy of the pod. They never change its existing volumes and mounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import chain, count
from typing import Final

from policies.core.annotations import MODEL_DIR
from policies.kube.json import Json, appended, mapping, maps, text
from policies.kube.pods import Container, with_container
from policies.models.pulling import ModelPull, PullError

MODELS: Final = "mlchassis-models"
CONFIG: Final = "mlchassis-model-config"
CACHE: Final = "mlchassis-model-cache"
CACHE_DIR: Final = "/mnt/model-cache"
"""Where the sidecar mounts the claim of a shared cache."""
CLAIMS_DIR: Final = "/mnt/pvc"
"""Where the sidecar mounts the claims of `pvc://` URIs."""

_READ_ONLY_KINDS: Final = frozenset({"configMap", "secret", "projected", "downwardAPI", "image"})


def with_models_volume(pod: Json, pull: ModelPull, size: int) -> tuple[Json, Json, int | None]:
    """The pod with a volume for the models, the sidecar's mount of it, and the size limit of a new emptyDir.

    `size`: the limit in bytes. A volume that the user mounts at the models' path is used. Raises PullError if
    that volume is read-only or a block device.
    """
    for container in pull.targets:
        if _has_device_at(container.spec, pull.model_dir):
            raise PullError(
                f"spec.containers[{container.index}].volumeDevices",
                f"Container {container.name} has a block device at {pull.model_dir}, the models' place.",
                f"Name another path in {MODEL_DIR}.",
            )
    for container in pull.targets:
        mount = mount_at(container.spec, pull.model_dir)
        if mount is not None:
            if not _is_writable(_volume_named(pod, text(mount, "name"))) or mount.get("subPathExpr"):
                raise PullError(
                    f"spec.containers[{container.index}].volumeMounts",
                    f"What container {container.name} mounts at {pull.model_dir} can't be written to.",
                    f"Mount it elsewhere, or name another path in {MODEL_DIR}.",
                )
            return pod, {key: value for key, value in mount.items() if key not in _CONTAINERS_OWN}, None
    mount = {"name": MODELS, "mountPath": pull.model_dir}
    if pull.claim:
        volume: Json = {"persistentVolumeClaim": {"claimName": pull.claim}}
    else:
        existing = _volume_named(pod, MODELS)
        if existing is not None and _is_writable(existing):
            return pod, mount, None
        volume = {"emptyDir": {"sizeLimit": f"{-(-size // (1 << 30))}Gi"}}
    name = free_name(MODELS, volume_names(pod))
    pod = appended(pod, ("spec", "volumes"), {"name": name, **volume})
    return pod, {**mount, "name": name}, None if pull.claim else size


_CONTAINERS_OWN: Final = ("readOnly", "recursiveReadOnly", "mountPropagation")
"""Fields of a mount that apply only to its container."""


def _has_device_at(container: Json, path: str) -> bool:
    return any(text(device, "devicePath").rstrip("/") == path for device in maps(container, "volumeDevices"))


def _volume_named(pod: Json, name: str) -> Json | None:
    return next((volume for volume in maps(pod, "spec", "volumes") if volume.get("name") == name), None)


def volume_names(pod: Json) -> set[str]:
    """The names of a pod's volumes."""
    return {text(volume, "name") for volume in maps(pod, "spec", "volumes")}


def _is_writable(volume: Json | None) -> bool:
    """Whether models can be written to a volume; yes if it is not in the spec, as with a StatefulSet's claim
    template."""
    if volume is None:
        return True
    claim = mapping(volume, "persistentVolumeClaim")
    return claim.get("readOnly") is not True and _READ_ONLY_KINDS.isdisjoint(volume)


def with_config_volume(pod: Json, pull: ModelPull) -> tuple[Json, str]:
    """The pod with the ConfigMap as a volume, and that volume's name."""
    for volume in maps(pod, "spec", "volumes"):
        config = volume.get("configMap")
        if isinstance(config, dict) and config.get("name") == pull.config and not config.get("items"):
            return pod, text(volume, "name")
    name = free_name(CONFIG, volume_names(pod))
    return appended(pod, ("spec", "volumes"), {"name": name, "configMap": {"name": pull.config}}), name


def with_cache(pod: Json, claim: str) -> tuple[Json, list[Json]]:
    """The pod with the claim of a shared cache, and the sidecar's mounts of it."""
    if not claim:
        return pod, []
    for volume in maps(pod, "spec", "volumes"):
        if text(volume, "persistentVolumeClaim", "claimName") == claim and _is_writable(volume):
            return pod, [{"name": text(volume, "name"), "mountPath": CACHE_DIR}]
    name = free_name(CACHE, volume_names(pod))
    added = {"name": name, "persistentVolumeClaim": {"claimName": claim}}
    return appended(pod, ("spec", "volumes"), added), [{"name": name, "mountPath": CACHE_DIR}]


def with_claims(pod: Json, claims: list[str]) -> tuple[Json, list[Json]]:
    """The pod with the claims of `pvc://` URIs, and the sidecar's mounts of them."""
    names: dict[str, str] = {}
    for volume in maps(pod, "spec", "volumes"):
        names.setdefault(text(volume, "persistentVolumeClaim", "claimName"), text(volume, "name"))
    mounts: list[Json] = []
    added: list[Json] = []
    for claim in claims:
        name = names.get(claim)
        if not name:
            name = f"mlchassis-pvc-{sha256(claim.encode()).hexdigest()[:10]}"
            added.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": name, "mountPath": f"{CLAIMS_DIR}/{claim}", "readOnly": True})
    return appended(pod, ("spec", "volumes"), *added) if added else pod, mounts


def with_model_mounts(pod: Json, pull: ModelPull, mount: Json) -> Json:
    """The pod with the models mounted, read-only, in every container that reads them."""
    for container in pull.targets:
        if mount_at(container.spec, pull.model_dir) is None:
            added = {**mount, "mountPath": pull.model_dir, "readOnly": True}
            pod = with_container(pod, container, appended(container.spec, ("volumeMounts",), added))
    return pod


def free_name(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken."""
    return next(free for free in chain([name], (f"{name}-{n}" for n in count(2))) if free not in taken)


# --- existing volumes and mounts -------------------------------------------------------------------


def mount_at(container: Json, path: str) -> Json | None:
    """The volume mount at a path."""
    return next(
        (mount for mount in maps(container, "volumeMounts") if text(mount, "mountPath").rstrip("/") == path),
        None,
    )


def mounted_models(pod: Json, pull: ModelPull) -> Iterator[tuple[Container, Json]]:
    """The containers whose user mounts a volume at the models' path, with that volume."""
    for container in pull.targets:
        mount = mount_at(container.spec, pull.model_dir)
        volume = _volume_named(pod, text(mount, "name")) if mount else None
        if volume is not None:
            yield container, volume
