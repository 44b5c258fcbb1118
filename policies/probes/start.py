"""How long a serving container takes to start, and how long it may.

The time follows from annotations, from earlier starts (`policies.probes.observed`), or from the model's size:
from an annotation, the model config, or the model's name and flags (`policies.probes.model_sizes`).

Law: the expected time has a source; the allowed time is generous. A long budget has no cost in the good case,
and a short one kills a start again and again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from policies.containers.programs import option
from policies.core.annotations import EXPECTED_START, MODEL_CONFIG, MODEL_SIZE
from policies.core.facts import Facts
from policies.core.reasons import lasting, times
from policies.kube import quantities as units
from policies.kube.images import repository, repository_and_tag
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of
from policies.kube.names import shortened
from policies.kube.pods import Container, Role, mounted_volumes
from policies.probes.model_sizes import heaviest
from policies.probes.observed import Observed, observed
from policies.probes.recognition import Server
from policies.probes.serving import serving_containers
from policies.probes.settings import Learning, StandardProbes
from puller import spec as model_spec

LONGEST_START: Final = 7 * 24 * 3600
"""Seconds. A start beyond a week is a slip in an annotation; a budget far beyond it overflows int32."""
LONGEST_MODEL_NAME: Final = 60
"""Characters of a model's name that a reason gives."""


@dataclass(frozen=True, slots=True)
class Start:
    """How long a container takes from its start until it serves."""

    seconds: int
    reason: str
    """Where that is from, such as `140 GB at 64 MiB/s`."""
    usual: int = 0
    """Seconds that the server usually takes; 0 if unknown."""
    loading: int = 0
    """Seconds that the model's size comes to, or that observed starts took; 0 where neither is known."""
    told: bool = False
    """Whether an annotation or the model config gives the time, not an estimate."""
    annotated: bool = False
    """Whether the annotation gives the exact time."""
    source: str = ""
    """The source of the model's size: an annotation, the model config, or the server and the model's name."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a container may take to start before it counts as hanging."""

    seconds: int
    why: Callable[[], str]
    """In words: `three times the 36 min that 140 GB take at 64 MiB/s (vllm, from Llama-3.1-70B)`."""
    setting: str
    """The setting of standard-probes by which it is more or less."""
    annotated: bool = False
    """Whether the annotation gives the time of a start."""
    fetches: bool = False
    """Whether it is twice as long since no volume keeps the fetched files."""


def start_of(pod: Json, container: Container, facts: Facts) -> Start | None:
    """How long a container takes to start; None if that is unknown, or it never serves.

    The annotation `mlchassis.dev/expected-start` decides; else the slowest start that was observed, if enough
    were; else the estimate.
    """
    start = _estimate_of(pod, container, facts)
    if start is None or start.annotated:
        return start
    found = _observed(pod, container, facts)
    # A start that a probe ended shows that a start may take longer than the observed ones.
    if found is None or (found.killed and start.seconds > found.seconds):
        return start
    reason = f"the slowest of {found.starts} observed starts"
    return replace(start, seconds=found.seconds, reason=reason, loading=found.seconds)


def _estimate_of(pod: Json, container: Container, facts: Facts) -> Start | None:
    """What the annotation or the container shows: the longer of the preset's time for its server and the time
    to load the model's size at the settings' `loadRate`."""
    return facts.pod_cache(pod).once_for(container, _estimated_start, pod, container, facts)


