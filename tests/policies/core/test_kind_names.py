"""Misspelt kinds are named with the kind that they mean, and no known kind is taken for another."""

from __future__ import annotations

import re

import pytest

from policies.core.workloads import known_without_pods, known_workloads
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from tests.kubernetes_client import created
from tests.policies.core.reviews import coverage_of
from webhook.admission.coverage import Reading, builtin_kinds, has_no_pods, meant

TEMPLATE: Json = {"template": {"spec": {"containers": [{"name": "api", "image": "example.org/api:1"}]}}}


@pytest.mark.parametrize(
    ("api", "kind", "close"),
    [
        ("apps/v1", "Deploymnet", "Deployment of group apps"),
        ("apps/v1", "deployment", "Deployment of group apps"),
        ("kubeflow.org/v1", "PytorchJob", "PyTorchJob of group kubeflow.org"),
        ("extensions/v1beta1", "Deployment", "Deployment of group apps"),
        ("app/v1", "Deployment", "Deployment of group apps"),
        ("v1", "Deployment", "Deployment of group apps"),
        ("apps/v1", "Job", "Job of group batch"),
    ],
)
def test_a_misspelt_kind_is_named_with_the_right_one(api: str, kind: str, close: str) -> None:
    coverage = coverage_of({"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": TEMPLATE})
    assert coverage.reading is Reading.PARTLY
    assert f"did you mean kind {close}?" in coverage.sentence


@pytest.mark.parametrize(
    "kind",
    [
        GroupKind("apps", "Gadget"),
        GroupKind("example.org", "Deployment"),
        GroupKind("serving.knative.dev", "Service"),
    ],
)
def test_another_kind_is_taken_for_no_other(kind: GroupKind) -> None:
    assert meant(kind) is None


def test_no_known_kind_is_taken_for_another() -> None:
    builtin = [GroupKind(group, kind) for group, kinds in builtin_kinds().kinds.items() for kind in kinds]
    known = [*builtin, *known_without_pods(), *(workload.group_kind for workload in known_workloads())]
    assert {kind: close for kind in known if (close := meant(kind))} == {}


def test_a_kind_that_only_carries_other_things_has_no_pods() -> None:
    assert has_no_pods(GroupKind("", "ServiceAccount"))
    assert has_no_pods(GroupKind("apps", "KindOfTheNextRelease"))
    assert not has_no_pods(GroupKind("apps", "Deploymnet"))


def test_the_kinds_of_kubernetes_are_those_of_its_client() -> None:
    """A return type is the kind with its version, and in a few cases its group, before it."""
    found: dict[str, set[str]] = {}
    for path, returned in created():
        api, group, *_ = path.strip("/").split("/")
        kind = re.fullmatch(r"([A-Z][A-Za-z]*?)??V\d+(?:(?:alpha|beta)\d+)?([A-Z]\w+)", returned)
        if kind and "{" not in group:
            found.setdefault("" if api == "api" else group, set()).add(kind[2])
    assert {group: set(kinds) for group, kinds in builtin_kinds().kinds.items()} == found
