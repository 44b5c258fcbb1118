"""In which order Argo CD and Helm deploy objects, by their annotations."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from policies.relations.order import Phase, argo_orders, by_argo, by_helm, helm_waits_for


def annotated(kind: str = "Deployment", **annotations: object) -> Json:
    names = {"hook": "argocd.argoproj.io/hook", "wave": "argocd.argoproj.io/sync-wave"}
    names |= {"helm": "helm.sh/hook", "weight": "helm.sh/hook-weight"}
    api_version = "batch/v1" if kind == "Job" else "apps/v1"
    given = {names[key]: value for key, value in annotations.items()}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "annotations": given}}


@pytest.mark.parametrize(
    ("annotations", "phase", "wave", "said"),
    [
        ({}, Phase.DURING, 0, "in wave 0"),
        ({"wave": "-3"}, Phase.DURING, -3, "in wave -3"),
        ({"hook": "PreSync", "wave": "2"}, Phase.BEFORE, 2, "as hook PreSync in wave 2"),
        ({"hook": "PostSync, PreSync"}, Phase.BEFORE, 0, "as hook PreSync"),
        ({"hook": "Sync"}, Phase.DURING, 0, "as hook Sync"),
        ({"helm": "pre-upgrade", "weight": "-1"}, Phase.BEFORE, -1, "as hook pre-upgrade in wave -1"),
        ({"helm": "post-install", "hook": "PreSync"}, Phase.BEFORE, 0, "as hook PreSync"),
    ],
)
def test_argo_cd_deploys_by_hooks_and_waves(
    annotations: dict[str, str], phase: Phase, wave: int, said: str
) -> None:
    turn = by_argo(annotated(**annotations))
    assert turn is not None
    assert (turn.phase, turn.wave, turn.said) == (phase, wave, said)


@pytest.mark.parametrize(
    "odd", [{"hook": "SyncFail"}, {"helm": "test"}, {"wave": "soon"}, {"wave": "9" * 10}]
)
def test_what_argo_cd_does_not_deploy_on_a_first_sync_has_no_turn(odd: dict[str, str]) -> None:
    assert by_argo(annotated(**odd)) is None


def test_helm_knows_no_waves_and_no_upgrade_on_an_installation() -> None:
    plain, before, later = (
        by_helm(annotated(wave="7")),
        by_helm(annotated(helm="pre-install,post-install", weight="5")),
        by_helm(annotated(helm="post-install")),
    )
    assert plain is not None
    assert before is not None
    assert later is not None
    assert before.rank < plain.rank < later.rank
    assert (plain.said, before.said) == ("without a hook", "as hook pre-install of weight 5")
    assert by_helm(annotated(helm="pre-upgrade")) is None
    assert by_helm(annotated(helm="pre-install", weight="heavy")) is None


def test_helm_waits_for_hooks_that_are_jobs() -> None:
    assert helm_waits_for(annotated("Job", helm="pre-install"))
    assert not helm_waits_for(annotated("Deployment", helm="pre-install"))
    assert not helm_waits_for(annotated("Job"))


def test_odd_annotations_are_no_order() -> None:
    turn = by_argo(annotated(wave=5, hook=["PreSync"]))
    assert turn is not None
    assert turn.rank == (Phase.DURING, 0)
    assert argo_orders(annotated(), annotated(wave="1"))
    assert not argo_orders(annotated(helm="pre-install"), {})
