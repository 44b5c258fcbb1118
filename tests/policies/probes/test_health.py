import json
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json
from policies.kube.pods import Container, containers
from policies.probes.health import (
    AnnotationError,
    annotated_health,
    annotations_apply_to,
    known_health,
)
from policies.probes.start import declared_size, expected_start

GIB = 1 << 30
TRITON = {"name": "triton", "image": "nvcr.io/nvidia/tritonserver:25.06-py3"}
API = {"name": "api", "image": "registry.example/api:1", "ports": [{"containerPort": 8000}]}


class Cluster:
    """A cluster in which one model config is known."""

    def __init__(self, *memory: str) -> None:
        models = [
            {"modelName": f"m{n}", "modelSpec": {"storageUri": "s3://m/x", "memory": size}}
            for n, size in enumerate(memory)
        ]
        self.config = {"metadata": {"name": "models"}, "data": {"models.json": json.dumps(models)}}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return Listing([self.config]) if resource is Resource.MODEL_CONFIGS else None


def pod(*specs: Json, **annotations: str) -> Json:
    said = {f"mlchassis.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"metadata": {"annotations": said}, "spec": {"containers": list(specs)}}


def first(of: Json) -> tuple[Json, Container]:
    return of, next(iter(containers(of)))


def health(of: Json) -> Any:
    return known_health(*first(of), Facts())


def start(of: Json, facts: Facts | None = None) -> int | None:
    return expected_start(*first(of), facts or Facts())


def test_an_annotation_wins_over_a_preset_and_each_half_has_its_own_source() -> None:
    found = health(pod(TRITON, ready_path="/ready"))
    assert found.source == "annotation"
    assert found.ready == {"httpGet": {"path": "/ready", "port": 8000}}
    assert found.live == {"httpGet": {"path": "/v2/health/live", "port": 8000}}
    assert health(pod(TRITON)).source == "preset triton"
    assert health(pod(API)) is None


@pytest.mark.parametrize(
    ("annotations", "key"),
    [
        ({"health_path": "health"}, "health-path"),
        ({"health_path": "/a b"}, "health-path"),
        ({"health_path": "/h", "health_port": "web"}, "health-port"),
        ({"health_port": "8000"}, "health-port"),
        ({"live_path": "/l", "ready_path": ""}, "ready-path"),
    ],
)
def test_an_annotation_that_can_not_be_used_is_named(annotations: Json, key: str) -> None:
    of = pod(API, **annotations)
    with pytest.raises(AnnotationError) as error:
        annotated_health(*first(of), Facts())
    assert [finding.path for finding in error.value.findings] == [
        f"metadata.annotations[mlchassis.dev/{key}]"
    ]
    assert health(of) is None


def test_whom_an_annotation_means() -> None:
    other = {"name": "other", "ports": [{"containerPort": 9000}]}

    def meant(of: Json) -> list[str]:
        return [item.name for item in containers(of) if annotations_apply_to(of, item, Facts())]

    assert meant(pod(API, health_path="/h")) == ["api"]
    assert meant(pod(API, other, health_path="/h")) == []
    assert meant(pod(API, other, health_path="/h", health_port="9000")) == ["other"]
    default = pod(API, other, health_path="/h")
    default["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "api"
    assert meant(default) == ["api"]


def test_expected_start_takes_the_longer_of_preset_and_size() -> None:
    assert start(pod(TRITON)) == 180
    assert start(pod(TRITON, model_size="1Gi")) == 180
    assert start(pod(TRITON, model_size="24Gi")) == 60 + 24 * 16
    assert start(pod(API, model_size="1Gi")) == 60 + 16
    assert start(pod(API)) is None


def test_a_person_decides_about_the_start() -> None:
    assert start(pod(TRITON, expected_start="90s", model_size="24Gi")) == 90
    assert start(pod(TRITON, expected_start="soon")) == 180


def test_the_model_config_gives_the_size() -> None:
    of = pod(API, model_config="models")
    assert declared_size(*first(of), Facts(cluster=Cluster("3Gi", "1Gi")))[0] == 4 * GIB
    assert declared_size(*first(of), Facts(cluster=Cluster()))[0] is None, "no size is not a size of nothing"
    assert declared_size(*first(of), Facts())[0] is None
    assert declared_size(*first(pod(API, model_config="others")), Facts(cluster=Cluster("3Gi")))[0] is None
    annotated = pod(API, model_config="models", model_size="1Gi")
    assert declared_size(*first(annotated), Facts(cluster=Cluster("3Gi")))[0] == GIB


def test_annotations_about_models_concern_serving_containers() -> None:
    helper = {"name": "helper"}
    of = pod(helper, API, model_size="1Gi")
    assert [expected_start(of, item, Facts()) for item in containers(of)] == [None, 76]
    alone = pod(helper, model_size="1Gi")
    assert start(alone) == 76
    named = pod(helper, API, **{"model_size.helper": "2Gi"})
    assert [expected_start(named, item, Facts()) for item in containers(named)] == [92, None]
