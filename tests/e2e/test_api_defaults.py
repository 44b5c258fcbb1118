"""Rules find the same in an object as its author wrote it and as the API server stores it.

The API server writes defaults down and drops fields that are unknown or behind a feature gate. A rule that
takes an absent field for "nobody decided" is silent at admission, where no field with a default is absent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import pytest

from policies.core.contracts import Rule
from policies.core.finding import Certainty
from policies.kube.json import Json, mapping
from tests.e2e.api import Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.policies.test_rules import Case, cases_of, found
from webhook.config.load import rules

pytestmark = pytest.mark.e2e

SERVER_SIDE_APPLY: Final = "application/apply-patch+yaml"
MAY: Final = {
    "gang-size-mismatch": "replicas that were left out are 1",
    "gang-without-queue": "the field of a native gang is behind a feature gate",
    "rollout-takes-all-down": "maxUnavailable of a StatefulSet is behind a feature gate",
}
"""Rules that differ, and why they may."""


def test_the_api_servers_defaults_change_no_finding(control_plane: ControlPlane, bare: str) -> None:
    cases = [(rule, name, case) for rule in rules().values() for name, case in cases_of(rule)]
    served = _served(control_plane.api, {_kind(case.objects[0]) for *_, case in cases})
    compared, different = 0, dict[str, object]()
    for rule, name, case in cases:
        obj = case.objects[0]
        stored = _stored(control_plane.api, obj, bare) if _kind(obj) in served else None
        if stored is None:
            continue
        compared += 1
        before, after = _places(rule, case), _places(rule, Case((stored, *case.objects[1:]), frozenset()))
        if before != after:
            different.setdefault(rule.id, (name, before, after))
    assert compared > 1_000
    assert {each: different[each] for each in different.keys() - MAY.keys()} == {}
    assert different.keys() == MAY.keys(), "a reason is no longer needed"


def _kind(obj: Json) -> str:
    return f"{obj['apiVersion']}/{obj['kind']}"


def _served(api: Api, kinds: Iterable[str]) -> set[str]:
    found = set()
    for kind in kinds:
        with suppress(LookupError):
            api.resource(kind)
            found.add(kind)
    return found


def _stored(api: Api, obj: Json, namespace: str) -> Json | None:
    """The object as the API server would store it; None if it refuses the object."""
    sent, metadata = copy.deepcopy(obj), mapping(obj, "metadata")
    if "managedFields" in metadata or not metadata.get("name"):
        return None
    if "namespace" in metadata:
        sent["metadata"]["namespace"] = namespace
    try:
        resource = api.resource(_kind(obj))
        path = resource.path(namespace if resource.namespaced else None, metadata["name"])
        query = "?fieldManager=author&dryRun=All&force=true"
        made = api.request("PATCH", path + query, sent, content_type=SERVER_SIDE_APPLY).body
    except ApiError:
        return None
    given = {key: metadata[key] for key in ("namespace", "ownerReferences") if key in metadata}
    if "namespace" not in metadata:
        made["metadata"].pop("namespace", None)
    made["metadata"] |= given
    made["metadata"].pop("uid", None)  # by which rules know what is in a cluster, unlike the rest of the case
    if "status" in obj:
        made["status"] = obj["status"]
    return made


def _places(rule: Rule, case: Case) -> set[tuple[str, Certainty]]:
    return {(finding.path, finding.certainty) for finding in found(rule, case)}
