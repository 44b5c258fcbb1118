"""The expected start of a serving container, and its startup budget.

The start follows from an annotation, from earlier starts (`policies.probes.observed`), or from the model's
size (`policies.probes.declared_models`).

The budget is generous: a long one costs nothing if the start succeeds, and a short one ends every start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core.annotations import EXPECTED_START, MODEL_CONFIG
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.reasons import in_words, times
from policies.kube import quantities as units
from policies.kube.names import shortened
from policies.kube.objects.metadata import Quantity
from policies.kube.objects.pods import Pod, Volume, is_accelerator
from policies.kube.pods import Container
from policies.probes.declared_models import (
    annotation_of,
    declared_size,
    keeps_files,
    mounted_disks,
    size_by_name,
)
from policies.probes.observed import Observed, observed
from policies.probes.recognition import Server
from policies.probes.server_facts import SlowStart
from policies.probes.standard_probes_settings import Learning, StandardProbes

MAX_START: Final = 7 * 24 * 3600
"""Seconds. A longer start is a mistake in an annotation, and its budget could overflow an int32."""
MAX_GUESS: Final = 24 * 3600
"""Seconds: the longest startup budget that follows from a model's name. A size from a name is a guess, and
until the budget ends, nothing restarts a start that hangs."""
MAX_MODEL_NAME_LENGTH: Final = 60
"""Characters of a model's name in a reason."""


class Start(Struct, frozen=True):
    """The time from a container's start until it serves."""

    seconds: int
    reason: str
    """The source of the time, such as `140 GB at 64 MiB/s`."""
    usual: int = 0
    """Seconds of the server's usual start; 0 if unknown."""
    loading: int = 0
    """Seconds to load a model of this size, or of the observed starts; 0 if neither is known."""
    declared: bool = False
    """Whether an annotation or the model config gives the time or the size."""
    annotated: bool = False
    """Whether an annotation gives the time."""
    source: str = ""
    """The source of the model's size: an annotation, the model config, or the server and the model's name."""
    least: int = 0
    """Seconds that a start takes at least, since a variable slows it down; 0 without one."""


class StartupBudget(Struct, frozen=True):
    """The time after which a start counts as hung."""

    seconds: int
    why: Callable[[], str]
    """`three times the 36 min that 140 GB take at 64 MiB/s (vllm, from Llama-3.1-70B)`"""
    setting: str
    """The setting of standard-probes that changes it."""
    annotated: bool = False
    """Whether an annotation gives the time of a start."""
    fetches: bool = False
    """Whether it is doubled because no volume keeps the download."""


def start_of(pod: PodView, container: Container, facts: Facts) -> Start | None:
    """How long a container takes to start; None if unknown, or if it never serves.

    The first of: the annotation `mlchassis.dev/expected-start`, the slowest observed start, the estimate.
    """
    start = _estimate_of(pod, container, facts)
    if start is None or start.annotated:
        return start
    found = _observed(pod, container, facts)
    if found is None or (start.seconds > found.seconds and not found.may_shorten):
        return start
    reason = f"the slowest of {found.starts} observed starts"
    return replace(start, seconds=found.seconds, reason=reason, loading=found.seconds)


def _estimate_of(pod: PodView, container: Container, facts: Facts) -> Start | None:
    """The annotation's start time; else the longer of the preset's and the time to load the model's size at
    the setting `loadRate`."""
    return facts.pod_caches[pod].once_for(container, _estimate, pod, container, facts)


