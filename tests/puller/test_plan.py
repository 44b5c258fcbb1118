"""The next step in every state of one model, and the convergence of all sequences of steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from puller import plan
from puller.model_config import ModelSpec
from puller.plan import (
    Failure,
    InFlight,
    Loaded,
    ModelState,
    ModelStep,
    PlannedModel,
    next_step,
    over_memory,
    state,
    wake_at,
)
from puller.reasons import StatusReason
from puller.servers.base import ServerHealth
from tests.tables import table

A = ModelSpec("m", "s3://bucket/a", memory=10)
B = ModelSpec("m", "s3://bucket/b", memory=20)
INF = float("inf")


def every_model() -> Iterator[PlannedModel]:
    """All states of a model with nothing in flight and no failure."""
    for desired, retained, stored, staged, loaded, checked in itertools.product(
        (None, A, B), (False, True), (None, A), (False, True), Loaded, (False, True)
    ):
        if not (desired and retained):
            yield PlannedModel("m", desired, retained, stored, staged, loaded, checked)


EVERY = [(model, health) for model in every_model() for health in ServerHealth]


def test_each_step_is_due_only_in_its_states() -> None:
    for model, health in EVERY:
        case = (model, health)
        step = next_step(model, health, 0)
        missing = model.desired is not None and model.stored is not model.desired
        unwanted = model.staged and (model.desired is None or model.stored is model.desired)
        assert (step is ModelStep.DISCARD) == unwanted, case
        assert (step is ModelStep.DOWNLOAD) == missing, case
        if step in (ModelStep.LOAD, ModelStep.UNLOAD, ModelStep.CHECK):
            assert health is ServerHealth.UP, case
        if step in (ModelStep.UNLOAD, ModelStep.DELETE, ModelStep.FORGET):
            assert not model.listed, case
        match step:
            case ModelStep.LOAD:
                assert model.stored is not None, case
                assert model.current or model.retained, case
                assert model.checked, case
                assert model.loaded is not Loaded.YES, case
            case ModelStep.DELETE:
                assert health is ServerHealth.DOWN or (model.checked and not model.available), case
            case ModelStep.FORGET:
                assert (model.stored, model.staged, model.checked) == (None, False, True), case
                assert not model.available or health is ServerHealth.DOWN, case
            case None:
                done = model.listed and (
                    model.stored is None or (model.loaded is Loaded.YES and model.checked)
                )
                assert done or health is not ServerHealth.UP, case


@pytest.mark.parametrize(
    "act", [ModelStep.LOAD, ModelStep.UNLOAD, ModelStep.CHECK, ModelStep.DELETE, ModelStep.CANCEL]
)
def test_a_step_in_flight_is_waited_for(act: ModelStep) -> None:
    for model, health in EVERY:
        model.in_flight = InFlight(act)
        assert next_step(model, health, 0) is None
        assert wake_at(model, health, 0) == INF
        model.in_flight = None


def test_the_download_of_a_removed_model_is_cancelled_at_once() -> None:
    assert (
        next_step(PlannedModel("m", in_flight=InFlight(ModelStep.DOWNLOAD, A)), ServerHealth.UP, 0)
        is ModelStep.CANCEL
    )


def test_an_outdated_download_is_cancelled_after_its_grace() -> None:
    model = PlannedModel("m", desired=B, in_flight=InFlight(ModelStep.DOWNLOAD, A, superseded_at=100.0))
    assert next_step(model, ServerHealth.UP, 100.0) is None
    assert wake_at(model, ServerHealth.UP, 0) == 100.0 + plan.SUPERSEDED_GRACE
    assert next_step(model, ServerHealth.UP, 100.0 + plan.SUPERSEDED_GRACE) is ModelStep.CANCEL


def test_a_download_continues_after_an_edit_is_reverted() -> None:
    model = PlannedModel("m", desired=A, in_flight=InFlight(ModelStep.DOWNLOAD, A))
    assert next_step(model, ServerHealth.UP, INF) is None or wake_at(model, ServerHealth.UP, 0) == INF


def failed(act: ModelStep, spec: ModelSpec, retry_at: float = 50.0) -> Failure:
    return Failure(act, spec, 1, retry_at, StatusReason.INTERNAL_ERROR, "message")


def test_a_failed_step_waits_out_its_backoff() -> None:
    model = PlannedModel("m", desired=A, failure=failed(ModelStep.DOWNLOAD, A))
    assert next_step(model, ServerHealth.UP, 49.9) is None
    assert wake_at(model, ServerHealth.UP, 0) == 50.0
    assert next_step(model, ServerHealth.UP, 50.0) is ModelStep.DOWNLOAD
    assert state(model) is ModelState.FAILED


def test_an_edit_does_not_wait_for_the_backoff_of_the_old_spec() -> None:
    model = PlannedModel("m", desired=B, failure=failed(ModelStep.DOWNLOAD, A))
    assert next_step(model, ServerHealth.UP, 0) is ModelStep.DOWNLOAD


def test_a_failed_load_does_not_hold_up_a_download() -> None:
    model = PlannedModel("m", desired=B, stored=A, checked=True, failure=failed(ModelStep.LOAD, A))
    assert next_step(model, ServerHealth.UP, 0) is ModelStep.DOWNLOAD


def test_a_failure_is_obsolete_if_another_step_is_due_except_a_check() -> None:
    loaded = PlannedModel(
        "m", desired=A, stored=A, loaded=Loaded.YES, checked=True, failure=failed(ModelStep.UNLOAD, A)
    )
    assert plan.failure_obsolete(loaded, ServerHealth.UP)
    assert not plan.failure_obsolete(loaded, ServerHealth.HUNG)
    waiting = PlannedModel("m", desired=A, stored=A, checked=False, failure=failed(ModelStep.LOAD, A))
    assert not plan.failure_obsolete(waiting, ServerHealth.UP)
    waiting.checked = True
    assert not plan.failure_obsolete(waiting, ServerHealth.UP)


@table(
    ("model", "expected"),
    [
        (PlannedModel("m", desired=A), ModelState.PENDING),
        (PlannedModel("m", desired=A, stored=B), ModelState.PENDING),
        (PlannedModel("m", desired=A, in_flight=InFlight(ModelStep.DOWNLOAD, A)), ModelState.DOWNLOADING),
        (PlannedModel("m", desired=A, stored=A), ModelState.DOWNLOADED),
        (PlannedModel("m", desired=A, stored=A, in_flight=InFlight(ModelStep.LOAD)), ModelState.LOADING),
        (PlannedModel("m", desired=A, stored=A, loaded=Loaded.STALE), ModelState.DOWNLOADED),
        (PlannedModel("m", desired=A, stored=A, loaded=Loaded.YES), ModelState.LOADED),
        (
            PlannedModel("m", desired=A, stored=A, loaded=Loaded.YES, in_flight=InFlight(ModelStep.CHECK)),
            ModelState.LOADED,
        ),
        (PlannedModel("m", retained=True, stored=A, loaded=Loaded.YES), ModelState.LOADED),
        (PlannedModel("m", stored=A, loaded=Loaded.YES), ModelState.UNLOADING),
        (PlannedModel("m", stored=A, in_flight=InFlight(ModelStep.DELETE)), ModelState.UNLOADING),
        (PlannedModel("m", stored=A, failure=failed(ModelStep.UNLOAD, A)), ModelState.FAILED),
    ],
)
def test_the_reported_state(model: PlannedModel, expected: ModelState) -> None:
    assert state(model) is expected


def test_memory_counts_loaded_and_loading_models_at_the_larger_spec() -> None:
    assert PlannedModel("m", desired=A, stored=A).memory == 0
    assert PlannedModel("m", desired=B, stored=A, loaded=Loaded.STALE).memory == 20
    assert PlannedModel("m", desired=A, stored=A, in_flight=InFlight(ModelStep.LOAD)).memory == 10
    edited = replace(A, memory=3)
    assert PlannedModel("m", desired=edited, stored=A, loaded=Loaded.YES).memory == 3
    assert over_memory(PlannedModel("m", desired=A), 90, 100) is None
    refusal = over_memory(PlannedModel("m", desired=A), 91, 100)
    assert refusal is not None
    assert refusal.message == "needs 10 B of memory; loaded models take 91 B of 100 B."


class OneModel(RuleBasedStateMachine):
    """One model under any sequence of edits, crashes of either side, hangs and failures.

    `disk`, `recorded` and `serves` are the actual state; `model` is the puller's view of it. The machine
    carries steps out as `Actions` does. After any sequence, `teardown` must converge to the desired content.
    """

    def __init__(self) -> None:
        super().__init__()
        self.desired: ModelSpec | None = None
        self.held = False
        self.disk: ModelSpec | None = None
        self.recorded = False
        self.serves: ModelSpec | None = None
        self.alive = True
        self.health = ServerHealth.HUNG
        self.model: PlannedModel | None = None
        self.now = 0.0
        self.step: ModelStep | None = None
        self.orphaned = False

    # Events outside of the puller.

    @rule(spec=st.sampled_from([A, B, None]), held=st.booleans())
    def edit(self, spec: ModelSpec | None, held: bool) -> None:
        self.desired, self.held = spec, held and spec is None
        self.apply()

    @rule()
    def server_dies(self) -> None:
        self.alive, self.serves = False, None

    @rule(reads_disk=st.booleans())
    def server_starts(self, reads_disk: bool) -> None:
        """Some servers load all models on disk when they start."""
        if not self.alive:
            self.alive = True
            self.serves = self.disk if reads_disk else None

    @rule()
    def server_restarts_unseen(self) -> None:
        if self.alive:
            self.serves = None

    @rule(hung=st.booleans())
    def health_is_seen(self, hung: bool) -> None:
        self.see(
            ServerHealth.HUNG if hung and self.alive else ServerHealth.UP if self.alive else ServerHealth.DOWN
        )

    @rule()
    def puller_crashes(self) -> None:
        """Only the record on disk is left. If the server has a model without files, nobody knows it any
        more."""
        self.orphaned = self.orphaned or (self.disk is None and self.serves is not None)
        self.step, self.health = None, ServerHealth.HUNG
        self.model = PlannedModel("m", retained=True, stored=self.disk) if self.disk else None
        self.apply()

    @rule(seconds=st.sampled_from([0.1, 3.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # The puller.

    @rule()
    def take_step(self) -> None:
        if self.model is None:
            return
        if plan.failure_obsolete(self.model, self.health):
            self.model.failure = None
        step = next_step(self.model, self.health, self.now)
        if step is ModelStep.CANCEL:
            self.model.in_flight, self.step = None, None
            self.model.staged = True
        elif step is ModelStep.FORGET:
            assert self.disk is None
            self.model = None
        elif step is not None:
            self.model.in_flight = InFlight(step, self.model.desired if step is ModelStep.DOWNLOAD else None)
            self.step = step

    @rule(steps=st.integers(1, 6))
    def work(self, steps: int) -> None:
        """Several successful steps in a row."""
        for _ in range(steps):
            self.take_step()
            if self.step is not None:
                self.finish("done")

    @precondition(lambda self: self.step is not None)
    @rule(outcome=st.sampled_from(["done", "done", "failed", "failed after all"]))
    def finish(self, outcome: str) -> None:
        """The step in flight succeeds, fails, or fails although it was carried out."""
        model, step = self.model, self.step
        assert model is not None
        assert step is not None
        doing, self.step = model.in_flight, None
        assert doing is not None
        reachable = self.alive or step in (ModelStep.DOWNLOAD, ModelStep.DELETE, ModelStep.DISCARD)
        if reachable and outcome != "failed":
            self.carry_out(model, step, doing, seen=outcome == "done")
        model.in_flight = None
        succeeded = reachable and outcome == "done"
        if not succeeded:
            model.failure = Failure(step, model.desired, 1, self.now + 1, StatusReason.SERVER_TIMEOUT, "")
        elif model.failure is not None and model.failure.step is step:
            model.failure = None
        if step is ModelStep.UNLOAD:
            model.checked = succeeded

    def carry_out(self, model: PlannedModel, step: ModelStep, doing: InFlight, *, seen: bool) -> None:
        if step is ModelStep.DOWNLOAD:
            model.staged = True
            if seen and model.desired and doing.spec and model.desired.content == doing.spec.content:
                self.disk = model.stored = doing.spec
                self.recorded = model.staged = False
                model.loaded = Loaded.STALE if model.loaded is Loaded.YES else model.loaded
        elif step is ModelStep.DISCARD:
            model.staged = not seen
        elif step is ModelStep.CHECK and seen:
            yes = Loaded.YES if self.recorded else Loaded.STALE
            model.loaded, model.checked = (yes if self.serves else Loaded.NO), True
        elif step is ModelStep.LOAD:
            self.serves = self.disk
            if seen:
                self.recorded, model.loaded = True, Loaded.YES
        elif step is ModelStep.UNLOAD:
            self.serves = None
            if seen:
                model.loaded = Loaded.NO
        elif step is ModelStep.DELETE and seen:
            self.disk, model.stored, self.recorded = None, None, False

    def apply(self) -> None:
        if self.model is None and self.desired is not None:
            self.model = PlannedModel("m")
        if self.model is not None:
            self.model.desired, self.model.retained = self.desired, self.held
            doing = self.model.in_flight
            if doing is not None and doing.step is ModelStep.DOWNLOAD:
                outdated = not plan.same_content(doing.spec, self.desired)
                since = doing.superseded_at if doing.superseded_at is not None else self.now
                self.model.in_flight = InFlight(doing.step, doing.spec, since if outdated else None)

    def see(self, health: ServerHealth) -> None:
        if health is not self.health and self.model is not None:
            if health is ServerHealth.DOWN:
                self.model.loaded = Loaded.NO
            if health is not ServerHealth.HUNG:
                self.model.checked = False
        self.health = health

    # The conditions that must hold.

    @invariant()
    def one_step_at_a_time(self) -> None:
        in_flight = self.model.in_flight if self.model is not None else None
        assert (in_flight is None) == (self.step is None)

    @invariant()
    def a_recorded_tree_is_served(self) -> None:
        """If the tree on disk is recorded as loaded and the server has the model, it has this tree."""
        if self.recorded and self.serves is not None:
            assert self.serves == self.disk

    def teardown(self) -> None:
        """Faults end. With the regular checks of the server, a few steps lead to the desired state."""
        self.server_starts(reads_disk=False)
        self.see(ServerHealth.UP)
        for _ in range(2):
            if self.model is not None and self.step is None:
                self.model.checked = False  # the rolling check
            for _ in range(12):
                if self.step is not None:
                    self.finish("done")
                self.now += 1000
                self.take_step()
        if self.desired is not None:
            assert self.disk is not None
            assert self.disk.content == self.desired.content
            assert self.serves is not None
            assert self.serves.content == self.desired.content
            assert self.model is not None
            assert not self.model.staged
        elif not self.held:
            assert (self.model, self.disk) == (None, None)
            assert self.serves is None or self.orphaned


OneModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestOneModel = OneModel.TestCase
