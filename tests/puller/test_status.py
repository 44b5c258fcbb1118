"""Readiness, in each of its three senses, and the status document."""

from __future__ import annotations

from pathlib import Path

import pytest

from puller.model_config import DesiredModels, ModelSpec, parse
from puller.options import PullerOptions
from puller.plan import Failure, InFlight, Loaded, ModelStep, PlannedModel
from puller.reasons import StatusReason
from puller.servers.base import ServerHealth
from puller.status import PullerStatus
from tests.puller.conftest import World
from tests.puller.fakes import until


def spec(name: str) -> ModelSpec:
    return ModelSpec(name, f"s3://bucket/{name}")


def model(name: str, loaded: Loaded = Loaded.NO) -> PlannedModel:
    return PlannedModel(name, desired=spec(name), loaded=loaded)


NONE = {"a": model("a"), "b": model("b")}
ONE = {"a": model("a", Loaded.YES), "b": model("b")}
ALL = {"a": model("a", Loaded.YES), "b": model("b", Loaded.STALE)}


@pytest.mark.parametrize(
    ("when", "models", "ready"),
    [
        ("all", NONE, False),
        ("all", ONE, False),
        ("all", ALL, True),
        ("any", NONE, False),
        ("any", ONE, True),
        ("first", ONE, False),
        ("first", ALL, True),
        ("all", {}, True),
        ("any", {}, True),
    ],
)
def test_when_it_is_ready(when: str, models: dict[str, PlannedModel], ready: bool) -> None:
    status = PullerStatus(PullerOptions(ready_when=when))
    assert status.ready(models)[0] is False, "nothing is known before the first config"
    status.configured(DesiredModels({name: spec(name) for name in models}))
    assert status.ready(models)[0] is ready


async def test_readiness_that_changes_with_no_state_is_published(tmp_path: Path) -> None:
    """The server dropped the old version of a model whose update fails: it is Failed before and after."""
    status = PullerStatus(PullerOptions(model_dir=tmp_path))
    status.configured(DesiredModels({"a": spec("a")}))
    await status.publish({"a": model("a", Loaded.STALE)}, {})
    assert status.metrics.ready
    await status.publish({"a": model("a", Loaded.NO)}, {})
    assert not status.metrics.ready
    assert b'"ready":false' in (tmp_path / ".status.json").read_bytes()


async def test_first_stays_ready_and_all_does_not(tmp_path: Path) -> None:
    for when, later in (("first", True), ("all", False), ("any", False)):
        status = PullerStatus(PullerOptions(ready_when=when, model_dir=tmp_path))
        status.configured(DesiredModels({"a": spec("a")}))
        await status.publish({"a": model("a", Loaded.YES)}, {})
        assert status.ready(NONE)[0] is later, when
        status.configured(DesiredModels(unreadable=frozenset({"models.json"})))
        assert status.ready({})[0] is later, when


def test_the_reason_names_the_missing_models() -> None:
    status = PullerStatus(PullerOptions())
    status.configured(DesiredModels({name: spec(name) for name in "ab"}))
    assert status.ready(ONE)[1] == "1 of 2 models are not loaded: b"


def test_refused_entries_do_not_count_for_readiness_but_an_unreadable_list_does() -> None:
    status = PullerStatus(PullerOptions())
    status.configured(parse({"models.json": '[{"modelName": "bad", "modelSpec": {}}]'}))
    assert status.ready({})[0]
    status.configured(parse({"models.json": "["}))
    assert not status.ready({})[0]
    assert "is not JSON" in status.ready({})[1]
    status.configured(DesiredModels(unreadable=frozenset({"models.json"})))
    assert status.ready({}) == (False, "the config cannot be read: unknown error")


def test_an_unusable_model_directory_is_neither_ready_nor_unhealthy() -> None:
    status = PullerStatus(PullerOptions())
    status.configured(DesiredModels())
    status.model_dir_error = "read-only"
    assert not status.ready({})[0]
    assert status.healthy()[0]


def test_a_stuck_loop_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    status = PullerStatus(PullerOptions())
    status.loop_ran(ServerHealth.UP)
    assert status.healthy()[0]
    now = status._loop_ran_at
    monkeypatch.setattr("time.monotonic", lambda: now + 61)
    well, why = status.healthy()
    assert not well
    assert "has not run for 61 s" in why


def test_a_failure_is_reported() -> None:
    status = PullerStatus(PullerOptions())
    failed = model("a")
    failed.failure = Failure(
        ModelStep.DOWNLOAD, failed.desired, 3, 1e12, StatusReason.NOT_FOUND, "there is nothing there"
    )
    status.report(failed, 0.0)
    (entry,) = status.document({"a": failed}, {})["models"]
    assert (entry["state"], entry["reason"], entry["message"], entry["attempts"]) == (
        "Failed", "NotFound", "there is nothing there", 3,
    )  # fmt: skip
    failed.failure, failed.in_flight = None, InFlight(ModelStep.DOWNLOAD, failed.desired)
    status.report(failed, 0.0)
    assert status.document({"a": failed}, {})["models"][0]["state"] == "Downloading"


async def test_bytes_are_counted_while_they_come(world: World) -> None:
    world.config.write({"m": world.put("m", bytes(3 << 20))})
    world.store.cuts, world.store.cut_after = 10_000, 1 << 19
    world.start()
    await until(lambda: 0 < world.entry("m").get("bytesDone", 0) < 3 << 20)
    assert world.entry("m")["bytesTotal"] == 3 << 20
    world.store.cuts = 0
    await world.serves({"m": bytes(3 << 20)})
    assert world.entry("m")["bytes"] == 3 << 20


def test_the_status_shows_the_version_on_disk() -> None:
    status = PullerStatus(PullerOptions())
    updated = PlannedModel("a", desired=ModelSpec("a", "s3://b/a", version="2"), loaded=Loaded.YES)
    updated.stored, updated.size = ModelSpec("a", "s3://b/a", version="1"), 7
    (entry,) = status.document({"a": updated}, {})["models"]
    assert (entry["version"], entry["bytes"]) == ("1", 7)


async def test_a_terminal_gets_a_line_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = PullerStatus(PullerOptions(model_dir=tmp_path))
    status.configured(DesiredModels({"a": spec("a")}))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    models = {"a": model("a"), "b": model("b", Loaded.YES)}
    models["b"].stored = models["b"].desired
    models["a"].in_flight = InFlight(ModelStep.DOWNLOAD, models["a"].desired)
    for each in models.values():
        status.report(each, 0.0)
    capsys.readouterr()
    for _ in range(3):
        await status.publish(models, {})
    assert capsys.readouterr().err.count("1 Downloading, 1 Loaded") == 1


async def test_no_document_is_made_without_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = PullerStatus(PullerOptions(model_dir=tmp_path))
    made: list[int] = []
    really = status.document
    monkeypatch.setattr(status, "document", lambda *about: made.append(1) or really(*about))  # type: ignore[func-returns-value]
    model = PlannedModel("m")
    for _ in range(3):
        await status.publish({"m": model}, {})
    assert len(made) == 1
    status.step_ended(ModelStep.CHECK, model, 0.1)
    await status.publish({"m": model}, {})
    assert len(made) == 1, "a look that found nothing new is no news"
    status.step_ended(ModelStep.LOAD, model, 0.1)
    await status.publish({"m": model}, {})
    status.config_error = "gone"
    await status.publish({"m": model}, {})
    assert len(made) == 3
    assert "gone" in (tmp_path / ".status.json").read_text()
