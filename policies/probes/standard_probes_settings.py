"""The settings of `standard-probes`, with the presets in force."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from msgspec.structs import replace

from policies.core.settings import Before, Duration, Field, Quantity, Settings
from policies.probes.preset import Preset, known_presets
from policies.probes.recognition import Recogniser


class Unknown(StrEnum):
    """What to do with a serving container without a known health endpoint."""

    WARN = "warn"
    TCP = "tcp"
    HTTP = "http"


class Mirror(StrEnum):
    """Which readinessProbes are copied to liveness."""

    RECOGNISED = "recognised"
    SIMILAR = "similar"
    OFF = "off"


def _mirror(value: object) -> object:
    """Version 0.1 had a boolean."""
    return {True: Mirror.SIMILAR, False: Mirror.OFF}[value] if isinstance(value, bool) else value


class Liveness(StrEnum):
    """How a server's liveness is checked."""

    PROGRESS = "progress"
    ENDPOINT = "endpoint"


class Learning(StrEnum):
    """Whether observed starts set startup budgets."""

    ON = "on"
    OFF = "off"


def _switch(value: object) -> object:
    """YAML 1.1 reads `on` and `off` as booleans."""
    return (Learning.ON if value else Learning.OFF) if isinstance(value, bool) else value


class StandardProbes(Settings):
    """Key `standard-probes.yaml`."""

    unknown: Unknown = Field(
        Unknown.WARN,
        description=(
            "for a container without a known health endpoint: `warn` only warns, `tcp` checks whether the "
            "port is open, `http` checks GET /health"
        ),
    )
    presets: Mapping[str, Preset] = Field(
        default_factory=dict, description="further model servers by name, or changed fields of the known ones"
    )
    sidecars: tuple[str, ...] = Field(
        (),
        description="further proxies, log shippers and similar containers that never get probes: "
        "container names or image repositories, `*` is any text inside a segment",
    )
    mirror: Annotated[Mirror, Before(_mirror)] = Field(
        Mirror.RECOGNISED,
        description="when a liveness probe is copied from the container's readinessProbe, if no other "
        "source gives the health endpoint: `recognised` if its path is the liveness of a "
        "known server or names liveness (`/livez`, `/health/live`), `similar` also if it is "
        "a general check (`/health`, `/ping`, an open port), `off` never; a path that names "
        "readiness is never copied",
    )
    liveness: Liveness = Field(
        Liveness.PROGRESS,
        description="`progress` runs a program in the container where one is known to notice a hang that the "
        "liveness endpoint does not notice (vLLM), `endpoint` never does",
    )
    load_rate: Quantity = Field(
        64 << 20,
        gt=0,
        description="bytes per second at which a model is downloaded and loaded; the expected start follows "
        "from it and the model's size",
    )
    boot: Duration = Field(
        60, description="seconds that a server takes to start, without the time to load the model"
    )
    default_start: Duration = Field(
        1200,
        ge=1,
        description=(
            "expected start if it is unknown; the startup budget is `startupFactor` times as long, an hour "
            "by default"
        ),
    )
    startup_factor: float = Field(
        3.0,
        ge=1.0,
        le=20.0,
        description="the startup budget is the expected start times this; twice that if the start "
        "follows from a size and no volume keeps the download, because a kill then restarts "
        "the download",
    )
    compiling: tuple[str, ...] = Field(
        ("aws.amazon.com/neuron*", "google.com/tpu"),
        description=(
            "accelerator resources for which the server compiles the model when it starts; `*` is any text"
        ),
    )
    compile_factor: float = Field(
        3.0,
        ge=1.0,
        le=20.0,
        description="the startup budget of containers with such a resource is multiplied by this",
    )
    learning: Annotated[Learning, Before(_switch)] = Field(
        Learning.ON,
        description="`on`: if at least 5 starts of the same container were observed in its namespace, the "
        "startup budget is `startupFactor` times the slowest. `off`: it is estimated, nothing is recorded",
    )
    least_learned: Duration = Field(
        600, ge=60, description="the smallest startup budget from observed starts"
    )
    startup_period: Duration = Field(5, ge=1, le=3600, description="seconds between two startup checks")
    readiness_period: Duration = Field(10, ge=1, le=3600, description="seconds between two readiness checks")
    readiness_failures: int = Field(
        3, ge=1, le=1000, description="failures after which the pod gets no traffic"
    )
    liveness_period: Duration = Field(20, ge=1, le=3600, description="seconds between two liveness checks")
    liveness_failures: int = Field(
        6, ge=2, le=1000, description="the smallest number of failures after which the container is restarted"
    )
    timeout: Duration = Field(5, ge=1, le=3600, description="seconds one check may take")

    @cached_property
    def table(self) -> Mapping[str, Preset]:
        """The presets in force by name: the built-in ones with the user's changes, then the user's own."""
        merged = {name: _merged(preset, self.presets.get(name)) for name, preset in known_presets().items()}
        merged |= {name: preset for name, preset in self.presets.items() if name not in merged}
        return {name: preset for name, preset in merged.items() if preset.enabled}

    @cached_property
    def recogniser(self) -> Recogniser:
        return Recogniser(self.table, self.sidecars)


def _merged(preset: Preset, changes: Preset | None) -> Preset:
    if changes is None:
        return preset
    return replace(preset, **{name: getattr(changes, name) for name in changes.given})
