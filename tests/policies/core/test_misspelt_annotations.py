"""An annotation with a slip in its name is named, with the one that is meant."""

from __future__ import annotations

from typing import Any

import pytest

from policies.core import annotations as known
from policies.core.annotations import misspelt_annotations
from policies.core.facts import NoCluster
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from policies.probes.serving import HEALTH_ANNOTATIONS
from tests.manifests import manifest
from tests.tables import table
from webhook.admission.engine import decide
from webhook.admission.envelope import Request
from webhook.admission.review import Review
from webhook.config.load import load

CONTAINER = {"name": "main", "image": "busybox"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("exemt", "exempt"),
        ("Exempt", "exempt"),
        ("model-dirs", "model-dir"),
        ("gpu_memory", "gpu-memory"),
        ("retriable-exit-codes", "retryable-exit-codes"),
    ],
)
def test_the_one_that_is_meant_is_named(written: str, meant: str) -> None:
    key = f"mlchassis.dev/{written}"
    (said,) = misspelt_annotations({key: "x"})
    assert said == f"annotation {key} is unknown and has no effect; did you mean mlchassis.dev/{meant}?"


@table(
    "key",
    [
        *(known.OTHERS),
        *(known.OF_HEALTH),
        f"{known.HEALTH_PATH}.main",
        known.CHANGED,
        "mlchassis.dev/our-own-note",
        "example.com/exemt",
        "mlchassis.dev/healthpath",  # which standard-probes reports
        "mlchassis.dev/" + "x" * 300,
    ],
)
def test_known_and_unrelated_annotations_are_not_reported(key: str) -> None:
    assert not list(misspelt_annotations({key: "x"}))


def test_every_annotation_of_the_domain_is_listed() -> None:
    names = {value for name, value in vars(known).items() if name.isupper() and isinstance(value, str)}
    kept = {
        known.DOMAIN,
        known.PREFIX,
        known.CHANGED,
        known.CA_BUNDLE_CHANGED,
        known.OBSERVED_UNTIL,
        known.OUTAGES,
        known.TRAINING,
        known.WORKER_GROUP,
        known.WORKER_NAMES,
        known.WORKER_NAMES_OWNER,
        known.POLICY_LABEL,
        known.OVERRIDE,
        known.ADMISSION,
    }
    assert names - kept == {*known.OF_HEALTH, *known.OTHERS}
    assert set(HEALTH_ANNOTATIONS) < set(known.OF_HEALTH)


def notes(obj: Json) -> tuple[str, ...]:
    request = Request(uid="1", kind=kind_of(obj), operation="CREATE", namespace="ml", name="it", object=obj)
    return decide(Review(request, load({}), NoCluster())).notes


@pytest.mark.parametrize("at", ["object", "template"])
def test_it_is_reported_once_for_an_object_and_its_pods(at: str) -> None:
    slip: dict[str, Any] = {"annotations": {"mlchassis.dev/exemt": "job-logs-lost=why"}}
    template: dict[str, Any] = {"spec": {"containers": [CONTAINER], "restartPolicy": "Never"}}
    if at == "template":
        template["metadata"] = slip
    job = manifest("Job", "it", {"template": template}, namespace="ml", **(slip if at == "object" else {}))
    assert len([note for note in notes(job) if "mlchassis.dev/exempt?" in note]) == 1
