"""Pods composed from fields of a kind that has no pod template, each with its origin in the object.

Law: a field of the result is the object's own value, or what the table of kinds says, with its source, that
the operator writes. Other defaults of operators are not assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from policies.core.workloads import Composed
from policies.kube.field_paths import field_path, maps_at, scopes
from policies.kube.json import Json, appended, dig, mapping, maps, text

Origins = Mapping[str, str]
"""By a field path in the pod, the field path in the object that the value comes from."""
OTHER_OBJECT: Final = "@"
"""The beginning of an origin in the other object that completes the pod."""

OF_A_POD: Final = (
    "activeDeadlineSeconds",
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostname",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priorityClassName",
    "resourceClaims",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccountName",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
)
_MERGE_KEYS: Final = ("mountPath", "containerPort", "name")
"""Fields that identify the elements of a list in a strategic merge."""
_MERGED: Final = frozenset(
    {"containers", "initContainers", "ephemeralContainers", "env", "volumes", "volumeMounts", "ports"}
)
"""Lists of a pod that a strategic merge merges by a key; it replaces the others."""


def composed_pod(
    node: Json, at: str, entry: Composed, around: Json, whole: Json
) -> tuple[Json, Json, Origins]:
    """The spec and metadata of the pod that a map describes, and the origins of their fields; without
    containers if the map has none. `at` is the field path of the map, which is in the map `around` of the
    object `whole`."""
    origins: dict[str, str] = {}
    base = _at(node, entry.base) if entry.base else {}
    containers: list[Json] = []
    if entry.fields or entry.main:
        main = _main(node, at, entry, around, origins)
        if main:
            containers.append({"name": entry.name, **main})
    _append(containers, "containers", node, at, entry, entry.containers, base, origins)
    init: list[Json] = []
    _append(init, "initContainers", node, at, entry, entry.init_containers, base, origins)
    spec: Json = {}
    holders = [(node, at)]
    if entry.spec:
        holders.append((_at(node, entry.spec), f"{at}.{entry.spec}"))
    for holder, place in holders:
        for name in OF_A_POD:
            if name in holder:
                spec[name] = holder[name]
                origins[f"spec.{name}"] = f"{place}.{name}"
    shared = _at(whole, entry.pods) if entry.pods else {}
    for name in entry.pod_fields:
        if name == "volumes":
            used = {text(each, "name") for one in (*containers, *init) for each in maps(one, "volumeMounts")}
            mounted = [each for each in maps(shared, name) if text(each, "name") in used]
            if mounted:
                spec[name] = [*mounted, *maps(spec, name)]
        elif name in shared and name not in spec:
            spec[name] = shared[name]
            origins[f"spec.{name}"] = f"{entry.pods}.{name}"
    if containers:
        _mount(spec, containers, node, at, entry, origins)
        spec["containers"] = containers
        if init:
            spec["initContainers"] = init
    metadata: Json = {}
    if entry.metadata:
        own = _at(node, entry.metadata)
        all_pods = _at(shared, entry.pod_metadata) if entry.pod_metadata else {}
        for key in ("labels", "annotations"):
            if found := {**mapping(all_pods, key), **mapping(own, key)}:
                metadata[key] = found
        origins["metadata"] = f"{at}.{entry.metadata}" if entry.metadata != "." else at
    origins["spec"] = at
    return spec, metadata, origins


def _mount(
    spec: Json, containers: list[Json], node: Json, at: str, entry: Composed, origins: dict[str, str]
) -> None:
    """Add the volumes that the operator mounts into the main container."""
    for each in entry.mounts:
        if not any(_dig(node, field) for field in each.fields):
            continue
        main, name = containers[0], f"{entry.name}{each.path.replace('/', '-')}"
        origins[f"spec.volumes[{len(maps(spec, 'volumes'))}]"] = f"{at}.{each.claim or each.fields[0]}"
        claim = {"claimName": text(node, *each.claim.split("."))}
        spec["volumes"] = [*maps(spec, "volumes"), {"name": name, "persistentVolumeClaim": claim}]
        main = appended(main, ("volumeMounts",), {"name": name, "mountPath": each.path})
        if each.variable and all(text(own, "name") != each.variable for own in maps(main, "env")):
            main = appended(main, ("env",), {"name": each.variable, "value": each.path})
        containers[0] = main


def _dig(node: Json, path: str) -> Any:
    """The value at a path without wildcards, or None."""
    return dig(node, *path.split("."))


def _at(node: Json, path: str) -> Json:
    return node if path == "." else mapping(node, *path.split("."))


def _append(
    into: list[Json],
    name: str,
    node: Json,
    at: str,
    entry: Composed,
    paths: tuple[str, ...],
    base: Json,
    origins: dict[str, str],
) -> None:
    for path in paths:
        for steps, container in maps_at(node, path):
            where = field_path(steps)
            number = len(into)
            origins[f"spec.{name}[{number}]"] = f"{at}.{where}"
            for key in base:
                if key not in container:
                    origins[f"spec.{name}[{number}].{key}"] = f"{at}.{entry.base}.{key}"
            default = entry.name if not number else f"{entry.name}-{number}"
            into.append({"name": default, **base, **container})


def _main(node: Json, at: str, entry: Composed, around: Json, origins: dict[str, str]) -> Json:
    """The container whose fields are fields of the kind."""
    found: Json = {}
    sources = [(entry.fields, node, at)]
    if "template" not in node:  # else they complete that template
        sources.insert(0, (entry.shared, around, at.rpartition(".")[0]))
        resources = _resources(node, entry)
        if resources:
            found["resources"] = resources
            origins["spec.containers[0].resources"] = at
    for paths, holder, place in sources:
        for field, path in paths.items():
            value = _value(field, _dig(holder, path))
            if value is not None:
                found[field] = value
                origins[f"spec.containers[0].{field}"] = f"{place}.{path}"
    own = _at(node, entry.main) if entry.main else {}
    for field, value in own.items():
        found[field] = value
        origins[f"spec.containers[0].{field}"] = f"{at}.{entry.main}.{field}"
    for field, given in entry.gives.items() if found else ():
        turned_off = bool(given.enabled) and _dig(node, given.enabled) is False
        if field not in found and not turned_off:
            found[field] = given.value
            origins[f"spec.containers[0].{field}"] = f"{at}.{entry.fields.get(field, field)}"
    origins["spec.containers[0]"] = f"{at}.{entry.main}" if own else at
    return found


def _resources(node: Json, entry: Composed) -> Json:
    """The resources of a container whose kind has its own fields for them; empty if a value cannot be
    read."""
    requests, limits = {}, {}
    for resource, each in entry.requests.items():
        values = (_dig(node, path) for path in each.fields)
        written = f"{next((value for value in values if value is not None), each.default)}"
        amount = _of_jvm(written) if each.jvm else written
        if amount is None:
            return {}
        requests[resource] = amount
        if each.limited:
            limits[resource] = amount
    device = _at(node, entry.device) if entry.device else {}
    if text(device, "name") and device.get("quantity"):
        limits[text(device, "name")] = f"{device['quantity']}"
    return {"requests": requests, "limits": limits} if requests else {}


_JVM_SIZE: Final = re.compile(r"(\d+)([kmgt]?)b?", re.ASCII | re.IGNORECASE)
_JVM_UNITS: Final = {"": "Mi", "k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti"}


def _of_jvm(size: str) -> str | None:
    """A size of memory as Spark writes it (`512m`, `1g`), as a quantity; a number alone counts MiB."""
    found = _JVM_SIZE.fullmatch(size.strip())
    return found and found[1] + _JVM_UNITS[found[2].lower()]


def _value(field: str, value: Any) -> Any:
    """The value of a container's field, from the forms that operators use; None if unknown."""
    if value is None:
        return None
    if field == "image":
        repository, tag = text(value, "repository"), text(value, "tag")
        image = value if isinstance(value, str) else f"{repository}:{tag}" if tag else repository
        return image or None
    if field == "env" and isinstance(value, dict):
        return [{"name": name, "value": each} for name, each in value.items() if isinstance(each, str)]
    if field == "resources":
        return value if isinstance(value, dict) and {"limits", "requests"} & set(value) else None
    if field == "command" and isinstance(value, str):
        return None  # the operator splits it
    if field.endswith("Probe"):
        handlers = {"httpGet", "exec", "tcpSocket", "grpc"}
        return value if isinstance(value, dict) and handlers & set(value) else None
    return value


