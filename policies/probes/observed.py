"""What earlier starts of the same container in the same namespace took, as the webhook's leader recorded it.

Law: an observation counts for a container that is started in the same way. A run is a digest of everything
that decides how long a start takes and that a pod shows both at admission and while it runs. If one of these
changes (image, arguments, model, limits, volumes), there are no observations until new starts were seen. A
start that a probe ended never makes a budget shorter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from policies.core.facts import Facts, named_in
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json, mapping, maps, text
from policies.kube.pods import Container, mounted_volumes

OBSERVED: Final = "mlchassis-observed"
"""The ConfigMap in the webhook's namespace: one key for each namespace, written by the leader."""
LEAST_STARTS: Final = 5
"""Starts of new pods that must have been seen before a budget follows from them."""
LONGEST: Final = 7 * 24 * 3600
"""Seconds. What took longer is recorded as this."""
_RUN_LENGTH: Final = 12
_PASSING: Final = ("configMap", "secret", "projected", "downwardAPI", "emptyDir")
"""Volumes that are new for each pod and decide nothing about its start."""
_OWN: Final = ("ephemeral", "image", *_PASSING)
"""Volumes in which no earlier pod has left a download."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The starts that a budget follows from."""

    seconds: int
    """The slowest of them. It only changes if the observation differs from it by more than 25 %."""
    starts: int
    killed: int = 0
    """Seconds of the longest start that a probe ended; 0 if there was none."""


def observed(pod: Json, container: Container, size: int, facts: Facts) -> Observed | None:
    """The earlier starts of a container's program; None if too few are known.

    `size`: bytes of models by an annotation or the model config, 0 if neither gives them.
    """
    listing = facts.listing(Resource.OBSERVED)
    starts = listing.derive(_starts) if listing else None
    found = starts.get(run_of(pod, container, size)) if starts else None
    return found if found is not None and found.starts >= LEAST_STARTS else None


def _starts(listing: Listing) -> Mapping[str, Observed]:
    """The observations of a namespace by run."""
    found = named_in(listing, OBSERVED) or {}
    return {run: Observed(*numbers) for run, numbers in mapping(found, "starts").items()}


def trimmed(namespace: str, value: object) -> Json | None:
    """What budgets need of one key of the ConfigMap; None if there is nothing to use.

    Several workloads may run the same: their starts are added up, and the slowest counts. Anybody with the
    right to edit the ConfigMap may have written the text: unsound entries are left out.
    """
    starts: dict[str, tuple[int, int, int]] = {}
    for key, entry in _entries(value):
        basis, killed = entry.get("basis"), _number(entry.get("killed"))
        if not (isinstance(basis, list) and len(basis) == 2):
            continue
        seconds, count = map(_number, basis)
        if not seconds or not count:
            continue
        run = key.rpartition("@")[2]
        before = starts.get(run, (0, 0, 0))
        starts[run] = (max(before[0], seconds), before[1] + count, max(before[2], killed))
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
    """A whole number of seconds or starts, between 0 and `LONGEST`."""
    return min(max(value, 0), LONGEST) if type(value) is int else 0


# --- the running program -------------------------------------------------------------------------


def run_of(pod: Json, container: Container, size: int) -> str:
    """A digest of what decides how long a container takes to start: the same for a pod at admission, for the
    pod as it runs, and for the template that it is made from."""
    spec = container.spec
    resources = mapping(spec, "resources")
    decides: list[Any] = [
        container.image,
        spec.get("command") or [],
        spec.get("args") or [],
        sorted(_variables(spec)),
        {key: str(value) for key, value in mapping(resources, "limits").items()},
        mapping(pod, "spec", "nodeSelector"),
        list(_sources(pod, container)),
        size,
    ]
    packed = json.dumps(decides, sort_keys=True, default=str)
    return hashlib.sha256(packed.encode()).hexdigest()[:_RUN_LENGTH]


def _variables(spec: Json) -> Iterator[tuple[str, str]]:
    """The variables that name models, or where they are kept."""
    for variable in maps(spec, "env"):
        name = text(variable, "name")
        if any(part in name.upper() for part in ("MODEL", "CACHE", "HF_")):
            yield name, text(variable, "value")


def _sources(pod: Json, container: Container) -> Iterator[Json]:
    """The sources of the volumes of a container that hold what it loads.

    The claims that a StatefulSet makes for each of its pods are not in its template: they are left out.
    """
    for volume in mounted_volumes(pod, container):
        source = {key: value for key, value in volume.items() if key != "name"}
        kind = next(iter(sorted(source)), "emptyDir")
        if kind not in _PASSING and not _is_own_claim(pod, volume):
            yield source


def _is_own_claim(pod: Json, volume: Json) -> bool:
    """Whether a StatefulSet made the claim for this pod: `<volume>-<pod>`, and a pod ends with its number."""
    claim, stem = text(volume, "persistentVolumeClaim", "claimName"), f"{text(volume, 'name')}-"
    owners = maps(pod, "metadata", "ownerReferences")
    sets = [text(each, "name") for each in owners if text(each, "kind") == "StatefulSet"]
    return any(
        claim.startswith(f"{stem}{name}-") and claim[len(stem) + len(name) + 1 :].isdigit() for name in sets
    )


def place_of(pod: Json, container: Container) -> str:
    """Where an earlier start may have left a download: a digest of the node and the volumes that outlive the
    pod. Empty if no volume does, so that each new pod begins with nothing."""
    mounted = mounted_volumes(pod, container)
    kept = [volume for volume in mounted if (volume.keys() - {"name"}).isdisjoint(_OWN)]
    if not any(volume.keys() - {"name"} for volume in kept):
        return ""
    packed = json.dumps([text(pod, "spec", "nodeName"), kept], sort_keys=True, default=str)
    return hashlib.sha256(packed.encode()).hexdigest()[:8]
