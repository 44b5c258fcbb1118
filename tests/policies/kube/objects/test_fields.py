"""Every field exists in the API with its type: compared with the models of the Kubernetes client."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import kubernetes.client
import msgspec

from policies.core.workloads import is_builtin
from policies.kube.objects.devices import DeviceRequest, DeviceSubRequest
from policies.kube.objects.kinds import TYPES
from policies.kube.objects.metadata import IntOrString, OwnerReference, Quantity
from policies.kube.objects.pods import LocalReference, SecurityContext
from policies.kube.objects.scaling import AutoscalerSpec, NamedMetric, ResourceMetric
from policies.kube.objects.workloads import DeploymentSpec, RollingUpdateSteps
from tests.tables import table

MODELS: Final = {
    "HorizontalPodAutoscaler": "V2HorizontalPodAutoscaler",
    "ResourceClaim": "ResourceV1ResourceClaim",
}
BUILT_IN: Final = sorted(
    (kind.__name__, MODELS.get(group_kind.kind, f"V1{group_kind.kind}"))
    for group_kind, kind in TYPES.items()
    if is_builtin(group_kind)
)
BY_NAME: Final = {kind.__name__: kind for kind in TYPES.values()}
OTHERS: Final[dict[type[msgspec.Struct], set[str]]] = {
    OwnerReference: {"startupPolicy", "size"},  # of a LeaderWorkerSet's templates
    DeploymentSpec: {"progressDeadlineAbort"},  # of a Rollout
    RollingUpdateSteps: {"maxSurge", "partition"},  # each kind of workload has some of them
    AutoscalerSpec: {"targetCPUUtilizationPercentage"},  # of autoscaling/v1
    ResourceMetric: {"container"},  # of containerResource
    NamedMetric: {"metricName", "targetAverageValue"},  # of autoscaling/v2beta1
    LocalReference: {"key"},  # of a key, not of a whole ConfigMap or Secret
    SecurityContext: {"privileged", "readOnlyRootFilesystem"},  # of a container, not of a pod
    DeviceSubRequest: {"adminAccess"},  # of `exactly`, not of `firstAvailable`
    DeviceRequest: {"deviceClassName", "count", "allocationMode", "adminAccess", "selectors"},  # of v1beta1
}
"""Fields that another kind or version has."""


def differences(path: str, hint: Any, model: str) -> Iterator[str]:
    """Where a type differs from that of a model, which is written as the client writes it."""
    kinds = (
        set(typing.get_args(hint)) if typing.get_origin(hint) in (types.UnionType, typing.Union) else {hint}
    )
    kinds.discard(type(None))
    if listed := re.fullmatch(r"[Ll]ist\[(.+)\]", model):
        [kind] = kinds
        if typing.get_origin(kind) is not tuple:
            yield f"{path}: is a list"
            return
        yield from differences(f"{path}[]", typing.get_args(kind)[0], listed[1])
    elif mapped := re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", model):
        [kind] = kinds
        if typing.get_origin(kind) is not Mapping:
            yield f"{path}: is a map"
            return
        yield from differences(f"{path}[]", typing.get_args(kind)[1], mapped[1])
    elif found := getattr(kubernetes.client, model, None):
        [kind] = kinds
        yield from of_struct(path, kind, found)
    else:
        expected = {
            "str": ({str}, {str, int, float}),  # a quantity is a number too
            "datetime": ({str},),
            "bytes": ({str},),  # in base64
            "int": ({int},),
            "bool": ({bool},),
            "object": ({int, str}, {Any}),
        }[model]
        if kinds not in expected:
            yield f"{path}: {model}, not {hint}"


def of_struct(path: str, kind: type[msgspec.Struct], model: Any) -> Iterator[str]:
    names = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        name, at = field.encode_name, f"{path}.{field.encode_name}"
        if name not in names:
            if name not in OTHERS.get(kind, ()):
                yield f"{at}: does not exist"
        elif at.count(".") < 12:  # nothing is deeper
            yield from differences(at, hints[field.name], names[name])


@table(("name", "model"), BUILT_IN)
def test_fields_are_those_of_the_api(name: str, model: str) -> None:
    assert list(of_struct(name, BY_NAME[name], getattr(kubernetes.client, model))) == []


class WrongSpec(msgspec.Struct, rename="camel"):
    replica: int = 1
    paused: str = ""


class WrongDeployment(msgspec.Struct, rename="camel"):
    spec: WrongSpec = msgspec.field(default_factory=WrongSpec)


def test_the_comparison_finds_misspelt_and_mistyped_fields() -> None:
    assert list(of_struct("", WrongDeployment, kubernetes.client.V1Deployment)) == [
        ".spec.replica: does not exist",
        f".spec.paused: bool, not {str}",
    ]


def test_an_amount_and_an_int_or_string_are_no_plain_texts() -> None:
    assert set(typing.get_args(Quantity)) == {str, int, float}
    assert set(typing.get_args(IntOrString)) == {int, str}