def _estimate(pod: PodView, container: Container, facts: Facts) -> Start | None:
    settings = facts.settings(StandardProbes)
    if settings.recogniser.is_infrastructure(container):
        return None
    annotated = annotation_of(pod, container, EXPECTED_START, facts)
    if annotated is not None:
        try:
            seconds = units.parse_duration(annotated)
        except ValueError:
            pass
        else:
            reason = f"the annotation {EXPECTED_START}"
            return Start(seconds, reason, 0, seconds, declared=True, annotated=True)
    server = settings.recogniser.server(container)
    usual = (server and server.preset.expected_start) or 0
    declared, source = declared_size(pod, container, facts)
    size = declared or 0
    if not size and server is not None:
        size, name = size_by_name(pod.typed, container, server)
        named = shortened(name.rpartition("=")[2], MAX_MODEL_NAME_LENGTH)
        source = f"{server.name}, from {named}" if named else server.name
    loading = _seconds_to_load(size, settings) if size else 0
    slow = _slow_start(server) if server is not None else None
    if slow is not None and slow.seconds > max(usual, loading):
        reason = f"{slow.env} {slow.why}"
        return Start(slow.seconds, reason, slow.seconds, slow.seconds, least=slow.seconds)
    if not (usual or loading):
        return None
    reason = f"{_gigabytes(size)} at {_rate(settings.load_rate)}"
    if server is not None and usual >= loading:
        reason = f"the usual start of {server.name}"
    return Start(max(usual, loading), reason, usual, loading, declared=declared is not None, source=source)


def _slow_start(server: Server) -> SlowStart | None:
    """The variable of the container that slows its start down most."""
    found = (
        each
        for each in server.preset.slow_starts
        if (server.variables.get(each.env) or "").lower() not in ("", "0", "false")
    )
    return max(found, key=lambda each: each.seconds, default=None)


def expected_start(pod: PodView, container: Container, facts: Facts) -> int | None:
    """Seconds of the longer of the estimated and the observed start; None if neither is known."""
    starts = _estimate_of(pod, container, facts), start_of(pod, container, facts)
    return max((start.seconds for start in starts if start is not None), default=None)


def budget_of(pod: PodView, container: Container, facts: Facts) -> StartupBudget:
    """How long a start may take before the container counts as hung.

    It is `startupFactor` times the slowest observed start, if there are enough, else times the expected
    start: twice that if no volume keeps the download, and more if the model is compiled first. If no size is
    known, it is `startupFactor` times `defaultStart`, or the time to fill the accelerators, the memory or the
    volumes.
    """
    settings = facts.settings(StandardProbes)
    start = _estimate_of(pod, container, facts)
    if start is not None and start.annotated:
        time, factor = f"{in_words(start.seconds)} ({EXPECTED_START})", settings.startup_factor
        return StartupBudget(
            _multiplied(start.seconds, factor),
            lambda: _product(time, factor),
            "startupFactor",
            annotated=True,
        )
    estimated, found = (
        _estimated(pod.typed, container, start, settings),
        _observed(pod, container, facts),
    )
    if found is None:
        return estimated
    learned = _learned(found, settings)
    return estimated if estimated.seconds > learned.seconds and not found.may_shorten else learned


def _observed(pod: PodView, container: Container, facts: Facts) -> Observed | None:
    """The observed starts, if there are enough and the setting `learning` is on."""
    if facts.settings(StandardProbes).learning is Learning.OFF:
        return None
    return facts.pod_caches[pod].once_for(container, _read_observed, pod, container, facts)


def _read_observed(pod: PodView, container: Container, facts: Facts) -> Observed | None:
    return observed(pod.json, container, declared_size(pod, container, facts)[0] or 0, facts)


def _learned(found: Observed, settings: StandardProbes) -> StartupBudget:
    """The budget from the observed starts."""
    seconds = _multiplied(found.seconds, settings.startup_factor)
    slowest = f"the slowest of {found.starts} observed starts"
    if seconds < settings.least_learned:
        why = f"the minimum; {slowest} took {found.seconds} s"
        return StartupBudget(settings.least_learned, lambda: why, "leastLearned")
    factor = times(settings.startup_factor)
    return StartupBudget(seconds, lambda: f"{factor} {slowest} ({found.seconds} s)", "learning")


