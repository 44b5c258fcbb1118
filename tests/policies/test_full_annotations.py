"""The API server refuses an object with more than 256 KiB of annotations: a policy adds none beyond that."""

import pytest

from policies.core.facts import Facts
from policies.core.settings import default_settings
from policies.disruption import disruption_guard
from policies.disruption.disruption_guard_settings import DisruptionGuard
from policies.kube.json import Json
from policies.models import model_puller
from policies.models.model_puller_settings import ByLabel, ModelPuller
from tests.manifests import manifest

LARGEST = 256 << 10
BY_LABEL = ModelPuller(by_label=(ByLabel(match_labels={"app": "ranker"}, model_config_map="models"),))
ADDED = len("mlchassis.dev/model-config" + "models")


def pod(filled: int) -> Json:
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    return manifest(
        "Pod",
        "full",
        {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "registry.example/train:1", "resources": gpu}],
        },
        labels={"app": "ranker"},
        annotations={"k": "v" * (filled - 1)},
    )


@pytest.mark.parametrize(("filled", "asks"), [(LARGEST - ADDED, True), (LARGEST - ADDED + 1, False)])
def test_the_puller_asked_for_by_labels(filled: int, asks: bool) -> None:
    given = pod(filled)
    after = model_puller.mutate(given, BY_LABEL, Facts())
    assert (after is not given) is asks
    assert bool(list(model_puller.advise(given, BY_LABEL, Facts()))) is not asks


def test_the_guards_of_a_training_pod() -> None:
    settings = default_settings(DisruptionGuard)
    size = sum(len(key) + len(value) for key, value in disruption_guard.GUARDS.items())
    fits, full = pod(LARGEST - size), pod(LARGEST - size + 1)
    assert disruption_guard.mutate(fits, settings, Facts()) is not fits
    assert disruption_guard.mutate(full, settings, Facts()) is full
