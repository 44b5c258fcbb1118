"""In which order Argo CD and Helm deploy objects, by their annotations."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from policies.kube.objects.metadata import Object, ObjectMeta
from policies.relations.order import Phase, argo_position, helm_position, helm_waits_for, orders_with_argo

NAMES = {
    "hook": "argocd.argoproj.io/hook",
    "wave": "argocd.argoproj.io/sync-wave",
    "helm": "helm.sh/hook",
    "weight": "helm.sh/hook-weight",
}


def annotated(kind: str = "Deployment", **annotations: str) -> Object:
    metadata = ObjectMeta(annotations={NAMES[key]: value for key, value in annotations.items()})
    return Object(api_version="batch/v1" if kind == "Job" else "apps/v1", kind=kind, metadata=metadata)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, (Phase.DURING, 0, "in wave 0")),
        ({"wave": "-3"}, (Phase.DURING, -3, "in wave -3")),
        ({"hook": "PreSync", "wave": "2"}, (Phase.BEFORE, 2, "as hook PreSync in wave 2")),
        ({"hook": "PostSync, PreSync"}, (Phase.BEFORE, 0, "as hook PreSync")),
        ({"hook": "Sync"}, (Phase.DURING, 0, "as hook Sync")),
        ({"helm": "pre-upgrade", "weight": "-1"}, (Phase.BEFORE, -1, "as hook pre-upgrade in wave -1")),
        ({"helm": "post-install", "hook": "PreSync"}, (Phase.BEFORE, 0, "as hook PreSync")),
        ({"hook": "SyncFail"}, None),
        ({"helm": "test"}, None),
        ({"wave": "soon"}, None),
        ({"wave": "9" * 10}, None),
    ],
    ids=str,
)
def test_argo_cd_deploys_by_hooks_and_waves(
    annotations: Json, expected: tuple[Phase, int, str] | None
) -> None:
    found = argo_position(annotated(**annotations))
    assert (found and (found.phase, found.wave, found.description)) == expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"wave": "7"}, (Phase.DURING, 0, "without a hook")),
        (
            {"helm": "pre-install,post-install", "weight": "5"},
            (Phase.BEFORE, 5, "as hook pre-install of weight 5"),
        ),
        ({"helm": "post-install"}, (Phase.AFTER, 0, "as hook post-install")),
        ({"helm": "pre-upgrade"}, None),
        ({"helm": "pre-install", "weight": "heavy"}, None),
    ],
    ids=str,
)
def test_helm_knows_no_waves_and_no_upgrade_on_an_installation(
    annotations: Json, expected: tuple[Phase, int, str] | None
) -> None:
    found = helm_position(annotated(**annotations))
    assert (found and (*found.rank, found.description)) == expected


def test_helm_waits_for_hooks_that_are_jobs() -> None:
    assert helm_waits_for(annotated("Job", helm="pre-install"))
    assert not helm_waits_for(annotated("Deployment", helm="pre-install"))
    assert not helm_waits_for(annotated("Job"))


def test_only_argo_cds_own_annotations_show_that_it_deploys() -> None:
    assert orders_with_argo(annotated(), annotated(wave="1"))
    assert not orders_with_argo(annotated(helm="pre-install"), Object())