def _estimated(
    pod: Pod, container: Container, start: Start | None, settings: StandardProbes
) -> StartupBudget:
    """The budget from the estimated start, the settings and the container's resources."""
    compiles = _compiles(container, settings)
    factor = settings.startup_factor * (settings.compile_factor if compiles else 1)
    if start is not None and start.loading:
        fetches = not (keeps_files(pod, container) or MODEL_CONFIG in pod.metadata.annotations)
        factor *= 2 if fetches else 1
        known, why = start, _because(fetches=fetches, compiles=compiles)
        seconds = _multiplied(start.seconds, factor)
        bound = "" if known.declared or seconds <= MAX_GUESS else "at most a day, instead of "
        return StartupBudget(
            seconds if known.declared else min(seconds, MAX_GUESS),
            lambda: f"{bound}{_product(_time(known), factor)}{why} ({known.source})",
            "startupFactor",
            fetches=fetches,
        )
    usual = max(settings.default_start, start.seconds if start else 0)
    seconds, largest = _multiplied(usual, factor), _largest_model(pod, container)
    filling = _seconds_to_load(largest, settings)
    if filling > seconds:
        rate = _rate(settings.load_rate)
        return StartupBudget(
            filling,
            lambda: f"the time to load the {_gigabytes(largest)} that it has room for, at {rate}",
            "loadRate",
        )
    reason, setting = (
        f"{in_words(settings.default_start)}, the default when the loading time is unknown",
        "defaultStart",
    )
    if start is not None and start.seconds >= settings.default_start:
        reason, setting = start.reason, "startupFactor"
    why = _because(fetches=False, compiles=compiles)
    return StartupBudget(seconds, lambda: f"{times(factor)} {reason}{why}".strip(), setting)


def _time(start: Start) -> str:
    """The expected time with its reason."""
    if start.usual >= start.loading:
        return start.reason
    size, _, rate = start.reason.partition(" at ")
    return f"the {in_words(start.seconds)} that {size} take at {rate}"


def _product(time: str, factor: float) -> str:
    return f"{times(factor)} {time}" if factor != 1 else time


def _because(*, fetches: bool, compiles: bool) -> str:
    why = [
        *(["no volume keeps the download"] if fetches else []),
        *(["models are compiled for its accelerator"] if compiles else []),
    ]
    return f", since {' and '.join(why)}" if why else ""


def _multiplied(seconds: float, factor: float) -> int:
    return math.ceil(min(seconds, MAX_START) * factor)


def _seconds_to_load(size: int, settings: StandardProbes) -> int:
    return min(settings.boot - (-size // settings.load_rate), MAX_START)


def _gigabytes(size: int) -> str:
    return f"{size / 10**9:.0f} GB" if size >= 10**10 else f"{size / 10**9:.1f} GB"


def _rate(rate: int) -> str:
    return f"{rate / 2**20:g} MiB/s"


# --- the largest possible model, if its size is unknown -----------------------------------------

_ACCELERATOR_BYTES: Final = 80 * 10**9


def _largest_model(pod: Pod, container: Container) -> int:
    """The most bytes that fit into a container's accelerators, its memory or its own volumes."""
    resources = container.typed.resources
    asked = {**resources.requests, **resources.limits}
    accelerators = sum(units.bytes_or_zero(value) for key, value in asked.items() if is_accelerator(key))
    own = [units.bytes_or_zero(_size_of(volume)) for volume in mounted_disks(pod, container)]
    return max(accelerators * _ACCELERATOR_BYTES, units.bytes_or_zero(asked.get("memory")), *own, 0)


def _size_of(volume: Volume) -> Quantity | None:
    """The size of a volume that belongs to the pod."""
    if volume.empty_dir is not None:
        return volume.empty_dir.size_limit
    if volume.ephemeral is not None:
        return volume.ephemeral.volume_claim_template.spec.resources.requests.get("storage")
    return None


def _compiles(container: Container, settings: StandardProbes) -> bool:
    """Whether a container requests an accelerator for which models are compiled at the start."""
    resources = container.typed.resources
    return any(_is_among(key, settings.compiling) for key in {*resources.requests, *resources.limits})


@lru_cache(maxsize=1024)
def _is_among(resource: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(resource, glob) for glob in globs)
