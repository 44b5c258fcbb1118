"""The next step for one model: desired state x actual state x work in flight -> the step to take now.

Law: pure. No I/O, no clock, no memory of events. The same state always gives the same step, so a missed,
doubled or late event does no harm.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from puller.model_config import ModelSpec
from puller.quantities import human
from puller.reasons import StatusReason
from puller.servers.base import ServerHealth

SUPERSEDED_GRACE = 5.0
"""Seconds for which a download of an outdated spec continues, so that a burst of edits costs one more
download and not one each."""
NEVER = float("inf")


class ModelStep(enum.Enum):
    """The steps for a model. At most one is in flight for each model."""

    DOWNLOAD = "download"
    CANCEL = "cancel"
    CHECK = "check"
    LOAD = "load"
    UNLOAD = "unload"
    DELETE = "delete"
    DISCARD = "discard"
    FORGET = "forget"


class Loaded(enum.Enum):
    """What the server has. STALE: a version of the model that may not be the tree on disk."""

    NO = "no"
    STALE = "stale"
    YES = "yes"


class ModelState(enum.Enum):
    """The state of a model, as the status shows it."""

    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    DOWNLOADED = "Downloaded"
    LOADING = "Loading"
    LOADED = "Loaded"
    UNLOADING = "Unloading"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step in flight. `spec`: the content that a download is for. `superseded_at`: when the config began
    to list another."""

    step: ModelStep
    spec: ModelSpec | None = None
    superseded_at: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The last step failed and is tried again at `retry_at` (seconds, monotonic)."""

    step: ModelStep
    spec: ModelSpec | None
    attempts: int
    retry_at: float
    reason: StatusReason
    message: str


@dataclass(slots=True)
class PlannedModel:
    """The desired and the actual state of one model.

    `desired`: the spec in the config. `retained`: the config lists the model, but its entry cannot be read,
    so the present version stays. `stored`: the complete tree on disk, of `size` bytes. `staged`: there is an
    unfinished tree too. `checked`: `loaded` was read from the server since the server (re)started or a check
    was requested. `first_install`: nothing was on disk before; the load that follows asks the server itself.
    `fallback_at`: when the present tree may be loaded instead of the desired one (seconds, monotonic).
    """

    name: str
    desired: ModelSpec | None = None
    retained: bool = False
    stored: ModelSpec | None = None
    staged: bool = False
    loaded: Loaded = Loaded.NO
    checked: bool = False
    first_install: bool = False
    in_flight: InFlight | None = None
    failure: Failure | None = None
    size: int = 0
    fallback_at: float = 0.0

    @property
    def listed(self) -> bool:
        return self.desired is not None or self.retained

    @property
    def current(self) -> bool:
        """Whether the tree on disk is the desired one."""
        return same_content(self.stored, self.desired)

    @property
    def available(self) -> bool:
        """Whether the server has a version of the model that can answer, also an older one."""
        return self.loaded is not Loaded.NO

    @property
    def loading(self) -> bool:
        return self.in_flight is not None and self.in_flight.step is ModelStep.LOAD

    @property
    def memory(self) -> int:
        """Bytes that the model takes in the server: 0 unless it is loaded or being loaded. During an update,
        both versions count; otherwise, the config is right, and not the marker, which may be older."""
        if not (self.available or self.loading):
            return 0
        specs = (self.desired,) if self.current else (self.desired, self.stored)
        return max((spec.memory for spec in specs if spec is not None), default=0)


def next_step(model: PlannedModel, health: ServerHealth, now: float) -> ModelStep | None:
    """The step to take now; None if there is none before a change, or before `wake_at`."""
    if model.in_flight is not None:
        return ModelStep.CANCEL if _cancel_at(model) <= now else None
    step = _due_step(model, health)
    if step is None or now >= _blocked_until(model, step):
        return step
    return _fallback(model, health) if now >= model.fallback_at else None


def wake_at(model: PlannedModel, health: ServerHealth, now: float) -> float:
    """The next time at which the result of `next_step` changes only because time passed."""
    if model.in_flight is not None:
        return _cancel_at(model)
    step = _due_step(model, health)
    if step is None:
        return NEVER
    times = [_blocked_until(model, step)]
    if _fallback(model, health) is not None:
        times.append(model.fallback_at)
    return min((when for when in times if when > now), default=NEVER)


def failure_obsolete(model: PlannedModel, health: ServerHealth) -> bool:
    """Whether the failed step is no longer due, so that the failure can be dropped. A check precedes many
    steps, so a due check does not make a failure obsolete."""
    if model.failure is None or model.in_flight is not None or health is not ServerHealth.UP:
        return False
    return _due_step(model, health) not in (model.failure.step, ModelStep.CHECK)


def state(model: PlannedModel) -> ModelState:
    """The state that the status shows."""
    if model.in_flight is not None and model.in_flight.step in _STATE_IN_FLIGHT:
        return _STATE_IN_FLIGHT[model.in_flight.step]
    if model.failure is not None:
        return ModelState.FAILED
    if not model.listed:
        return ModelState.UNLOADING
    if model.stored is None or not (model.current or model.retained):
        return ModelState.PENDING
    return ModelState.LOADED if model.loaded is Loaded.YES else ModelState.DOWNLOADED


def over_memory(model: PlannedModel, others: int, limit: int) -> Failure | None:
    """The failure to load this model next to others that take `others` bytes; None if it fits. The model
    stays failed until memory is freed."""
    spec = model.desired or model.stored
    if spec is None or others + spec.memory <= limit:
        return None
    message = f"needs {human(spec.memory)} of memory; loaded models take {human(others)} of {human(limit)}."
    return Failure(ModelStep.LOAD, model.desired, 0, NEVER, StatusReason.OVER_MAX_MEMORY, message)


_STATE_IN_FLIGHT = {
    ModelStep.DOWNLOAD: ModelState.DOWNLOADING,
    ModelStep.LOAD: ModelState.LOADING,
    ModelStep.UNLOAD: ModelState.UNLOADING,
    ModelStep.DELETE: ModelState.UNLOADING,
}


def _due_step(model: PlannedModel, health: ServerHealth) -> ModelStep | None:
    """The next step, ignoring work in flight and the backoff of failures."""
    if model.staged and (model.desired is None or model.current):
        return ModelStep.DISCARD
    return _step_if_listed(model, health) if model.listed else _step_if_removed(model, health)


def _step_if_listed(model: PlannedModel, health: ServerHealth) -> ModelStep | None:
    """First the desired tree on disk, then that tree in the server."""
    if model.desired is not None and not model.current:
        return ModelStep.DOWNLOAD
    if model.stored is None or health is not ServerHealth.UP:
        return None
    if not (model.checked or model.first_install):
        return ModelStep.CHECK
    return None if model.loaded is Loaded.YES else ModelStep.LOAD


def _fallback(model: PlannedModel, health: ServerHealth) -> ModelStep | None:
    """The step while the desired tree cannot be downloaded: a server that restarted gets the present one."""
    if model.desired is None or model.stored is None or model.current or health is not ServerHealth.UP:
        return None
    if not model.checked:
        return ModelStep.CHECK
    return None if model.available else ModelStep.LOAD


def _step_if_removed(model: PlannedModel, health: ServerHealth) -> ModelStep | None:
    """First unload, then delete the files, then forget the model.

    A server that is DOWN has no model loaded, so its files may be deleted. It may be reading them as it
    starts, so the model is forgotten only after a running server reports that it does not have it.
    """
    if health is ServerHealth.UP and not model.checked:
        return ModelStep.CHECK
    if health is not ServerHealth.DOWN and model.available:
        return ModelStep.UNLOAD if health is ServerHealth.UP else None
    if health is ServerHealth.HUNG and not model.checked:
        return None
    if model.stored is not None:
        return ModelStep.DELETE
    return ModelStep.FORGET if model.checked else None


def _cancel_at(model: PlannedModel) -> float:
    """When to cancel the download in flight."""
    download = model.in_flight
    if download is None or download.step is not ModelStep.DOWNLOAD or download.spec is None:
        return NEVER
    if model.desired is None:
        return 0.0
    if same_content(model.desired, download.spec) or download.superseded_at is None:
        return NEVER
    return download.superseded_at + SUPERSEDED_GRACE


def _blocked_until(model: PlannedModel, step: ModelStep) -> float:
    """The end of the backoff, if this step failed for the same content."""
    failure = model.failure
    if failure is None or failure.step is not step:
        return 0.0
    edited = step is ModelStep.DOWNLOAD and not same_content(failure.spec, model.desired)
    return 0.0 if edited else failure.retry_at


def same_content(one: ModelSpec | None, other: ModelSpec | None) -> bool:
    """Whether two specs result in the same files."""
    return one is not None and other is not None and one.content == other.content