def _estimated_start(pod: Json, container: Container, facts: Facts) -> Start | None:
    settings = facts.settings(StandardProbes)
    if settings.recogniser.is_infrastructure(container):
        return None
    annotated = _annotation(pod, container, EXPECTED_START, facts)
    if annotated is not None:
        try:
            seconds = units.parse_duration(annotated)
        except ValueError:
            pass
        else:
            return Start(seconds, f"the annotation {EXPECTED_START}", 0, seconds, told=True, annotated=True)
    server = settings.recogniser.server(container)
    usual = (server and server.preset.expected_start) or 0
    told, source = told_size(pod, container, facts)
    size = told or 0
    if not size and server is not None:
        size, name = named_size(pod, container, server)
        named = shortened(name.rpartition("=")[2], LONGEST_MODEL_NAME)
        source = f"{server.name}, from {named}" if named else server.name
    loading = _seconds(size, settings) if size else 0
    if not (usual or loading):
        return None
    reason = f"{_gigabytes(size)} at {_rate(settings.load_rate)}"
    if server is not None and usual >= loading:
        reason = f"the usual start of {server.name}"
    return Start(max(usual, loading), reason, usual, loading, told=told is not None, source=source)


def expected_start(pod: Json, container: Container, facts: Facts) -> int | None:
    """Seconds from the container's start until it serves, by the estimate and by the observed starts; None if
    that is unknown, or it never serves."""
    starts = _estimate_of(pod, container, facts), start_of(pod, container, facts)
    return max((start.seconds for start in starts if start is not None), default=None)


def budget_of(pod: Json, container: Container, facts: Facts) -> Budget:
    """How long a start may take before the container counts as hanging.

    Several times the slowest start that was observed, if enough were. Otherwise several times the expected
    start; twice that if no volume keeps the fetched files, for then a kill begins the download again; more if
    the model is compiled first. If no size is known: several times `defaultStart`, or the time to fill the
    accelerators, the memory or the volumes.
    """
    settings = facts.settings(StandardProbes)
    start = _estimate_of(pod, container, facts)
    if start is not None and start.annotated:
        said = f"{lasting(start.seconds)} ({EXPECTED_START})"
        seconds = _whole(start.seconds, settings.startup_factor)
        return Budget(
            seconds, lambda: _product(said, settings.startup_factor), "startupFactor", annotated=True
        )
    estimated = _estimated(pod, container, start, settings)
    learned = _learned(pod, container, settings, facts)
    if learned is None:
        return estimated
    budget, killed = learned
    # A start that a probe ended shows that a start may take longer than the observed ones.
    return estimated if killed and estimated.seconds > budget.seconds else budget


def _observed(pod: Json, container: Container, facts: Facts) -> Observed | None:
    """The observed starts, if there are enough and they count."""
    if facts.settings(StandardProbes).learning is Learning.OFF:
        return None
    return facts.pod_cache(pod).once_for(container, _observed_at_its_size, pod, container, facts)


def _observed_at_its_size(pod: Json, container: Container, facts: Facts) -> Observed | None:
    size = told_size(pod, container, facts)[0] or 0
    return observed(pod, container, size, facts)


def _learned(
    pod: Json, container: Container, settings: StandardProbes, facts: Facts
) -> tuple[Budget, bool] | None:
    """The budget from the observed starts, and whether a probe ended one; None if too few were."""
    found = _observed(pod, container, facts)
    if found is None:
        return None
    several = _whole(found.seconds, settings.startup_factor)
    slowest = f"the slowest of {found.starts} observed starts"
    if several < settings.least_learned:
        took = f"the least; {slowest} took {found.seconds} s"
        return Budget(settings.least_learned, lambda: took, "leastLearned"), bool(found.killed)
    factor = times(settings.startup_factor)
    return Budget(several, lambda: f"{factor} {slowest} ({found.seconds} s)", "learning"), bool(found.killed)


