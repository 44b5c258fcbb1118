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
from puller.files import write_atomically
from puller.log import logger
from puller.metrics import PullerMetrics
from puller.model_config import DesiredModels, SpecError
from puller.options import PullerOptions
from puller.plan import ModelState, ModelStep, PlannedModel
from puller.quantities import human
from puller.reasons import StatusReason
from puller.servers.base import ServerHealth
from puller.storage.base import FetchProgress, in_thread
from puller.storage.fetch import Fetch

STATUS_FILE = ".status.json"

_MAX_LISTED = 100
"""Errors of one config that are logged and listed one by one."""
_STALLED = 60.0
"""Seconds without a run of the loop after which it counts as stuck."""


@dataclass(frozen=True, slots=True)
class _Report:
    """The last logged state of a model."""

    state: ModelState
    reason: StatusReason | None
    since: datetime


class PullerStatus:
    """Collects what the reconciler reports, and answers from it. No decision depends on it.

    `was_ready`: the pod was ready once.
    """

    def __init__(self, options: PullerOptions) -> None:
        self.metrics = PullerMetrics()
        self.config_error = ""
        self.model_dir_error = ""
        self._options = options
        self._reports: dict[str, _Report] = {}
        self._desired: DesiredModels | None = None
        self._loop_ran_at = time.monotonic()
        self._health = ServerHealth.HUNG
        self.was_ready = False
        self._published = b""
        self._line = ""
        self._changed = True
        self._summary = ("", "", (False, ""))

    def configured(self, desired: DesiredModels) -> None:
        known = self._desired or DesiredModels()
        for error in _new(desired.errors, known.errors):
            logger.error("config entry refused", where=error.where, model=error.model, error=error.message)
        for warning in _new(desired.warnings, known.warnings):
            logger.warning("config field ignored", where=warning.where, model=warning.model)
        logger.info("config read", models=len(desired.models), refused=len(desired.errors))
        self._desired = desired
        self._changed = True

    def loop_ran(self, health: ServerHealth) -> None:
        self._loop_ran_at = time.monotonic()
        self._changed = self._changed or health is not self._health
        self._health = health

    def report(self, model: PlannedModel, now: float) -> None:
        """Log a change of state, once."""
        state = plan.state(model)
        reason = model.failure.reason if model.failure is not None and state is ModelState.FAILED else None
        last = self._reports.get(model.name)
        if last is not None and (last.state, last.reason) == (state, reason):
            return
        self._reports[model.name] = _Report(state, reason, datetime.now(UTC))
        self._changed = True
        if model.failure is not None and state is ModelState.FAILED:
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

    def removed(self, name: str) -> None:
        self._changed = True
        if self._reports.pop(name, None) is not None:
            logger.info("model", model=name, state="Removed")

    def step_ended(self, step: ModelStep, model: PlannedModel, seconds: float) -> None:
        failed = model.failure is not None and model.failure.step is step
        self._changed = self._changed or failed or step is not ModelStep.CHECK
        self.metrics.step(step.value, seconds, model.failure.reason if model.failure and failed else None)

    def healthy(self) -> tuple[bool, str]:
        """Whether the loop runs."""
        idle = time.monotonic() - self._loop_ran_at
        if self.model_dir_error and idle < _STALLED:
            return True, f"waiting for the model directory: {self.model_dir_error}"
        return idle < _STALLED, "ok" if idle < _STALLED else f"the loop has not run for {idle:.0f} s"

    def ready(self, models: Mapping[str, PlannedModel]) -> tuple[bool, str]:
        """Whether the listed models are loaded, as `--ready-when` requires.

        A model counts while the server has any version of it, so that an update does not make the pod
        unready. A refused entry does not count: it can never be loaded.
        """
        when = self._options.ready_when
        if when == "first" and self.was_ready:
            return True, "ok"
        if self._desired is None:
            return False, "no config has been read yet"
        listed = [model for model in models.values() if model.listed]
        missing = sorted(model.name for model in listed if not model.available)
        if self._desired.blind and not listed:
            errors = [self.config_error, *map(str, self._desired.errors)]
            return False, f"the config cannot be read: {next(filter(None, errors), 'unknown error')}"
        enough = not missing or (when == "any" and len(missing) < len(listed))
        if self.model_dir_error and not (listed and enough):
            return False, f"the model directory cannot be used: {self.model_dir_error}"
        if enough:
            return True, "ok"
        return False, f"{len(missing)} of {len(listed)} models are not loaded: {', '.join(missing[:5])}"

    def document(self, models: Mapping[str, PlannedModel], fetches: Mapping[str, Fetch]) -> dict[str, Any]:
        """The body of /v1/models and of the status file."""
        entries = [self._entry(model, fetches) for model in models.values()]
        errors = self._desired.errors if self._desired else ()
        refused = {error.model: str(error) for error in errors if error.model}
        for entry in entries:
            if entry["name"] in refused:
                entry["message"] = refused.pop(entry["name"])
                entry["reason"] = entry["reason"] or StatusReason.INVALID_SPEC
        invalid = {"state": ModelState.FAILED.value, "reason": StatusReason.INVALID_SPEC, "since": ""}
        entries += [
            self._entry(PlannedModel(name), {}) | invalid | {"message": error}
            for name, error in refused.items()
        ]
        entries.sort(key=lambda entry: str(entry["name"]))
        ready, why = self.ready(models)
        return {
            "models": entries,
            "counts": dict(sorted(Counter(entry["state"] for entry in entries).items())),
            "errors": _error_lines(errors) + list(filter(None, (self.config_error, self.model_dir_error))),
            "ready": ready,
            "readyMessage": why,
            "server": self._health.value,
        }

    async def publish(self, models: Mapping[str, PlannedModel], fetches: Mapping[str, Fetch]) -> None:
        """Update the status file, the metrics and the terminal if something changed."""
        summary = (self.config_error, self.model_dir_error, self.ready(models))
        if not (self._changed or fetches or summary != self._summary):
            return
        self._changed, self._summary = False, summary
        document = self.document(models, fetches)
        if document["ready"] and not self.was_ready:
            self.was_ready = True
            logger.info("ready", when=self._options.ready_when, models=len(models))
        self._update_metrics(document)
        self._print_progress(document)
        data = orjson.dumps(document)
        if data == self._published or self.model_dir_error:
            return
        try:
            path = self._options.model_dir / STATUS_FILE
            await in_thread(lambda: write_atomically(path, data, durable=False))
            self._published = data
        except OSError as error:
            self._changed = True
            logger.debug("status file not written", error=str(error))

    def _entry(self, model: PlannedModel, fetches: Mapping[str, Fetch]) -> dict[str, Any]:
        report = self._reports.get(model.name)
        fetch = fetches.get(model.name)
        progress = fetch.progress if fetch else FetchProgress()
        state = report.state if report else ModelState.PENDING
        failure = model.failure
        reason, message = self._waits_for(model, state)
        if failure is not None and state is ModelState.FAILED:
            reason, message = failure.reason, failure.message
        elif progress.message:
            message = progress.message
        return {
            "name": model.name,
            "state": state.value,
            "reason": reason,
            "message": message,
            "attempts": failure.attempts if failure else 0,
            "version": model.stored.version if model.stored else "",
            "bytes": model.size,
            "bytesDone": progress.done,
            "bytesTotal": progress.total,
            "since": report.since.isoformat(timespec="seconds") if report else "",
        }

    def _waits_for(self, model: PlannedModel, state: ModelState) -> tuple[str, str]:
        """(reason, message) of a model that waits."""
        if state is ModelState.PENDING:
            return StatusReason.QUEUED, "waits to download"
        if state is ModelState.DOWNLOADED and self._health is not ServerHealth.UP:
            return StatusReason.WAITING_FOR_SERVER, f"the model server is {self._health.value}"
        if state is ModelState.DOWNLOADED:
            return StatusReason.QUEUED, "waits to load"
        if state is ModelState.UNLOADING and model.in_flight is None:
            return StatusReason.QUEUED, "waits to unload"
        return "", ""

    def _update_metrics(self, document: dict[str, Any]) -> None:
        metrics = self.metrics
        metrics.models = {state.value: document["counts"].get(state.value, 0) for state in ModelState}
        failed = (entry for entry in document["models"] if entry["state"] == ModelState.FAILED.value)
        metrics.failed = [(entry["name"], entry["reason"]) for entry in islice(failed, _MAX_LISTED)]
        metrics.received, metrics.expected = _in_flight(document)
        refused = len(self._desired.errors) if self._desired else 0
        metrics.refused = refused + bool(self.config_error)
        metrics.ready = document["ready"]
        metrics.server_up = self._health is ServerHealth.UP

    def _print_progress(self, document: dict[str, Any]) -> None:
        """On a terminal, print a line if it changed."""
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
    """(received bytes, expected bytes) of the downloads in flight."""
    downloading = [entry for entry in document["models"] if entry["state"] == ModelState.DOWNLOADING.value]
    return sum(entry["bytesDone"] for entry in downloading), sum(entry["bytesTotal"] for entry in downloading)


def _new(errors: Sequence[SpecError], known: Sequence[SpecError]) -> Iterator[SpecError]:
    """The first errors that are not known yet."""
    before = set(known)
    return islice((error for error in errors if error not in before), _MAX_LISTED)


def _error_lines(errors: Sequence[SpecError]) -> list[str]:
    """The first errors, one sentence each, and the number of others."""
    more = len(errors) - _MAX_LISTED
    return [str(error) for error in errors[:_MAX_LISTED]] + ([f"and {more} more."] if more > 0 else [])
