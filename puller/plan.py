"""The next step for one model: desired state x actual state x work in flight -> what to do now.

Law: pure. No I/O, no clock, no memory of events; the same state always gives the same step, so it does
not matter which event was missed, doubled or late.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from puller.quantities import human
from puller.reasons import Reason
from puller.servers.base import Health
from puller.spec import ModelSpec

SUPERSEDED_GRACE = 5.0
"""Seconds that a download of an outdated spec may go on, so that a burst of edits costs one more
download and not one each."""


class Act(enum.Enum):
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
    """What the server was last known to serve. STALE: something, not known to be the tree on disk."""

    NO = "no"
    STALE = "stale"
    YES = "yes"


class State(enum.Enum):
    """The state of a model, as the status shows it."""

    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    DOWNLOADED = "Downloaded"
    LOADING = "Loading"
    LOADED = "Loaded"
    UNLOADING = "Unloading"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Doing:
    """A step in flight, and the spec it is for."""

    act: Act
    spec: ModelSpec | None = None
    superseded_at: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The last step failed and is tried again at `retry_at` (seconds, monotonic)."""

    act: Act
    spec: ModelSpec | None
    attempts: int
    retry_at: float
    reason: Reason
    message: str


@dataclass(slots=True)
class Model:
    """All that is known of one model.

    `wanted`: what the config asks for. `held`: the config names it in a way that cannot be read; the
    present model stays. `stored`: the complete tree on disk, of `size` bytes. `staged`: an unfinished one is
    there, too. `checked`: `loaded` was read from the server since it was last (re)started or doubted.
    `fresh`: it was not on disk before, so a load follows, which asks the server itself.
    """

    name: str
    wanted: ModelSpec | None = None
    held: bool = False
    stored: ModelSpec | None = None
    staged: bool = False
    loaded: Loaded = Loaded.NO
    checked: bool = False
    fresh: bool = False
    doing: Doing | None = None
    failure: Failure | None = None
    size: int = 0

    @property
    def current(self) -> bool:
        """Whether the tree on disk is the wanted one."""
        return same(self.stored, self.wanted)

    @property
    def available(self) -> bool:
        """Whether the server has a version of it that can answer, be it the last one or the one before."""
        return self.loaded is not Loaded.NO


def next_step(model: Model, health: Health, now: float) -> Act | None:
    """The step to take now; None if there is none before a change, or before `wake_at`."""
    if model.doing is not None:
        return Act.CANCEL if _cancel_at(model) <= now else None
    step = _goal(model, health)
    return None if step is not None and now < _blocked_until(model, step) else step


def wake_at(model: Model, health: Health) -> float:
    """When `next_step` changes its answer only because time passed; infinity for never."""
    if model.doing is not None:
        return _cancel_at(model)
    step = _goal(model, health)
    return float("inf") if step is None else _blocked_until(model, step) or float("inf")


def outlived(model: Model, health: Health) -> bool:
    """Whether the failed step is not wanted any more, so that the failure can be dropped. A check precedes
    many steps and decides none of them."""
    if model.failure is None or model.doing is not None or health is not Health.UP:
        return False
    return _goal(model, health) not in (model.failure.act, Act.CHECK)


def state(model: Model, now: float) -> State:
    """The state that the status shows."""
    if model.doing is not None and model.doing.act in _DOING:
        return _DOING[model.doing.act]
    if model.wanted is None and not model.held:
        return State.FAILED if model.failure is not None else State.UNLOADING
    if model.failure is not None:
        return State.FAILED
    if model.stored is None or not (model.current or model.held):
        return State.PENDING
    return State.LOADED if model.loaded is Loaded.YES else State.DOWNLOADED


def over_memory(model: Model, others: int, limit: int) -> Failure | None:
    """The failure to load this model next to others that hold so many bytes; None if there is room. The model
    stays failed until memory is freed."""
    spec = model.wanted or model.stored
    if spec is None or others + spec.memory <= limit:
        return None
    message = (
        f"it wants {human(spec.memory)} of memory; loaded models hold {human(others)} of {human(limit)}."
    )
    return Failure(Act.LOAD, model.wanted, 0, float("inf"), Reason.OVER_MAX_MEMORY, message)


def memory_of(model: Model) -> int:
    """The memory of a model that is loaded or being loaded, in bytes."""
    specs = [spec for spec in (model.wanted, model.stored) if spec is not None]
    return max((spec.memory for spec in specs), default=0) if model.available or loading(model) else 0


def loading(model: Model) -> bool:
    """Whether a load is in flight."""
    return model.doing is not None and model.doing.act is Act.LOAD


_DOING = {
    Act.DOWNLOAD: State.DOWNLOADING,
    Act.LOAD: State.LOADING,
    Act.UNLOAD: State.UNLOADING,
    Act.DELETE: State.UNLOADING,
}


def _goal(model: Model, health: Health) -> Act | None:
    """The next step, were there nothing in flight and no failure to wait out."""
    if model.staged and (model.wanted is None or model.current):
        return Act.DISCARD
    if model.wanted is not None or model.held:
        return _stay(model, health)
    return _leave(model, health)


def _stay(model: Model, health: Health) -> Act | None:
    """The model is wanted: its tree on disk, then the tree in the server."""
    if model.wanted is not None and not model.current:
        return Act.DOWNLOAD
    if model.stored is None or health is not Health.UP:
        return None
    if not (model.checked or model.fresh):
        return Act.CHECK
    return None if model.loaded is Loaded.YES else Act.LOAD


def _leave(model: Model, health: Health) -> Act | None:
    """The model is not wanted: out of the server, then off the disk, then out of mind.

    A server that is DOWN has nothing loaded, so its files may go; yet it may be reading them as it
    starts, so the model is remembered until a live server reports that it does not have it.
    """
    if health is Health.UP and not model.checked:
        return Act.CHECK
    if health is not Health.DOWN and model.available:
        return Act.UNLOAD if health is Health.UP else None
    if health is Health.HUNG and not model.checked:
        return None
    if model.stored is not None:
        return Act.DELETE
    return Act.FORGET if model.checked else None


def _cancel_at(model: Model) -> float:
    """When the download in flight is to be given up."""
    doing = model.doing
    if doing is None or doing.act is not Act.DOWNLOAD or doing.spec is None:
        return float("inf")
    if model.wanted is None:
        return 0.0
    if same(model.wanted, doing.spec) or doing.superseded_at is None:
        return float("inf")
    return doing.superseded_at + SUPERSEDED_GRACE


def _blocked_until(model: Model, step: Act) -> float:
    """The backoff of a step that failed, as long as it is still the same step for the same content."""
    failure = model.failure
    if failure is None or failure.act is not step:
        return 0.0
    edited = step is Act.DOWNLOAD and not same(failure.spec, model.wanted)
    return 0.0 if edited else failure.retry_at


def same(one: ModelSpec | None, other: ModelSpec | None) -> bool:
    """Whether two specs make the same tree."""
    return one is not None and other is not None and one.content == other.content
