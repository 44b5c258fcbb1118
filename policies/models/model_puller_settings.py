"""The settings of `model-puller`. They refuse values that the API server would refuse in a pod."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from policies.core.settings import (
    AbsolutePath,
    After,
    ContainerName,
    Field,
    Model,
    Quantity,
    Retired,
    Settings,
)
from policies.kube.quantities import parse_quantity


class Sidecar(StrEnum):
    """The kind of container that the puller becomes."""

    AUTO = "auto"
    NATIVE = "native"
    CONTAINER = "container"


class Scheme(StrEnum):
    """The schemes of model URIs that the puller knows."""

    S3 = "s3"
    GS = "gs"
    AZ = "az"
    HTTPS = "https"
    HTTP = "http"
    HF = "hf"
    OCI = "oci"
    FILE = "file"
    PVC = "pvc"


class ReadyWhen(StrEnum):
    """The models that the pod's readiness waits for."""

    FIRST = "first"
    ALL = "all"
    ANY = "any"


def _quantity(value: str) -> str:
    parse_quantity(value)
    return value


Amount = Annotated[str, After(_quantity)]
"""A Kubernetes quantity as text."""


class Resources(Model):
    """Resource requests and limits of the sidecar, as in a container."""

    requests: dict[str, Amount] = Field(
        default_factory=lambda: {"cpu": "100m", "memory": "256Mi"}, description="the resource requests"
    )
    limits: dict[str, Amount] = Field(
        default_factory=lambda: {"memory": "1Gi"}, description="the resource limits, at least the requests"
    )

    def __post_init__(self) -> None:
        """The API server refuses every pod whose container requests more than its limit."""
        for name in self.requests.keys() & self.limits.keys():
            if parse_quantity(self.requests[name]) > parse_quantity(self.limits[name]):
                raise ValueError(f"requests.{name} is above limits.{name}, {self.limits[name]}")


class ByLabel(Model):
    """Pods that get the sidecar without an annotation."""

    match_labels: dict[str, str] = Field(min_length=1, description="labels that the pod must have")
    model_config_map: str = Field(
        min_length=1, description="the ConfigMap, of the pod's namespace, that lists its models"
    )


class ModelPuller(Settings):
    """Key `model-puller.yaml`."""

    retired: ClassVar[Mapping[str, Retired]] = {
        "program": Retired(
            "the setting program was removed: the image must hold the puller of this project. With "
            "kserve-agent the policy model-puller is off, since KServe's agent does not start with the "
            "puller's flags. Remove program, and image too if it names KServe's agent",
            frozenset({"kserve-agent"}),
        )
    }

    image: str = Field("ghcr.io/ml-chassis/puller:0.1.0", pattern=r"^\S+$", description="the puller's image")
    args: tuple[str, ...] = Field((), description="further flags for the puller, such as `--max-memory=60Gi`")
    name: ContainerName = Field(
        "model-puller", description="name of the sidecar; a number is added if the name is taken"
    )
    sidecar: Sidecar = Field(
        Sidecar.AUTO,
        description="native; container, for nodes before 1.29; or auto: native unless an older node is known",
    )
    port: int = Field(9081, ge=1, le=65535, description="the sidecar's own port: health, status, metrics")
    workers: int = Field(4, ge=1, description="models downloaded at a time")
    ready_when: ReadyWhen = Field(
        ReadyWhen.FIRST,
        description="readiness waits for all models once (first), for all always (all), for any one (any)",
    )
    schemes: tuple[Scheme, ...] = Field(
        tuple(scheme for scheme in Scheme if scheme is not Scheme.FILE),
        min_length=1,
        description="allowed schemes of a storageUri; not `file`, which reads the sidecar's own files",
    )
    model_dir: AbsolutePath = Field("/mnt/models", description="where models are mounted")
    config_dir: AbsolutePath = Field("/mnt/configs", description="where the sidecar sees the ConfigMap")
    volume_size: Quantity = Field(
        100 << 30,
        gt=0,
        description="size limit of the emptyDir; larger if three times the models' sizes are larger, "
        "because a new version is stored next to the old one until it is complete",
    )
    resources: Resources = Field(default_factory=Resources, description="resources of the sidecar")
    by_label: tuple[ByLabel, ...] = Field(
        (), description="pods that get the sidecar by their labels; the first entry that matches"
    )
    jobs_wait: bool = Field(
        True,
        description="whether the containers of a pod that runs to completion start only when the models are "
        "on disk; only with native sidecars, and if no server loads the models",
    )
    events: bool = Field(
        True,
        description=(
            "whether one replica queries the sidecars, over HTTP at the pods' addresses, for failing "
            "models, and writes Events about them on the pods"
        ),
    )
    kserve_agent: bool = Field(
        False,
        description=(
            "whether pods that request KServe's agent get this sidecar, on clusters where KServe's "
            "injector does not run"
        ),
    )
