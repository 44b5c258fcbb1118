"""Who set each field of a pod or a workload: its author, ML Chassis, Kubernetes by default, or another
client.

The inputs are the object, its manifest, and the fields that the policy adds to the manifest. The manifest is
the owner's pod template, or the one that `kubectl apply` keeps. The annotation `mlchassis.dev/changed` of a
pod lists the added fields; without it they follow from the present policy. Field managers are only reported:
they show which client sent the object, not which webhook changed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import orjson
from msgspec import Struct

from policies.core.finding import Mode
from policies.core.reasons import Reason
from policies.kube.field_paths import scopes, segments, value_at
from policies.kube.json import Json, mapping, maps, text
from policies.kube.pods import Role, containers
from webhook.admission.changed_annotation import Changed


class By(StrEnum):
    USER = "user"
    CHASSIS = "mlchassis"
    DEFAULT = "default"
    MISSING = "missing"
    """A pod that runs does not have the field, and a new one would get it from ML Chassis."""
    OTHER = "other"
    UNRECORDED = "unrecorded"
    """A field of a pod whose manifest is not recorded: its author or a webhook set it."""


class Field(Struct, frozen=True):
    path: str
    by: By
    manager: str = ""
    """The field manager, if one is recorded."""
    reason: Reason | None = None
    """Why ML Chassis added the field."""
    mode: Mode = Mode.ENFORCE
    """The mode of the policy; in other modes than enforce the field is not added."""
    today: str | None = None
    """The present policy's reason, if it differs; empty if the policy does not add the field."""


def fields_of(
    obj: Json,
    written: Json,
    derived: Sequence[tuple[Mode, Reason]],
    paths: Sequence[str],
    changed: Changed | None = None,
    manifest: Json | None = None,
    *,
    recorded: bool = True,
) -> list[Field]:
    """The fields of an object at the paths, and the added fields.

    `written`: the manifest. `derived`: the fields that the present policy adds to it. `changed`: the object's
    annotation about added fields, if it has one. `manifest`: for a running object, what `kubectl apply` sent,
    empty if that is unknown; the API server has added defaults to the other fields. `recorded`: whether
    `written` is a manifest; otherwise it is the object without the fields in `changed`.
    """
    entries = {each.path: each for each in changed.entries} if changed else {}
    present = {reason.path: (mode, reason) for mode, reason in derived}
    every = dict.fromkeys((*paths, *entries, *present))
    found: list[Field] = []
    for path in every:
        entry, (mode, reason) = _nearest(entries, path), _nearest(present, path) or (Mode.ENFORCE, None)
        value, own = value_at(obj, path), value_at(written, path)
        exists = value is not None
        manager = manager_of(obj, path)
        if entry is not None and exists:
            if path in entries or entry.path not in every:
                found.append(_added(path, manager, entry, reason))
        elif own is not None and (exists or reason is None):
            defaulted = manifest is not None and value_at(manifest, path) is None and _is_default(path, own)
            if defaulted and reason is not None and path in present and mode is Mode.ENFORCE:
                # The policy replaces this default of the API server.
                found.append(Field(path, By.MISSING if value == own else By.CHASSIS, manager, reason, mode))
                continue
            author = By.USER if recorded else By.UNRECORDED
            found.append(Field(path, By.DEFAULT if defaulted else author, manager))
        elif reason is not None and (changed is None or changed.more or not changed.digest):
            if path in present:
                missing = manifest is not None and mode is Mode.ENFORCE and not exists
                by = By.MISSING if missing else By.CHASSIS
                found.append(Field(path, by, manager, reason, mode))
        elif exists:
            by = By.DEFAULT if _is_default(path, value) else By.OTHER
            found.append(Field(path, by, manager))
    return found


def _added(path: str, manager: str, entry: Reason, present: Reason | None) -> Field:
    """A field that the object's annotation lists as added."""
    if present is None:
        return Field(path, By.CHASSIS, manager, entry, today="")
    reason = present._replace(why=entry.why or present.why)
    differs = bool(entry.why) and entry.why != present.why
    return Field(path, By.CHASSIS, manager, reason, today=present.why if differs else None)


def _nearest(known: Mapping[str, Any], path: str) -> Any:
    """The entry of a field, of its nearest parent, or of one of its children."""
    if path in known:
        return known[path]
    parent = next((known[scope] for scope in scopes(path) if scope in known), None)
    return parent or next((value for other, value in known.items() if path in scopes(other)), None)


# --- relevant fields -------------------------------------------------------------------------------

_OF_CONTAINER: Final = ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "restartPolicy")
_OF_POD: Final = (
    "spec.affinity.nodeAffinity",
    "spec.affinity.podAffinity",
    "spec.affinity.podAntiAffinity",
    "spec.restartPolicy",
    "spec.terminationGracePeriodSeconds",
    "spec.activeDeadlineSeconds",
)
OF_JOB: Final = ("podFailurePolicy", "podReplacementPolicy", "backoffLimit", "ttlSecondsAfterFinished")


def relevant_fields(pod: Json) -> Iterator[str]:
    """The paths of the fields that `chassis why` explains, as far as the pod has them."""
    for container in containers(pod):
        if container.role is not Role.MAIN:
            yield container.path
        yield from (f"{container.path}.{name}" for name in _OF_CONTAINER if container.spec.get(name))
    yield from (path for path in _OF_POD if value_at(pod, path) is not None)
    for index, _ in enumerate(maps(pod, "spec", "tolerations")):
        key = text(pod, "spec", "tolerations", index, "key")
        yield f"spec.tolerations[{key or index}]"


_DEFAULTS: Final[Mapping[str, object]] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "podReplacementPolicy": "TerminatingOrFailed",
    "backoffLimit": 6,
    "terminationMessagePolicy": "File",
}
_DEFAULT_TOLERATIONS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _is_default(path: str, value: object) -> bool:
    """Whether Kubernetes sets this value by default."""
    if path.startswith("spec.tolerations"):
        return isinstance(value, dict) and value.get("key") in _DEFAULT_TOLERATIONS
    return _DEFAULTS.get(path.rpartition(".")[2]) == value


# --- field managers --------------------------------------------------------------------------------


def manager_of(obj: Json, path: str) -> str:
    """The last field manager of a field according to managedFields; empty if unknown."""
    entries = sorted(maps(obj, "metadata", "managedFields"), key=lambda each: text(each, "time"))
    owning = [text(each, "manager") for each in entries if _owns(mapping(each, "fieldsV1"), segments(path))]
    return owning[-1] if owning else ""


def _owns(fields: Json, segments: list[str]) -> bool:
    node: Any = fields
    for segment in segments:
        if not node:
            return True  # atomic: one manager has all of its content
        if f"f:{segment}" in node:
            node = node[f"f:{segment}"]
            continue
        keyed = [key for key in node if key.startswith("k:") and _names(key, segment)]
        if not keyed:
            return False
        node = node[keyed[0]]
    return isinstance(node, dict)


def _names(key: str, segment: str) -> bool:
    try:
        return segment in map(str, orjson.loads(key[2:]).values())
    except (orjson.JSONDecodeError, AttributeError):
        return False
