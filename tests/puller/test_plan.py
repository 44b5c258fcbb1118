"""The heart: every state of one model has a next step, and following the steps leads home."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from puller import plan
from puller.plan import (
    Failure,
    InFlight,
    Loaded,
    Model,
    State,
    Step,
    next_step,
    over_memory,
    state,
    wake_at,
)
from puller.reasons import Reason
from puller.servers.base import Health
from puller.spec import ModelSpec

A = ModelSpec("m", "s3://bucket/a", memory=10)
B = ModelSpec("m", "s3://bucket/b", memory=20)
INF = float("inf")


def every_model() -> Iterator[Model]:
    """All states of a model with nothing in flight and no failure."""
    for desired, retained, stored, staged, loaded, checked in itertools.product(
        (None, A, B), (False, True), (None, A), (False, True), Loaded, (False, True)
    ):
        if not (desired and retained):
            yield Model("m", desired, retained, stored, staged, loaded, checked)


EVERY = [(model, health) for model in every_model() for health in Health]


@pytest.mark.parametrize("health", Health)
def test_a_download_starts_exactly_when_the_wanted_tree_is_not_there(health: Health) -> None:
    for model in every_model():
        missing = model.desired is not None and model.stored is not model.desired
        assert (next_step(model, health, 0) is Step.DOWNLOAD) == missing, model


def test_files_never_go_while_the_server_may_have_the_model() -> None:
    for model, health in EVERY:
        if next_step(model, health, 0) is Step.DELETE:
            assert not model.listed, model
            assert health is Health.DOWN or (model.checked and not model.available), (model, health)


def test_the_rest_of_an_unwanted_download_goes_first() -> None:
    for model, health in EVERY:
        left = model.staged and (model.desired is None or model.stored is model.desired)
        assert (next_step(model, health, 0) is Step.DISCARD) == left, (model, health)


def test_wanted_and_held_models_are_neither_unloaded_nor_deleted() -> None:
    for model, health in EVERY:
        if model.listed:
            assert next_step(model, health, 0) not in (Step.UNLOAD, Step.DELETE, Step.FORGET), (model, health)


def test_the_server_is_only_spoken_to_when_it_answers() -> None:
    for model, health in EVERY:
        if next_step(model, health, 0) in (Step.LOAD, Step.UNLOAD, Step.CHECK):
            assert health is Health.UP, (model, health)


def test_only_a_complete_tree_that_is_not_known_to_be_served_is_loaded() -> None:
    for model, health in EVERY:
        if next_step(model, health, 0) is Step.LOAD:
            assert model.stored is not None, model
            assert model.current or model.retained, model
            assert model.checked, model
            assert model.loaded is not Loaded.YES, model


def test_nothing_is_done_exactly_at_the_goal_or_when_only_the_server_can_change_things() -> None:
    for model, health in EVERY:
        if next_step(model, health, 0) is None:
            served = model.loaded is Loaded.YES and model.checked
            arrived = model.listed and (served or model.stored is None)
            assert arrived or health is not Health.UP, (model, health)


def test_a_model_is_forgotten_when_no_part_of_it_is_left() -> None:
    for model, health in EVERY:
        if next_step(model, health, 0) is Step.FORGET:
            assert (model.stored, model.staged, model.checked) == (None, False, True), (model, health)
            assert not model.available or health is Health.DOWN, (model, health)


@pytest.mark.parametrize("act", [Step.LOAD, Step.UNLOAD, Step.CHECK, Step.DELETE, Step.CANCEL])
def test_a_step_in_flight_is_waited_for(act: Step) -> None:
    for model, health in EVERY:
        model.in_flight = InFlight(act)
        assert next_step(model, health, 0) is None
        assert wake_at(model, health) == INF
        model.in_flight = None


def test_a_download_is_cancelled_at_once_when_the_model_goes() -> None:
    assert next_step(Model("m", in_flight=InFlight(Step.DOWNLOAD, A)), Health.UP, 0) is Step.CANCEL


def test_an_outdated_download_is_cancelled_after_its_grace() -> None:
    model = Model("m", desired=B, in_flight=InFlight(Step.DOWNLOAD, A, superseded_at=100.0))
    assert next_step(model, Health.UP, 100.0) is None
    assert wake_at(model, Health.UP) == 100.0 + plan.SUPERSEDED_GRACE
    assert next_step(model, Health.UP, 100.0 + plan.SUPERSEDED_GRACE) is Step.CANCEL


def test_a_download_that_is_wanted_again_goes_on() -> None:
    model = Model("m", desired=A, in_flight=InFlight(Step.DOWNLOAD, A))
    assert next_step(model, Health.UP, INF) is None or wake_at(model, Health.UP) == INF


def failed(act: Step, spec: ModelSpec, retry_at: float = 50.0) -> Failure:
    return Failure(act, spec, 1, retry_at, Reason.INTERNAL_ERROR, "message")


def test_a_failed_step_waits_out_its_backoff() -> None:
    model = Model("m", desired=A, failure=failed(Step.DOWNLOAD, A))
    assert next_step(model, Health.UP, 49.9) is None
    assert wake_at(model, Health.UP) == 50.0
    assert next_step(model, Health.UP, 50.0) is Step.DOWNLOAD
    assert state(model) is State.FAILED


def test_an_edit_does_not_wait_for_the_backoff_of_what_it_replaces() -> None:
    model = Model("m", desired=B, failure=failed(Step.DOWNLOAD, A))
    assert next_step(model, Health.UP, 0) is Step.DOWNLOAD


def test_a_failed_load_does_not_hold_up_a_download() -> None:
    model = Model("m", desired=B, stored=A, checked=True, failure=failed(Step.LOAD, A))
    assert next_step(model, Health.UP, 0) is Step.DOWNLOAD


def test_a_failure_is_outlived_by_another_goal_but_not_by_a_check() -> None:
    loaded = Model("m", desired=A, stored=A, loaded=Loaded.YES, checked=True, failure=failed(Step.UNLOAD, A))
    assert plan.failure_obsolete(loaded, Health.UP)
    assert not plan.failure_obsolete(loaded, Health.HUNG)
    waiting = Model("m", desired=A, stored=A, checked=False, failure=failed(Step.LOAD, A))
    assert not plan.failure_obsolete(waiting, Health.UP)
    waiting.checked = True
    assert not plan.failure_obsolete(waiting, Health.UP)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Model("m", desired=A), State.PENDING),
        (Model("m", desired=A, stored=B), State.PENDING),
        (Model("m", desired=A, in_flight=InFlight(Step.DOWNLOAD, A)), State.DOWNLOADING),
        (Model("m", desired=A, stored=A), State.DOWNLOADED),
        (Model("m", desired=A, stored=A, in_flight=InFlight(Step.LOAD)), State.LOADING),
        (Model("m", desired=A, stored=A, loaded=Loaded.STALE), State.DOWNLOADED),
        (Model("m", desired=A, stored=A, loaded=Loaded.YES), State.LOADED),
        (Model("m", desired=A, stored=A, loaded=Loaded.YES, in_flight=InFlight(Step.CHECK)), State.LOADED),
        (Model("m", retained=True, stored=A, loaded=Loaded.YES), State.LOADED),
        (Model("m", stored=A, loaded=Loaded.YES), State.UNLOADING),
        (Model("m", stored=A, in_flight=InFlight(Step.DELETE)), State.UNLOADING),
        (Model("m", stored=A, failure=failed(Step.UNLOAD, A)), State.FAILED),
    ],
)
def test_the_reported_state(model: Model, expected: State) -> None:
    assert state(model) is expected


def test_memory_counts_loaded_and_loading_models_at_the_larger_spec() -> None:
    assert Model("m", desired=A, stored=A).memory == 0
    assert Model("m", desired=B, stored=A, loaded=Loaded.STALE).memory == 20
    assert Model("m", desired=A, stored=A, in_flight=InFlight(Step.LOAD)).memory == 10
    assert over_memory(Model("m", desired=A), 90, 100) is None
    refusal = over_memory(Model("m", desired=A), 91, 100)
    assert refusal is not None
    assert refusal.message == "needs 10 B of memory; loaded models take 91 B of 100 B."


class OneModel(RuleBasedStateMachine):
    """One model in a world that does as it likes: edits, crashes of either side, hangs, failures.

    The world is the truth (`disk`, `noted`, `serves`); `model` is what the puller believes of it. The
    machine carries steps out as the puller's actions do. However it went before, `settle` must lead to
    the wanted content, or to nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.desired: ModelSpec | None = None
        self.held = False
        self.disk: ModelSpec | None = None
        self.noted = False
        self.serves: ModelSpec | None = None
        self.alive = True
        self.health = Health.HUNG
        self.model: Model | None = None
        self.now = 0.0
        self.step: Step | None = None
        self.orphaned = False

    # What the world does.

    @rule(spec=st.sampled_from([A, B, None]), held=st.booleans())
    def edit(self, spec: ModelSpec | None, held: bool) -> None:
        self.desired, self.held = spec, held and spec is None
        self.apply()

    @rule()
    def server_dies(self) -> None:
        self.alive, self.serves = False, None

    @rule(reads_disk=st.booleans())
    def server_starts(self, reads_disk: bool) -> None:
        """Some servers load at their start all that lies on disk."""
        if not self.alive:
            self.alive = True
            self.serves = self.disk if reads_disk else None

    @rule()
    def server_restarts_unseen(self) -> None:
        if self.alive:
            self.serves = None

    @rule(hung=st.booleans())
    def health_is_seen(self, hung: bool) -> None:
        self.see(Health.HUNG if hung and self.alive else Health.UP if self.alive else Health.DOWN)

    @rule()
    def puller_crashes(self) -> None:
        """All belief is lost; the note on disk is not. What the server took from a tree that is gone
        since, can be known any more."""
        self.orphaned = self.orphaned or (self.disk is None and self.serves is not None)
        self.step, self.health = None, Health.HUNG
        self.model = Model("m", retained=True, stored=self.disk) if self.disk else None
        self.apply()

    @rule(seconds=st.sampled_from([0.1, 3.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # What the puller does.

    @rule()
    def look(self) -> None:
        if self.model is None:
            return
        if plan.failure_obsolete(self.model, self.health):
            self.model.failure = None
        step = next_step(self.model, self.health, self.now)
        if step is Step.CANCEL:
            self.model.in_flight, self.step = None, None
            self.model.staged = True
        elif step is Step.FORGET:
            assert self.disk is None
            self.model = None
        elif step is not None:
            self.model.in_flight = InFlight(step, self.model.desired if step is Step.DOWNLOAD else None)
            self.step = step

    @rule(steps=st.integers(1, 6))
    def work(self, steps: int) -> None:
        """Several steps in a row go well."""
        for _ in range(steps):
            self.look()
            if self.step is not None:
                self.finish("done")

    @precondition(lambda self: self.step is not None)
    @rule(outcome=st.sampled_from(["done", "done", "failed", "failed after all"]))
    def finish(self, outcome: str) -> None:
        """The step in flight ends: well, badly, or badly but carried out."""
        model, step = self.model, self.step
        assert model is not None
        assert step is not None
        doing, self.step = model.in_flight, None
        assert doing is not None
        reachable = self.alive or step in (Step.DOWNLOAD, Step.DELETE, Step.DISCARD)
        if reachable and outcome != "failed":
            self.carry_out(model, step, doing, believed=outcome == "done")
        model.in_flight = None
        well = reachable and outcome == "done"
        if not well:
            model.failure = Failure(step, model.desired, 1, self.now + 1, Reason.SERVER_TIMEOUT, "")
        elif model.failure is not None and model.failure.step is step:
            model.failure = None
        if step is Step.UNLOAD:
            model.checked = well

    def carry_out(self, model: Model, step: Step, doing: InFlight, *, believed: bool) -> None:
        if step is Step.DOWNLOAD:
            model.staged = True
            if believed and model.desired and doing.spec and model.desired.content == doing.spec.content:
                self.disk = model.stored = doing.spec
                self.noted = model.staged = False
                model.loaded = Loaded.STALE if model.loaded is Loaded.YES else model.loaded
        elif step is Step.DISCARD:
            model.staged = not believed
        elif step is Step.CHECK and believed:
            yes = Loaded.YES if self.noted else Loaded.STALE
            model.loaded, model.checked = (yes if self.serves else Loaded.NO), True
        elif step is Step.LOAD:
            self.serves = self.disk
            if believed:
                self.noted, model.loaded = True, Loaded.YES
        elif step is Step.UNLOAD:
            self.serves = None
            if believed:
                model.loaded = Loaded.NO
        elif step is Step.DELETE and believed:
            self.disk, model.stored, self.noted = None, None, False

    def apply(self) -> None:
        if self.model is None and self.desired is not None:
            self.model = Model("m")
        if self.model is not None:
            self.model.desired, self.model.retained = self.desired, self.held
            doing = self.model.in_flight
            if doing is not None and doing.step is Step.DOWNLOAD:
                outdated = not plan.same_content(doing.spec, self.desired)
                since = doing.superseded_at if doing.superseded_at is not None else self.now
                self.model.in_flight = InFlight(doing.step, doing.spec, since if outdated else None)

    def see(self, health: Health) -> None:
        if health is not self.health and self.model is not None:
            if health is Health.DOWN:
                self.model.loaded = Loaded.NO
            if health is not Health.HUNG:
                self.model.checked = False
        self.health = health

    # The conditions that must hold.

    @invariant()
    def one_step_at_a_time(self) -> None:
        in_flight = self.model.in_flight if self.model is not None else None
        assert (in_flight is None) == (self.step is None)

    @invariant()
    def a_note_tells_the_truth(self) -> None:
        """A server that serves while the tree on disk is noted serves that tree."""
        if self.noted and self.serves is not None:
            assert self.serves == self.disk

    def teardown(self) -> None:
        """Faults end. The puller's regular looks at the server lead home in a few steps."""
        self.server_starts(reads_disk=False)
        self.see(Health.UP)
        for _ in range(2):
            if self.model is not None and self.step is None:
                self.model.checked = False  # the rolling check
            for _ in range(12):
                if self.step is not None:
                    self.finish("done")
                self.now += 1000
                self.look()
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