def _estimated(pod: Json, container: Container, start: Start | None, settings: StandardProbes) -> Budget:
    """How long a start may take by what its container shows."""
    compiles = _compiles(container, settings)
    factor = settings.startup_factor * (settings.compile_factor if compiles else 1)
    if start is not None and start.loading:
        fetches = not (_keeps_files(pod, container) or MODEL_CONFIG in annotations_of(pod))
        factor *= 2 if fetches else 1
        known, why = start, _because(fetches=fetches, compiles=compiles)
        return Budget(
            _whole(start.seconds, factor),
            lambda: f"{_product(_time(known), factor)}{why} ({known.source})",
            "startupFactor",
            fetches=fetches,
        )
    usual = max(settings.default_start, start.seconds if start else 0)
    several, most = _whole(usual, factor), _most(pod, container)
    filling = _whole(_seconds(most, settings), 1)
    if filling > several:
        rate = _rate(settings.load_rate)
        return Budget(
            filling, lambda: f"filling the {_gigabytes(most)} it has room for, at {rate}", "loadRate"
        )
    what = start.reason if start is not None and start.seconds >= settings.default_start else ""
    said = what or f"{lasting(settings.default_start)}, the default for an unknown model size"
    why = _because(fetches=False, compiles=compiles)
    return Budget(
        several, lambda: f"{times(factor)} {said}{why}".strip(), "startupFactor" if what else "defaultStart"
    )


def _time(start: Start) -> str:
    """Why a start takes as long as it does, with that time."""
    if start.usual >= start.loading:
        return start.reason
    size, _, rate = start.reason.partition(" at ")
    return f"the {lasting(start.seconds)} that {size} take at {rate}"


def _product(said: str, factor: float) -> str:
    return f"{times(factor)} {said}" if factor != 1 else said


def _because(*, fetches: bool, compiles: bool) -> str:
    why = [
        *(["no volume keeps the download"] if fetches else []),
        *(["models are compiled for its accelerator"] if compiles else []),
    ]
    return f", since {' and '.join(why)}" if why else ""


def _whole(seconds: float, factor: float) -> int:
    return math.ceil(min(seconds, LONGEST_START) * factor)


