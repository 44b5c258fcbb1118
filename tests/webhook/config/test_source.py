"""Where the policy comes from: live on change, the last good one on anything bad."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from policies.core.finding import Profile
from puller.mounted import UnstableError
from tests.webhook.kube.apiserver import FakeApiServer, until
from webhook.admission.configuration import Config
from webhook.config import source
from webhook.config.load import PolicyError, load
from webhook.config.source import (
    DefaultPolicy,
    LivePolicy,
    PolicyDirectory,
    PolicySource,
    WatchedConfigMap,
    read_directory,
)
from webhook.kube import reflector
from webhook.kube.api import ApiServer
from webhook.server.metrics import Metrics

PATH = "/api/v1/namespaces/mlchassis-system/configmaps"
STRICT, OBSERVE = {"rules.yaml": "profile: strict\n"}, {"rules.yaml": "profile: observe\n"}
BAD = {"rules.yaml": "profile: strickt\n"}


class Seen:
    """A LivePolicy with its metric."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.policy = LivePolicy(self.metrics)

    def profile(self) -> Profile:
        return self.policy.config.rules.profile

    def valid(self) -> bool:
        return self.metrics.registry.get_sample_value("chassis_policy_valid") == 1


@pytest.fixture
def seen() -> Seen:
    return Seen()


@asynccontextmanager
async def following(origin: PolicySource, seen: Seen) -> AsyncIterator[None]:
    task = asyncio.create_task(origin.follow(seen.policy))
    try:
        await asyncio.wait_for(seen.policy.read.wait(), 60)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text)


def mount(directory: Path, version: str, files: dict[str, str]) -> None:
    """Write as the kubelet does: a new directory, then the `..data` link swapped by rename."""
    (directory / f"..{version}").mkdir()
    write(directory / f"..{version}", files)
    (directory / "..data_tmp").symlink_to(f"..{version}")
    (directory / "..data_tmp").rename(directory / "..data")
    for name in files:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


# --- the snapshot in force -----------------------------------------------------------------------------


def test_until_a_policy_is_read_everything_is_observed(seen: Seen) -> None:
    assert seen.profile() is Profile.OBSERVE
    assert not seen.valid()
    assert not seen.policy.read.is_set()
    seen.policy.offer(BAD, "here")
    assert seen.profile() is Profile.OBSERVE
    assert seen.policy.read.is_set()


def test_a_bad_policy_leaves_the_last_good_one_and_its_errors_are_logged(seen: Seen) -> None:
    assert seen.policy.offer(STRICT, "here") is None
    assert seen.valid()
    good = seen.policy.config
    error = seen.policy.offer(BAD, "here")
    assert error is not None
    assert error.startswith("rules.yaml: profile: ")
    assert seen.policy.config is good
    assert not seen.valid()
    assert seen.policy.offer(BAD, "here") is None, "the same again is not news"
    assert seen.policy.offer(STRICT, "here") is None
    assert seen.valid()


def test_the_digest_of_the_policy_in_force_is_a_metric_and_that_of_an_old_one_is_not(seen: Seen) -> None:
    for files in (OBSERVE, STRICT, BAD):
        seen.policy.offer(files, "here")
    (family,) = (f for f in seen.metrics.registry.collect() if f.name == "chassis_policy_info")
    (sample,) = family.samples
    assert sample.labels == {"digest": seen.policy.config.digest, "profile": "strict"}
    assert sample.value == 1


def test_a_bug_in_loading_is_answered_like_a_bad_policy(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.policy.offer(STRICT, "here")

    def broken(_: object) -> Config:
        raise RecursionError("too deep")

    monkeypatch.setattr(source, "load", broken)
    assert seen.policy.offer(OBSERVE, "here") == "too deep"
    assert seen.profile() is Profile.STRICT
    assert not seen.valid()


async def test_without_a_policy_everything_is_at_its_default(seen: Seen) -> None:
    async with following(DefaultPolicy(), seen):
        assert seen.profile() is Profile.STANDARD
        assert seen.valid()


def test_several_workers_report_the_policy_without_a_word_on_stderr(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    seen.policy.offer(STRICT, "test")
    old = {"digest": seen.policy.config.digest, "profile": "strict"}
    seen.policy.offer(OBSERVE, "test")  # a warning would be an error here
    assert seen.metrics.registry.get_sample_value("chassis_policy_info", old) == 0


# --- a directory ---------------------------------------------------------------------------------------


def test_only_yaml_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"rules.yaml": "a: 1", "notes.txt": "", ".hidden.yaml": ""})
    assert read_directory(tmp_path) == {"rules.yaml": "a: 1"}


def test_another_suffix_is_a_misspelt_key_and_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"rules.yml": "profile: strict"})
    with pytest.raises(PolicyError, match=r"rules\.yml: unknown key; did you mean rules\.yaml\?"):
        load(read_directory(tmp_path))


