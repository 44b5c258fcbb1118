"""The observed starts of containers in a namespace, which the webhook's leader records.

Observations apply to containers with the same run. A run is a digest of the fields that decide how long a
start takes: image, arguments, model, limits, volumes. They are the same at admission and in the running pod.
If one of them changes, there are no observations until new pods have started. A start that a probe ended
never makes a budget shorter, and nor do the starts of other workloads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.facts import Facts, find_by_name
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json, mapping, maps, text
from policies.kube.objects.metadata import ObjectMeta, OwnerReference
from policies.kube.objects.pods import OF_ONE_POD, WRITTEN_BY_KUBELET
from policies.kube.pods import Container, mounted_volumes

OBSERVED: Final = "mlchassis-observed"
"""The ConfigMap in the webhook's namespace: one key for each namespace, written by the leader."""
MIN_STARTS: Final = 5
"""Observed starts of new pods that a budget requires."""
MAX_LENGTH: Final = 7 * 24 * 3600
"""The maximum number of seconds in a record."""
_RUN_LENGTH: Final = 12
_IRRELEVANT: Final = WRITTEN_BY_KUBELET | {"emptyDir"}
"""Volumes that are new for each pod and do not change its start."""
_OWN: Final = OF_ONE_POD | {"image"}
"""Volumes without downloads of earlier pods."""


class Observed(Struct, frozen=True):
    """The observed starts of one run, of all workloads in the namespace."""

    seconds: int
    """The slowest start. It changes only if a new observation differs by more than 25 %."""
    starts: int
    killed: int = 0
    """Seconds of the longest start that a probe ended; 0 without one."""
    own: bool = False
    """Whether the workload's own pods show enough starts. Without them a budget may only become longer:
    anybody who may make pods in the namespace can show quick starts."""

    @property
    def may_shorten(self) -> bool:
        """Whether a budget may be shorter than the estimate. A start that a probe ended may take longer than
        the observed ones."""
        return self.own and not self.killed


def observed(pod: Json, container: Container, size: int, facts: Facts) -> Observed | None:
    """The observed starts of a container's run; None if there are too few.

    `size`: bytes of the models, from an annotation or the model config; else 0.
    """
    listing = facts.listing(Resource.OBSERVED)
    starts = listing.derive(_starts) if listing else None
    if not starts:
        return None
    run = run_of(pod, container, size)
    found = starts.get(run)
    if found is None or found.starts < MIN_STARTS:
        return None
    metadata = facts.view(pod).typed.metadata
    own = (starts.get(f"{workload}/{container.name}@{run}") for workload in _workloads(metadata))
    return replace(found, own=any(each is not None and each.starts >= MIN_STARTS for each in own))


def _starts(listing: Listing) -> Mapping[str, Observed]:
    """The observed starts of a namespace, by run, and by container and run."""
    found = find_by_name(listing, OBSERVED) or {}
    return {run: Observed(*numbers) for run, numbers in mapping(found, "starts").items()}


def trimmed(namespace: str, value: object) -> Json | None:
    """The starts of one namespace, from a value of the ConfigMap; None without valid entries.

    The starts of workloads with the same run are added up, and the slowest one counts; those of each
    container stand next to them. Invalid entries are ignored, because anybody with the right to edit the
    ConfigMap may have written them.
    """
    starts: dict[str, tuple[int, int, int]] = {}
    for key, entry in _entries(value):
        basis, killed = entry.get("basis"), _number(entry.get("killed"))
        if not (isinstance(basis, list) and len(basis) == 2):
            continue
        seconds, count = map(_number, basis)
        if not seconds or not count:
            continue
        for group in (key.rpartition("@")[2], key):
            slowest, total, longest_killed = starts.get(group, (0, 0, 0))
            starts[group] = (max(slowest, seconds), total + count, max(longest_killed, killed))
    if not starts:
        return None
    return {"metadata": {"name": OBSERVED, "namespace": namespace}, "starts": starts}


def _entries(value: object) -> Iterator[tuple[str, Json]]:
    try:
        entries = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return
    if isinstance(entries, dict):
        yield from ((key, entry) for key, entry in entries.items() if isinstance(entry, dict))


def _number(value: object) -> int:
    """A whole number of seconds or starts, between 0 and `MAX_LENGTH`."""
    return min(max(value, 0), MAX_LENGTH) if type(value) is int else 0


# --- workloads -----------------------------------------------------------------------------------


_CRON_JOBS: Final = re.compile(r"(.+)-[0-9]{8}")
"""Names of a CronJob's Jobs end with the scheduled minute."""