# --- patches -------------------------------------------------------------------------------------


def patched_pod(template: Json, at: str, patch: Json, patch_at: str) -> tuple[Json, Origins]:
    """A pod template with a patch merged over it as a strategic merge does, and the origins of its fields."""
    origins = {"": at, "spec": f"{at}.spec", "metadata": f"{at}.metadata"}
    merged = merged_map(template, patch, "", patch_at, origins)
    return merged, origins


def without_nulls(value: Any) -> Any:
    """The value without null fields: in an operator's types they are unset, and remove nothing."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def merged_map(base: Json, patch: Json, path: str, at: str, origins: dict[str, str]) -> Json:
    """A map with a patch merged over it, whose fields are added to `origins`. `path` is the field path of the
    map in the pod, `at` that of the patch."""
    result = dict(base)
    for key, value in patch.items():
        inside, where = _below(path, key), _below(at, key)
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(old, dict):
            below = origin_of(inside, origins)
            for each in old:
                origins.setdefault(_below(inside, each), _below(below, each))
            origins[inside] = where  # except for keys of the base
            result[key] = merged_map(old, value, inside, where, origins)
        elif isinstance(value, list) and isinstance(old, list) and key in _MERGED:
            result[key] = merged_list(old, value, inside, where, origins)
        else:
            result[key] = value
            origins[inside] = where
    return result


def _below(path: str, key: str) -> str:
    name = field_path((key,))
    return f"{path}.{name}" if path and not name.startswith("[") else path + name


def merged_list(old: list[Any], new: list[Any], path: str, at: str, origins: dict[str, str]) -> list[Any]:
    """A list with another merged over it by the key of its elements."""
    result = list(old)
    known = {key: number for number, each in enumerate(old) if (key := _key(each))}
    for number, item in enumerate(new):
        same = known.get(_key(item))
        if same is None:
            origins[f"{path}[{len(result)}]"] = f"{at}[{number}]"
            result.append(item)
        else:
            result[same] = merged_map(old[same], item, f"{path}[{same}]", f"{at}[{number}]", origins)
    return result


def _key(item: Any) -> str:
    """The key of an element of a merged list; empty if it has none."""
    found = (item[key] for key in _MERGE_KEYS if key in item) if isinstance(item, dict) else iter(())
    key = next(found, "")
    return f"{key}" if isinstance(key, (str, int)) else ""


def origin_of(path: str, origins: Origins) -> str:
    """The field path in the object that a field path in the pod comes from."""
    for scope in reversed(tuple(scopes(path))):
        if scope in origins:
            return origins[scope] + path[len(scope) :]
    return path