def test_a_config_map_volume_is_read_through_its_data_link(tmp_path: Path) -> None:
    mount(tmp_path, "1", {"rules.yaml": "old", "webhook.yaml": "old"})
    mount(tmp_path, "2", {"rules.yaml": "new"})
    assert (tmp_path / "webhook.yaml").is_symlink(), "kubelet removes stale links only after the swap"
    assert read_directory(tmp_path) == {"rules.yaml": "new"}


def swap(directory: Path, version: int, files: dict[str, str]) -> None:
    """As the kubelet does it, the removal of the version before included: its files go one by one."""
    mount(directory, str(version), files)
    old = directory / f"..{version - 1}"
    for file in sorted(old.iterdir()):
        file.unlink()
    old.rmdir()


@pytest.mark.parametrize("key", ["rules.yaml", "webhook.yaml"])
@pytest.mark.parametrize("keys", [["rules.yaml", "webhook.yaml"], ["rules.yaml"], ["webhook.yaml"]])
def test_a_version_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, keys: list[str]
) -> None:
    """The kubelet swaps the version and removes the old files before `key` is opened."""
    mount(tmp_path, "1", {"rules.yaml": "old", "webhook.yaml": "old"})
    real, first = Path.open, [True]

    def late(path: Path, *args: Any, **options: Any) -> Any:
        if first and path.name == key:
            first.clear()
            swap(tmp_path, 2, dict.fromkeys(keys, "new"))
        return real(path, *args, **options)

    monkeypatch.setattr(Path, "open", late)
    assert read_directory(tmp_path) == dict.fromkeys(keys, "new")


def test_a_link_that_leads_nowhere_is_no_empty_policy(tmp_path: Path) -> None:
    mount(tmp_path, "1", {})
    assert read_directory(tmp_path) == {}, "a ConfigMap without keys"
    (tmp_path / "..1").rmdir()
    with pytest.raises(UnstableError):
        read_directory(tmp_path)


async def test_a_directory_that_was_emptied_leaves_the_last_good_policy(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "POLL_SECONDS", 0.2)
    write(tmp_path, STRICT)
    async with following(PolicyDirectory(tmp_path), seen):
        assert seen.profile() is Profile.STRICT
        (tmp_path / "rules.yaml").unlink()
        await until(lambda: not seen.valid())
        assert seen.profile() is Profile.STRICT
        write(tmp_path, OBSERVE)
        await until(lambda: seen.profile() is Profile.OBSERVE)
        (tmp_path / "rules.yaml").unlink()
        mount(tmp_path, "1", {})
        await until(lambda: seen.profile() is Profile.STANDARD)  # a ConfigMap without keys: all defaults


async def test_a_directory_is_followed_through_swaps_edits_and_its_own_absence(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "POLL_SECONDS", 0.2)
    directory = tmp_path / "policy"
    async with following(PolicyDirectory(directory), seen):
        assert seen.profile() is Profile.OBSERVE, "a directory that is not there is no reason to enforce"
        assert not seen.valid()
        directory.mkdir()
        mount(directory, "1", STRICT)
        await until(lambda: seen.profile() is Profile.STRICT)
        mount(directory, "2", BAD)
        await until(lambda: not seen.valid())
        assert seen.profile() is Profile.STRICT
        mount(directory, "3", OBSERVE)
        await until(lambda: seen.valid())
        assert seen.profile() is Profile.OBSERVE


async def test_a_swap_is_heard_of_long_before_the_poll(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "POLL_SECONDS", 60)

    async def swap() -> None:
        """Repeatedly: the watch starts in another thread without a signal."""
        for version in itertools.count(2):
            mount(tmp_path, str(version), STRICT)
            await asyncio.sleep(0.3)

    mount(tmp_path, "1", OBSERVE)
    async with following(PolicyDirectory(tmp_path), seen):
        swaps = asyncio.create_task(swap())
        await until(lambda: seen.profile() is Profile.STRICT, seconds=50)
        swaps.cancel()


# --- a ConfigMap ---------------------------------------------------------------------------------------


def config_map(data: dict[str, str]) -> dict[str, object]:
    metadata = {"name": "mlchassis-policy", "namespace": "mlchassis-system", "uid": "1"}
    return {"metadata": metadata, "data": data}