def _seconds(size: int, settings: StandardProbes) -> int:
    return min(settings.boot - (-size // settings.load_rate), LONGEST_START)


def _gigabytes(size: int) -> str:
    return f"{size / 10**9:.0f} GB" if size >= 10**10 else f"{size / 10**9:.1f} GB"


def _rate(rate: int) -> str:
    return f"{rate / 2**20:g} MiB/s"


# --- the model's size --------------------------------------------------------------------------


def told_size(pod: Json, container: Container, facts: Facts) -> tuple[int | None, str]:
    """Bytes of model that a container loads before it serves, and the source: the annotation
    `mlchassis.dev/model-size`, or the sum in the pod's model config; None if neither gives it."""
    annotated = _annotation(pod, container, MODEL_SIZE, facts)
    if annotated is not None:
        try:
            return units.parse_bytes(annotated), MODEL_SIZE
        except ValueError:
            pass
    name = _annotation(pod, container, MODEL_CONFIG, facts)
    models = models_of(facts, name) if name else None
    if models is None:
        return None, ""
    return sum(model.memory for model in models.values()) or None, f"the model config {name}"


def named_size(pod: Json, container: Container, server: Server) -> tuple[int, str]:
    """Bytes of the model that a server loads, and the text with the number: a name in its words, its
    variables or its image, else that of a claim, a bucket or an image that it mounts. 0 if there is none."""
    if not server.preset.loads_model:
        return 0, ""
    variables = [
        value or "" for name, value in server.variables.items() if "MODEL" in name and "LORA" not in name
    ]
    flags = (option(server.words, "--quantization", "-q", "--quantize"), option(server.words, "--dtype"))
    named = heaviest((*_without_adapters(server.words), *variables, repository(container.image)), flags)
    return named if named[0] else heaviest(_mounted(pod, container), flags)


_ADAPTER_FLAGS: Final = ("--lora-modules", "--lora-paths", "--lora-adapters", "--lora", "--lora-dir")


def _without_adapters(words: Sequence[str]) -> Iterator[str]:
    """The words of a server but those of its LoRA adapters, which name the model that they are made for."""
    inside = False
    for word in words:
        if word.startswith("-"):
            inside = word.partition("=")[0] in _ADAPTER_FLAGS
        if not inside:
            yield word


def _mounted(pod: Json, container: Container) -> Iterator[str]:
    """The names of the claims, buckets and images that a container mounts."""
    for volume in _volumes(pod, container):
        yield text(volume, "persistentVolumeClaim", "claimName")
        yield text(volume, "csi", "volumeAttributes", "bucketName")
        yield ":".join(repository_and_tag(text(volume, "image", "reference")))


def models_of(facts: Facts, config: str) -> Mapping[str, model_spec.ModelSpec] | None:
    """The models that a model-config ConfigMap lists; None when it isn't known."""
    return facts.cache.once_for(config, _models_of, facts, config)


def _models_of(facts: Facts, config: str) -> Mapping[str, model_spec.ModelSpec] | None:
    found = facts.model_config(config)
    data = {key: value for key, value in mapping(found, "data").items() if isinstance(value, str)}
    return None if found is None else model_spec.parse(data).models


def _annotation(pod: Json, container: Container, key: str, facts: Facts) -> str | None:
    """The value of an annotation for a container: by its name, or for all that serve."""
    annotations = facts.view(pod).ours
    if not annotations:
        return None
    value = annotations.get(f"{key}.{container.name}")
    if value is None and key in annotations and _loads_models(pod, container, facts):
        value = annotations[key]
    return value if isinstance(value, str) else None


def _loads_models(pod: Json, container: Container, facts: Facts) -> bool:
    """Whether annotations about the pod's models concern a container: one that serves, or, where none
    does, any main one. Native sidecars and helpers start at their own pace."""
    if container.role is not Role.MAIN:
        return False
    serving = facts.pod_cache(pod).once(_serving_mains, pod, facts)
    return not serving or container.name in serving


def _serving_mains(pod: Json, facts: Facts) -> frozenset[str]:
    return frozenset(item.name for item in serving_containers(pod, facts) if item.role is Role.MAIN)


# --- the largest possible model, if its size is unknown -----------------------------------------

_ACCELERATOR: Final = re.compile("gpu|gaudi|tpu|neuron|npu|/mig-")
_ACCELERATOR_BYTES: Final = 80 * 10**9
_PASSING: Final = ("configMap", "secret", "projected", "downwardAPI")
"""Volumes that hold no model."""


def _most(pod: Json, container: Container) -> int:
    """Bytes that a container could load: what fits its accelerators, its memory and its own volumes."""
    resources = mapping(container.spec, "resources")
    asked = {**mapping(resources, "requests"), **mapping(resources, "limits")}
    accelerators = sum(units.bytes_or_zero(value) for key, value in asked.items() if _ACCELERATOR.search(key))
    own = [
        max(map(units.bytes_or_zero, (text(volume, "emptyDir", "sizeLimit"), _claimed(volume))))
        for volume in _volumes(pod, container)
    ]
    return max(accelerators * _ACCELERATOR_BYTES, units.bytes_or_zero(asked.get("memory")), *own, 0)


def _claimed(volume: Json) -> object:
    path = ("ephemeral", "volumeClaimTemplate", "spec", "resources", "requests")
    return mapping(volume, *path).get("storage")


def _volumes(pod: Json, container: Container) -> list[Json]:
    """The volumes that a container mounts, those in memory left out."""
    mounted = mounted_volumes(pod, container)
    return [volume for volume in mounted if mapping(volume, "emptyDir").get("medium") != "Memory"]


def _keeps_files(pod: Json, container: Container) -> bool:
    """Whether a volume keeps what a container has fetched when it is killed: an emptyDir does, too."""
    return any(volume.keys().isdisjoint(_PASSING) for volume in _volumes(pod, container))


def _compiles(container: Container, settings: StandardProbes) -> bool:
    """Whether a container asks for an accelerator for which models are compiled at the start."""
    resources = mapping(container.spec, "resources")
    asked = {*mapping(resources, "requests"), *mapping(resources, "limits")}
    return any(_is_among(key, settings.compiling) for key in asked)


@lru_cache(maxsize=1024)
def _is_among(resource: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(resource, glob) for glob in globs)
