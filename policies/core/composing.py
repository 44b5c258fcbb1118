"""Pods composed from fields of a kind that has no pod template, each with its origin in the object.

Law: a field of the result is the object's own value, or what the table of kinds says, with its source, that
the operator writes. Other defaults of operators are not assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from policies.core.workloads import Composed, CountedDevice
from policies.kube.field_paths import field_path, maps_at, scopes
from policies.kube.json import Json, appended, dig, mapping, maps, text
from policies.kube.quantities import parse_quantity

Origins = Mapping[str, str]
"""By a field path in the pod, the field path in the object that the value comes from."""
OTHER_OBJECT: Final = "@"
"""The beginning of an origin in the other object that completes the pod."""

_OLDER_ACCOUNT: Final = "serviceAccount"
"""The older field for the name of a ServiceAccount; other kinds may have a map of that name."""
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
    _OLDER_ACCOUNT,
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
_AMOUNTS: Final = ("requests", "limits")
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
    pod = _ComposedPod(node, at, entry, around, _at(whole, entry.pods) if entry.pods else {})
    return pod.spec(), pod.metadata(), {**pod.origins, "spec": at}


class _ComposedPod:
    """A pod that is made from the fields of a map, and the origins of its fields."""

    def __init__(self, node: Json, at: str, entry: Composed, around: Json, shared: Json) -> None:
        self._node, self._path, self._entry, self._around = node, at, entry, around
        self._shared = shared
        """The fields of all pods of the object."""
        self.origins: dict[str, str] = {}

    def spec(self) -> Json:
        containers = self._listed("containers", self._entry.containers, self._main())
        init = self._listed("initContainers", self._entry.init_containers)
        spec = self._own_fields()
        self._add_shared_fields(spec, [*containers, *init])
        if containers:
            self._mount(spec, containers)
            spec["containers"] = containers
            if init:
                spec["initContainers"] = init
        return spec

    def metadata(self) -> Json:
        entry = self._entry
        if not entry.metadata:
            return {}
        self.origins["metadata"] = f"{self._path}.{entry.metadata}" if entry.metadata != "." else self._path
        own = _at(self._node, entry.metadata)
        all_pods = _at(self._shared, entry.pod_metadata) if entry.pod_metadata else {}
        both = {key: {**mapping(all_pods, key), **mapping(own, key)} for key in ("labels", "annotations")}
        return {key: found for key, found in both.items() if found}

    def _own_fields(self) -> Json:
        """The fields of a pod spec that the map has, directly or in a map inside it."""
        holders = [(self._node, self._path)]
        if self._entry.spec:
            holders.append((_at(self._node, self._entry.spec), f"{self._path}.{self._entry.spec}"))
        spec: Json = {}
        for holder, place in holders:
            for name in OF_A_POD:
                if name in holder and (name != _OLDER_ACCOUNT or isinstance(holder[name], str)):
                    spec[name] = holder[name]
                    self.origins[f"spec.{name}"] = f"{place}.{name}"
        return spec

    def _add_shared_fields(self, spec: Json, containers: list[Json]) -> None:
        """Add the fields of all pods that a spec lacks, and the volumes that the containers mount."""
        for name in self._entry.pod_fields:
            if name == "volumes":
                used = {text(each, "name") for one in containers for each in maps(one, "volumeMounts")}
                mounted = [each for each in maps(self._shared, name) if text(each, "name") in used]
                if mounted:
                    spec[name] = [*mounted, *maps(spec, name)]
            elif name in self._shared and name not in spec:
                spec[name] = self._shared[name]
                self.origins[f"spec.{name}"] = f"{self._entry.pods}.{name}"

    def _mount(self, spec: Json, containers: list[Json]) -> None:
        """Add the volumes that the operator mounts into the main container."""
        node = self._node
        for each in self._entry.mounts:
            if not any(_dig(node, field) for field in each.fields):
                continue
            main, name = containers[0], f"{self._entry.name}{each.path.replace('/', '-')}"
            volume = f"spec.volumes[{len(maps(spec, 'volumes'))}]"
            self.origins[volume] = f"{self._path}.{each.claim or each.fields[0]}"
            claim = {"claimName": text(node, *each.claim.split("."))}
            spec["volumes"] = [*maps(spec, "volumes"), {"name": name, "persistentVolumeClaim": claim}]
            main = appended(main, ("volumeMounts",), {"name": name, "mountPath": each.path})
            if each.variable and all(text(own, "name") != each.variable for own in maps(main, "env")):
                main = appended(main, ("env",), {"name": each.variable, "value": each.path})
            containers[0] = main

    def _listed(self, name: str, paths: tuple[str, ...], *first: Json) -> list[Json]:
        """The containers of a list: those that are not empty of `first`, then those at the paths."""
        entry = self._entry
        base = _at(self._node, entry.base) if entry.base else {}
        found = [{"name": entry.name, **each} for each in first if each]
        for path in paths:
            for steps, container in maps_at(self._node, path):
                number = len(found)
                place = f"spec.{name}[{number}]"
                self.origins[place] = f"{self._path}.{field_path(steps)}"
                for key in base.keys() - container.keys():
                    self.origins[f"{place}.{key}"] = f"{self._path}.{entry.base}.{key}"
                default = entry.name if not number else f"{entry.name}-{number}"
                found.append({"name": default, **base, **container})
        return found

    def _main(self) -> Json:
        """The container whose fields are fields of the kind; empty if the kind has none."""
        entry, origins, found = self._entry, self.origins, {}
        if not entry.fields and not entry.main:
            return {}
        for field, path, value in self._main_fields():
            found[field] = value
            origins[f"spec.containers[0].{field}"] = path
        for field, given in entry.gives.items() if found else ():
            turned_off = bool(given.enabled) and _dig(self._node, given.enabled) is False
            if field not in found and not turned_off:
                found[field] = given.value
                origins[f"spec.containers[0].{field}"] = f"{self._path}.{entry.fields.get(field, field)}"
        written = entry.main and _at(self._node, entry.main)
        origins["spec.containers[0]"] = f"{self._path}.{entry.main}" if written else self._path
        return found

    def _main_fields(self) -> Iterator[tuple[str, str, Any]]:
        """The fields of the main container with their field paths; of one name the last one counts."""
        entry, node, at = self._entry, self._node, self._path
        sources = [(entry.fields, node, at)]
        if "template" not in node:  # else they complete that template
            sources.insert(0, (entry.shared, self._around, at.rpartition(".")[0]))
            if resources := _resources(node, entry):
                yield "resources", at, resources
        for paths, holder, place in sources:
            for field, path in paths.items():
                value = _value(field, _dig(holder, path))
                if field == "resources" and value is not None and entry.counted is not None:
                    amounts = {
                        key: _named(mapping(value, key), entry.counted) for key in _AMOUNTS if key in value
                    }
                    value = {**value, **amounts}
                if value is not None:
                    yield field, f"{place}.{path}", value
        for field, value in (_at(node, entry.main) if entry.main else {}).items():
            yield field, f"{at}.{entry.main}.{field}", value


def _dig(node: Json, path: str) -> Any:
    """The value at a path without wildcards, or None."""
    return dig(node, *path.split("."))


def _at(node: Json, path: str) -> Json:
    return node if path == "." else mapping(node, *path.split("."))


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
        added = None if not each.added else _of_jvm(f"{_dig(node, each.added)}")
        requests[resource] = amount if added is None else _sum(amount, added)
        if each.limited:
            limits[resource] = requests[resource]
        elif each.limit and (limit := _dig(node, each.limit)) is not None:
            limits[resource] = f"{limit}"
    device = _at(node, entry.device) if entry.device else {}
    if text(device, "name") and device.get("quantity"):
        limits[text(device, "name")] = f"{device['quantity']}"
    return {"requests": requests, "limits": limits} if requests else {}


def _named(amounts: Json, device: CountedDevice) -> Json:
    """Requests or limits with the names of resources as keys."""
    named = {**amounts, **(mapping(amounts, device.more) if device.more else {})}
    kind, count = text(named, device.type) if device.type else "", named.get(device.count)
    for key in (device.count, device.type, device.more):
        named.pop(key, None)
    return named if count is None else {**named, kind or device.default: count}


_JVM_SIZE: Final = re.compile(r"(\d{1,18})([kmgt]?)b?", re.ASCII | re.IGNORECASE)
_JVM_UNITS: Final = {"": "Mi", "k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti"}


def _of_jvm(size: str) -> str | None:
    """A size of memory as Spark writes it (`512m`, `1g`), as a quantity; a number alone counts MiB."""
    found = _JVM_SIZE.fullmatch(size.strip())
    return found and found[1] + _JVM_UNITS[found[2].lower()]


def _sum(*sizes: str) -> str:
    """The sum of sizes that `_of_jvm` returns."""
    return f"{int(sum(map(parse_quantity, sizes))) // 1024}Ki"


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