@pytest.fixture
def origin(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> WatchedConfigMap:
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    return WatchedConfigMap(api, api, "mlchassis-system", "mlchassis-policy")


async def test_a_config_map_is_followed(fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen) -> None:
    await fake.put(PATH, config_map(STRICT))
    async with following(origin, seen):
        assert seen.profile() is Profile.STRICT
        await fake.put(PATH, config_map(OBSERVE))
        await until(lambda: seen.profile() is Profile.OBSERVE)
        await fake.put(PATH, config_map({}))
        await until(lambda: seen.profile() is Profile.STANDARD)


async def test_a_bad_edit_keeps_the_last_good_policy_and_lands_as_an_event_on_the_config_map(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    await fake.put(PATH, config_map(STRICT))
    async with following(origin, seen):
        await fake.put(PATH, config_map(BAD))
        await until(lambda: any("/events/" in path for path in fake.objects))
        assert seen.profile() is Profile.STRICT
        assert not seen.valid()
    (event,) = (item for path, item in fake.objects.items() if "/events/" in path)
    assert event["reason"] == "PolicyInvalid"
    assert event["message"].startswith("rules.yaml: profile: ")
    assert event["involvedObject"]["kind"] == "ConfigMap"
    assert event["involvedObject"]["name"] == "mlchassis-policy"


async def test_deleting_the_config_map_keeps_the_last_good_policy(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    await fake.put(PATH, config_map(STRICT))
    async with following(origin, seen):
        await fake.delete(f"{PATH}/mlchassis-policy")
        await until(lambda: not seen.valid())
        assert seen.profile() is Profile.STRICT
        await fake.put(PATH, config_map(STRICT))
        await until(lambda: seen.valid())


async def test_a_deletion_that_the_watch_did_not_see_is_noticed_by_the_next_list(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    await fake.put(PATH, config_map(STRICT))
    async with following(origin, seen):
        fake.objects.clear()
        fake.history.clear()
        await fake.expire()
        await until(lambda: not seen.valid())
        assert seen.profile() is Profile.STRICT


async def test_a_config_map_that_was_never_there_observes(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    async with following(origin, seen):
        assert seen.profile() is Profile.OBSERVE
        assert not seen.valid()
        await fake.put(PATH, config_map(STRICT))
        await until(lambda: seen.profile() is Profile.STRICT)


def an_override(data: dict[str, str]) -> dict[str, object]:
    return {
        "metadata": {"name": "mlchassis-override", "namespace": "mlchassis-system", "uid": "2"},
        "data": data,
    }


async def test_an_override_is_laid_over_the_policy_until_it_is_taken_back(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    await fake.put(PATH, config_map(STRICT))
    await fake.put(PATH, an_override({"webhooks": "observe"}))
    async with following(origin, seen):
        assert seen.profile() is Profile.OBSERVE
        assert seen.policy.fails_open
        await fake.put(PATH, config_map(STRICT))
        assert seen.profile() is Profile.OBSERVE, "an upgrade writes the policy again"
        await fake.put(PATH, an_override({}))
        await until(lambda: seen.profile() is Profile.STRICT)
        assert not seen.policy.fails_open
        await fake.put(PATH, an_override(OBSERVE))
        await until(lambda: seen.profile() is Profile.OBSERVE)
        await fake.delete(f"{PATH}/mlchassis-override")
        await until(lambda: seen.profile() is Profile.STRICT)


async def test_a_bad_override_keeps_the_last_good_policy_and_lands_as_an_event_on_it(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    await fake.put(PATH, config_map(STRICT))
    async with following(origin, seen):
        await fake.put(PATH, an_override(BAD))
        await until(lambda: any("/events/" in path for path in fake.objects))
        assert seen.profile() is Profile.STRICT
    (event,) = (item for path, item in fake.objects.items() if "/events/" in path)
    assert event["involvedObject"]["name"] == "mlchassis-override"


async def test_at_the_start_the_event_lands_on_the_config_map_with_the_error_and_the_log_says_what_applies(
    fake: FakeApiServer, origin: WatchedConfigMap, seen: Seen
) -> None:
    await fake.put(PATH, config_map(BAD))
    await fake.put(PATH, an_override({"gpu-affinity.yaml": "mode: off"}))
    with capture_logs() as log:
        async with following(origin, seen):
            await until(lambda: any("/events/" in path for path in fake.objects))
            assert seen.profile() is Profile.OBSERVE
    (event,) = (item for path, item in fake.objects.items() if "/events/" in path)
    assert event["involvedObject"]["name"] == "mlchassis-policy"
    assert [each["event"] for each in log if "policy" in each["event"]] == ["policy refused, observing"]


def test_each_day_has_another_snapshot() -> None:
    now = [86_400.0 * 3 + 5]
    policy = LivePolicy(Metrics(), clock=lambda: now[0])
    policy.offer({}, "test")
    first = policy.config
    assert first.today == date(1970, 1, 4)
    now[0] += 86_000
    assert policy.config is first, "nothing is forgotten within a day"
    now[0] += 400
    assert policy.config.today == date(1970, 1, 5)
    assert policy.config is not first
    policy.offer({"rules.yaml": "profile: strict"}, "test")
    assert policy.config.today == date(1970, 1, 5)
