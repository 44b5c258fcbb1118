"""Settings end up in pods: what the API server would refuse there is refused when the policy is loaded."""

import pytest

from policies.core.pydantic_models import validated
from policies.core.settings import Duration, Invalid, Model, Quantity
from tests.tables import table
from webhook.config.load import PolicyError, load


@table(
    ("key", "content", "said"),
    [
        ("model-puller", "name: Model Puller", "name: string should match"),
        ("model-puller", "image: ''", "image: string should match"),
        ("model-puller", "modelDir: mnt", "modelDir: string should match"),
        ("model-puller", "configDir: /mnt/../etc", "configDir: string should match"),
        ("model-puller", "resources: {requests: {memory: much}}", "requests.memory: 'much' is"),
        ("model-puller", "resources: {requests: {memory: 2Gi}}", "requests.memory is above limits"),
        ("model-puller", "volumeSize: 10E", "volumeSize: the maximum is"),
        ("job-retries", "minLogRetention: 2147483648", "minLogRetention: the maximum is"),
        ("job-retries", "backoffLimit: 2147483648", "backoffLimit: input should be less"),
        ("disruption-guard", "maxDuration: 2147483648", "maxDuration: the maximum is"),
        ("standard-probes", "presets: {vllm: {timeout: 3601}}", "timeout: input should be less"),
        (
            "gpu-affinity",
            "pools: [{name: a, accelerators: {nvidia.com/gpu: 8}, product: NVIDIA A100}]",
            "pools.0.product: 'NVIDIA A100' is not a label value",
        ),
        (
            "gpu-affinity",
            "pools: [{name: a, accelerators: {nvidia.com/gpu: 8}, labels: {a b: c d}}]",
            "'a b' is not a label key",
        ),
        (
            "gpu-affinity",
            "vendors: {acme: {resources: [acme.com/npu], taints: [{key: acme..com/npu}]}}",
            "taints.0.key: 'acme..com/npu' is not a label key",
        ),
    ],
)
def test_settings_that_would_get_pods_refused(key: str, content: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load({f"{key}.yaml": content})
    assert said in str(caught.value)


def test_requests_may_reach_the_limits() -> None:
    load({"model-puller.yaml": "resources: {requests: {memory: 1024Mi, cpu: '2'}, limits: {memory: 1Gi}}"})


class Sizes(Model):
    keep_for: Duration = 1
    room: Quantity = 1


def test_settings_are_strict_camel_case_and_frozen() -> None:
    sizes = validated(Sizes, {"keepFor": "24h", "room": "1Ki"})
    assert (sizes.keep_for, sizes.room) == (86400, 1024)
    for bad in ({"keepFor": True}, {"keepFor": "soon"}, {"keep": 1}, {"room": "-1"}):
        with pytest.raises(Invalid, match=r"keepFor|keep|room"):
            validated(Sizes, bad)
    with pytest.raises(AttributeError, match="immutable"):
        sizes.room = 5  # type: ignore[misc]
