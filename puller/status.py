"""What the puller reports: the state of each model, readiness, the status file, metrics, the log."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from puller import plan
from puller.log import logger
from puller.metrics import Metrics
from puller.options import Options
from puller.plan import Act, Model, State
from puller.quantities import human
from puller.reasons import Reason
from puller.servers.base import Health
from puller.spec import Desired, SpecError
from puller.storage.base import Progress, in_thread
from puller.storage.fetch import Fetch
from puller.store import write_atomically

STATUS_FILE = ".status.json"

_MAX_LISTED = 100
"""Refusals of one config that are logged and listed one by one."""
_STALLED = 60.0
"""Seconds without a turn of the loop after which it counts as stuck."""


@dataclass(slots=True)
class _Reported:
    """The last report about a model."""

    state: State
    reason: Reason | None
    since: datetime


class Status:
    """Collects, and answers from, what the reconciler notes. No decision is ever taken from it.

    `was_ready`: all was there once, in the life of this pod.
    """

    def __init__(self, options: Options) -> None:
        self.metrics = Metrics()
        self.config_trouble = ""
        self.model_dir_trouble = ""
        self._options = options
        self._reported: dict[str, _Reported] = {}
        self._desired: Desired | None = None
        self._turned_at = time.monotonic()
        self._health = Health.HUNG
        self.was_ready = False
        self._published = b""
        self._line = ""
        self._news = True
        self._troubles = ("", "")

    def configured(self, desired: Desired) -> None:
        """A config was read."""
        known = self._desired or Desired()
        for error in _unknown(desired.errors, known.errors):
            logger.error("config entry refused", where=error.where, model=error.model, error=error.message)
        for warning in _unknown(desired.warnings, known.warnings):
            logger.warning("config field ignored", where=warning.where, model=warning.model)
        logger.info("config read", models=len(desired.models), refused=len(desired.errors))
        self._desired = desired
        self._news = True

    def turned(self, health: Health) -> None:
        """The loop went round."""
        self._turned_at = time.monotonic()
        self._news = self._news or health is not self._health
        self._health = health

    def note(self, model: Model, now: float) -> None:
        """Report a change of state, once."""
        state = plan.state(model, now)
        reason = model.failure.reason if model.failure is not None and state is State.FAILED else None
        reported = self._reported.get(model.name)
        if reported is not None and (reported.state, reported.reason) == (state, reason):
            return
        self._reported[model.name] = _Reported(state, reason, datetime.now(UTC))
        self._news = True
        if model.failure is not None and state is State.FAILED:
            wait = max(model.failure.retry_at - now, 0)
            logger.warning(
                "model",
                model=model.name,
                state=state.value,
                reason=model.failure.reason,
                message=model.failure.message,
                attempts=model.failure.attempts,
                retry_in=None if wait == float("inf") else round(wait, 1),
            )
        else:
            logger.info("model", model=model.name, state=state.value)

    def forgotten(self, name: str) -> None:
        self._news = True
        if self._reported.pop(name, None) is not None:
            logger.info("model", model=name, state="Removed")

    def finished(self, step: Act, model: Model, seconds: float) -> None:
        """A step ended, well or with `model.failure`."""
        failed = model.failure is not None and model.failure.act is step
        self._news = self._news or failed or step is not Act.CHECK
        self.metrics.step(step.value, seconds, model.failure.reason if model.failure and failed else None)

    def healthy(self) -> tuple[bool, str]:
        """Whether the loop turns."""
        still = time.monotonic() - self._turned_at
        if self.model_dir_trouble:
            return True, f"waiting for the model directory: {self.model_dir_trouble}"
        return still < _STALLED, "ok" if still < _STALLED else f"the loop has not turned for {still:.0f} s"

    def ready(self, models: Mapping[str, Model]) -> tuple[bool, str]:
        """Whether the listed models are served, in the sense of `--ready-when`.

        A model counts while the server has any version of it, so that an update takes no pod out of
        service; an entry that is refused does not count, for it can never be loaded.
        """
        if self.model_dir_trouble:
            return False, f"the model directory cannot be used: {self.model_dir_trouble}"
        when = self._options.ready_when
        if when == "first" and self.was_ready:
            return True, "ok"
        if self._desired is None:
            return False, "no config has been read yet"
        listed = [model for model in models.values() if model.wanted is not None or model.held]
        missing = sorted(model.name for model in listed if not model.available)
        if self._desired.blind and not listed:
            errors = [self.config_trouble, *map(str, self._desired.errors)]
            return False, f"the config cannot be read: {next(filter(None, errors), 'unknown error')}"
        if not missing or (when == "any" and len(missing) < len(listed)):
            return True, "ok"
        return False, f"{len(missing)} of {len(listed)} models are not loaded: {', '.join(missing[:5])}"

    def document(self, models: Mapping[str, Model], fetches: Mapping[str, Fetch]) -> dict[str, Any]:
        """The body of /v1/models and of the status file."""
        entries = [self._entry(model, fetches) for model in models.values()]
        errors = self._desired.errors if self._desired else ()
        refused = {error.model: error for error in errors if error.model}
        for entry in entries:
            if entry["name"] in refused:
                entry["message"] = str(refused.pop(entry["name"]))
                entry["reason"] = entry["reason"] or Reason.INVALID_SPEC
        as_refused = {"state": State.FAILED.value, "reason": Reason.INVALID_SPEC}
        entries += [
            self._entry(Model(name), {}) | as_refused | {"message": str(error), "since": ""}
            for name, error in refused.items()
        ]
        entries.sort(key=lambda entry: str(entry["name"]))
        ready, why = self.ready(models)
        troubles = [text for text in (self.config_trouble, self.model_dir_trouble) if text]
        return {
            "models": entries,
            "counts": dict(sorted(Counter(entry["state"] for entry in entries).items())),
            "errors": _listed(errors) + troubles,
            "ready": ready,
            "readyMessage": why,
            "server": self._health.value,
        }

    async def publish(self, models: Mapping[str, Model], fetches: Mapping[str, Fetch]) -> None:
        """Bring the status file, the metrics and the terminal up to date. If no model changed, no document
        is made."""
        troubles = (self.config_trouble, self.model_dir_trouble)
        if not (self._news or fetches or troubles != self._troubles):
            return
        self._news, self._troubles = False, troubles
        document = self.document(models, fetches)
        if document["ready"] and not self.was_ready:
            self.was_ready = True
            logger.info("ready", when=self._options.ready_when, models=len(models))
        self._measure(document)
        self._progress(document)
        data = orjson.dumps(document)
        if data == self._published or self.model_dir_trouble:
            return
        try:
            path = self._options.model_dir / STATUS_FILE
            await in_thread(lambda: write_atomically(path, data, durable=False))
            self._published = data
        except OSError as error:
            self._news = True
            logger.debug("status file not written", error=str(error))

    def _entry(self, model: Model, fetches: Mapping[str, Fetch]) -> dict[str, Any]:
        reported = self._reported.get(model.name)
        fetch = fetches.get(model.name)
        progress = fetch.progress if fetch else Progress()
        state = reported.state if reported else State.PENDING
        failure = model.failure
        reason, message = self._why(model, state)
        return {
            "name": model.name,
            "state": state.value,
            "reason": failure.reason if failure and state is State.FAILED else reason,
            "message": failure.message if failure and state is State.FAILED else progress.trouble or message,
            "attempts": failure.attempts if failure else 0,
            "version": model.stored.version if model.stored else "",
            "bytes": model.size,
            "bytesDone": progress.done,
            "bytesTotal": progress.total,
            "since": reported.since.isoformat(timespec="seconds") if reported else "",
        }

    def _why(self, model: Model, state: State) -> tuple[str, str]:
        """The reason for a state that is neither the goal nor a failure."""
        if state is State.PENDING:
            return Reason.QUEUED, "waits for its turn to download"
        if state is State.DOWNLOADED and self._health is not Health.UP:
            return Reason.WAITING_FOR_SERVER, f"the model server is {self._health.value}"
        if state is State.DOWNLOADED:
            return Reason.QUEUED, "waits for its turn to load"
        if state is State.UNLOADING and model.doing is None:
            return Reason.QUEUED, "waits for its turn to be unloaded"
        return "", ""

    def _measure(self, document: dict[str, Any]) -> None:
        metrics = self.metrics
        metrics.models = {state.value: document["counts"].get(state.value, 0) for state in State}
        failed = (entry for entry in document["models"] if entry["state"] == State.FAILED.value)
        metrics.failed = [(entry["name"], entry["reason"]) for entry in islice(failed, _MAX_LISTED)]
        metrics.received, metrics.expected = _in_flight(document)
        refused = len(self._desired.errors) if self._desired else 0
        metrics.refused = refused + bool(self.config_trouble) + bool(self.model_dir_trouble)
        metrics.ready = document["ready"]
        metrics.server_up = self._health is Health.UP

    def _progress(self, document: dict[str, Any]) -> None:
        """A line a second for a person at a terminal, as long as a model changes."""
        if not sys.stderr.isatty():
            return
        done, total = _in_flight(document)
        line = ", ".join(f"{count} {state}" for state, count in document["counts"].items())
        if total:
            line += f"; {human(done)} of {human(total)}"
        if line != self._line:
            self._line = line
            print(line, file=sys.stderr)


def _in_flight(document: dict[str, Any]) -> tuple[int, int]:
    """(bytes got, bytes expected) of the downloads in flight."""
    flying = [entry for entry in document["models"] if entry["state"] == State.DOWNLOADING.value]
    return sum(entry["bytesDone"] for entry in flying), sum(entry["bytesTotal"] for entry in flying)


def _unknown(found: Sequence[SpecError], known: Sequence[SpecError]) -> Iterator[SpecError]:
    """The first of those that were not known."""
    before = set(known)
    return islice((error for error in found if error not in before), _MAX_LISTED)


def _listed(errors: Sequence[SpecError]) -> list[str]:
    """The first of them, one sentence each, and how many more there are."""
    more = len(errors) - _MAX_LISTED
    return [str(error) for error in errors[:_MAX_LISTED]] + ([f"and {more} more."] if more > 0 else [])