def workload_of(pod: ObjectMeta) -> str:
    """The workload of a pod, as `Deployment/llm`, as far as the pod's own metadata shows it."""
    owner = _maker(pod)
    if owner is None:
        return f"Pod/{pod.generate_name.rstrip('-') or pod.name}"
    kind, name = owner.kind, owner.name
    digest = pod.labels.get("pod-template-hash", "")
    if kind == "ReplicaSet" and digest and name.endswith(f"-{digest}"):
        return f"Deployment/{name[: -len(digest) - 1]}"
    cron = _CRON_JOBS.fullmatch(name) if kind == "Job" else None
    return f"CronJob/{cron[1]}" if cron else f"{kind}/{name}"


_GROUPS: Final = {
    **dict.fromkeys(("ReplicaSet", "StatefulSet", "DaemonSet"), "apps"),
    "ReplicationController": "",
    "Job": "batch",
}
"""Kinds whose controllers delete or release a pod that wrongly names one as its owner, with their groups."""
_MAKES_NO_PODS: Final = ("Deployment", "CronJob")


def _maker(pod: ObjectMeta) -> OwnerReference | None:
    """The controller of a pod. Anybody who creates a pod can name any owner, and nobody deletes a pod whose
    owner makes no pods or is of a kind that the cluster does not know."""
    owner = pod.controller
    if owner is None or owner.kind in _MAKES_NO_PODS:
        return None
    wrong = owner.api_version and _GROUPS.get(owner.kind) not in (None, owner.group_kind.group)
    return None if wrong else owner


def _workloads(pod: ObjectMeta) -> tuple[str, ...]:
    """The workload of a pod, or of the template of a Deployment, whose ReplicaSets have no name yet."""
    workload = workload_of(pod)
    kind, _, name = workload.partition("/")
    return (workload, f"Deployment/{name}") if kind == "ReplicaSet" else (workload,)


# --- runs ----------------------------------------------------------------------------------------


def run_of(pod: Json, container: Container, size: int) -> str:
    """A digest of the fields that decide how long a container takes to start: the same for a pod template,
    the pod at admission, and the running pod."""
    spec = container.spec
    resources = mapping(spec, "resources")
    fields: list[Any] = [
        container.image,
        spec.get("command") or [],
        spec.get("args") or [],
        sorted(_variables(spec)),
        {key: str(value) for key, value in mapping(resources, "limits").items()},
        mapping(pod, "spec", "nodeSelector"),
        list(_sources(pod, container)),
        size,
    ]
    return _digest(fields, _RUN_LENGTH)


def _digest(value: list[Any], length: int) -> str:
    packed = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(packed.encode()).hexdigest()[:length]


def _variables(spec: Json) -> Iterator[tuple[str, str]]:
    """The variables with the names of models or the folders of caches."""
    for variable in maps(spec, "env"):
        name = text(variable, "name")
        if any(part in name.upper() for part in ("MODEL", "CACHE", "HF_")):
            yield name, text(variable, "value")


def _sources(pod: Json, container: Container) -> Iterator[Json]:
    """The sources of a container's volumes that may contain models.

    Except the claims of a StatefulSet's `volumeClaimTemplates`, which are not in its pod template.
    """
    for volume in mounted_volumes(pod, container):
        source = {key: value for key, value in volume.items() if key != "name"}
        kind = next(iter(sorted(source)), "emptyDir")
        if kind not in _IRRELEVANT and not _is_from_claim_template(pod, volume):
            yield source


def _is_from_claim_template(pod: Json, volume: Json) -> bool:
    """Whether a StatefulSet made the claim for this pod: its name is `<volume>-<StatefulSet>-<number>`."""
    claim, stem = text(volume, "persistentVolumeClaim", "claimName"), f"{text(volume, 'name')}-"
    owners = maps(pod, "metadata", "ownerReferences")
    sets = [text(each, "name") for each in owners if text(each, "kind") == "StatefulSet"]
    return any(
        claim.startswith(f"{stem}{name}-") and claim[len(stem) + len(name) + 1 :].isdigit() for name in sets
    )


def place_of(pod: Json, container: Container) -> str:
    """Where an earlier pod may have left a download: a digest of the node and of the volumes that outlive the
    pod; empty without such volumes."""
    mounted = mounted_volumes(pod, container)
    kept = [volume for volume in mounted if (volume.keys() - {"name"}).isdisjoint(_OWN)]
    if not any(volume.keys() - {"name"} for volume in kept):
        return ""
    return _digest([text(pod, "spec", "nodeName"), kept], 8)
