"""The volumes and mounts of a puller, its ConfigMap and the containers that read the models.

The functions return an edited copy of the pod. They never change its existing volumes and mounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import chain, count
from typing import Final

from policies.core.annotations import MODEL_CACHE, MODEL_CLAIM, MODEL_DIR
from policies.core.reasons import Reasons
from policies.kube.json import Json, appended, mapping, maps, text
from policies.kube.objects.pods import WRITTEN_BY_KUBELET
from policies.kube.pods import Container, with_container
from policies.models.pulling import ModelPull, PullError

MODELS: Final = "mlchassis-models"
CONFIG: Final = "mlchassis-model-config"
CACHE: Final = "mlchassis-model-cache"
CACHE_DIR: Final = "/mnt/model-cache"
"""Where the sidecar mounts the claim of a shared cache."""
CLAIMS_DIR: Final = "/mnt/pvc"
"""Where the sidecar mounts the claims of `pvc://` URIs."""

_READ_ONLY_KINDS: Final = WRITTEN_BY_KUBELET | {"image"}


def _with_volume(
    pod: Json,
    name: str,
    source: Json,
    reasons: Reasons,
    reason: str,
    *,
    setting: str = "",
    annotation: str = "",
) -> tuple[Json, str]:
    """The pod with a new volume, and the volume's name."""
    name = free_name(name, {text(volume, "name") for volume in maps(pod, "spec", "volumes")})
    reasons.give(f"spec.volumes[{name}]", reason, setting=setting, annotation=annotation)
    return appended(pod, ("spec", "volumes"), {"name": name, **source}), name


def check_models_path(pod: Json, pull: ModelPull) -> None:
    """Raise PullError if a read-only volume or a block device is at the models' path."""
    for container in pull.targets:
        if _has_device_at(container.spec, pull.model_dir):
            raise PullError(
                f"spec.containers[{container.index}].volumeDevices",
                f"Container {container.name} has a block device at {pull.model_dir}, where the models "
                "belong.",
                f"Choose another path in {MODEL_DIR}.",
            )
    for container in pull.targets:
        mount = mount_at(container.spec, pull.model_dir)
        if mount is None:
            continue
        if not _is_writable(_volume_named(pod, text(mount, "name"))) or mount.get("subPathExpr"):
            raise PullError(
                f"spec.containers[{container.index}].volumeMounts",
                f"The volume that container {container.name} mounts at {pull.model_dir} isn't writable.",
                f"Mount it elsewhere, or choose another path in {MODEL_DIR}.",
            )
        return  # the puller writes to the first volume only


def with_models_volume(
    pod: Json, pull: ModelPull, size: int, reasons: Reasons
) -> tuple[Json, Json, int | None]:
    """The pod with a volume for the models, the sidecar's mount of it, and the size limit of a new emptyDir.

    `size`: the limit in bytes. A volume that the user mounts at the models' path is used.
    """
    for container in pull.targets:
        if mount := mount_at(container.spec, pull.model_dir):
            return pod, {key: value for key, value in mount.items() if key not in _CONTAINERS_OWN}, None
    existing = _volume_named(pod, MODELS)
    if not pull.claim and existing is not None and _is_writable(existing):
        return pod, {"name": MODELS, "mountPath": pull.model_dir}, None
    limit = f"{-(-size >> 30)}Gi"
    source: Json = {"emptyDir": {"sizeLimit": limit}}
    reason, annotation = f"volume for the models, at most {limit}", ""
    if pull.claim:
        source = {"persistentVolumeClaim": {"claimName": pull.claim}}
        reason, annotation = f"volume for the models: claim {pull.claim}", f"{MODEL_CLAIM}={pull.claim}"
    pod, name = _with_volume(
        pod, MODELS, source, reasons, reason, setting="volumeSize", annotation=annotation
    )
    return pod, {"name": name, "mountPath": pull.model_dir}, None if pull.claim else size


_CONTAINERS_OWN: Final = ("readOnly", "recursiveReadOnly", "mountPropagation")
"""Fields of a mount that apply only to its container."""


def _has_device_at(container: Json, path: str) -> bool:
    return any(text(device, "devicePath").rstrip("/") == path for device in maps(container, "volumeDevices"))


def _volume_named(pod: Json, name: str) -> Json | None:
    return next((volume for volume in maps(pod, "spec", "volumes") if volume.get("name") == name), None)


def _is_writable(volume: Json | None) -> bool:
    """Whether models can be written to a volume; yes if it is not in the spec, as with a StatefulSet's claim
    template."""
    if volume is None:
        return True
    claim = mapping(volume, "persistentVolumeClaim")
    return claim.get("readOnly") is not True and _READ_ONLY_KINDS.isdisjoint(volume)


def with_config_volume(pod: Json, pull: ModelPull, reasons: Reasons) -> tuple[Json, str]:
    """The pod with the ConfigMap as a volume, and that volume's name."""
    for volume in maps(pod, "spec", "volumes"):
        config = volume.get("configMap")
        if isinstance(config, dict) and config.get("name") == pull.config and not config.get("items"):
            return pod, text(volume, "name")
    reason = f"the list of models for the sidecar: ConfigMap {pull.config}"
    return _with_volume(pod, CONFIG, {"configMap": {"name": pull.config}}, reasons, reason)


def with_cache(pod: Json, claim: str, reasons: Reasons) -> tuple[Json, list[Json]]:
    """The pod with the claim of a shared cache, and the sidecar's mounts of it."""
    if not claim:
        return pod, []
    for volume in maps(pod, "spec", "volumes"):
        if text(volume, "persistentVolumeClaim", "claimName") == claim and _is_writable(volume):
            return pod, [{"name": text(volume, "name"), "mountPath": CACHE_DIR}]
    source = {"persistentVolumeClaim": {"claimName": claim}}
    reason = f"a cache of models that pods share: claim {claim}"
    pod, name = _with_volume(pod, CACHE, source, reasons, reason, annotation=f"{MODEL_CACHE}={claim}")
    return pod, [{"name": name, "mountPath": CACHE_DIR}]


def with_claims(pod: Json, claims: list[str], reasons: Reasons) -> tuple[Json, list[Json]]:
    """The pod with the claims of `pvc://` URIs, and the sidecar's mounts of them."""
    names: dict[str, str] = {}
    for volume in maps(pod, "spec", "volumes"):
        names.setdefault(text(volume, "persistentVolumeClaim", "claimName"), text(volume, "name"))
    mounts: list[Json] = []
    for claim in claims:
        name = names.get(claim)
        if not name:
            name = f"mlchassis-pvc-{sha256(claim.encode()).hexdigest()[:10]}"
            source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            pod, name = _with_volume(pod, name, source, reasons, f"a model of the list is in claim {claim}")
        mounts.append({"name": name, "mountPath": f"{CLAIMS_DIR}/{claim}", "readOnly": True})
    return pod, mounts


def with_model_mounts(pod: Json, pull: ModelPull, mount: Json, reasons: Reasons) -> Json:
    """The pod with the models mounted, read-only, in every container that reads them."""
    for container in pull.targets:
        if mount_at(container.spec, pull.model_dir) is None:
            reasons.give(
                f"{container.path}.volumeMounts[{text(mount, 'name')}]",
                f"reads the models at {pull.model_dir}",
                setting="modelDir",
                annotation=f"{MODEL_DIR}={pull.model_dir}",
            )
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
