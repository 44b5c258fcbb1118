"""The sources of the policy, a directory or a ConfigMap, which the server watches.

Law: only a valid policy replaces the present one. After a bad edit, or if the ConfigMap or the directory was
deleted, the last valid policy stays. Until there is one, the webhook observes: it changes and refuses
nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Protocol

import structlog

from policies.kube.json import Json
from puller.mounted import linked, read_mounted
from webhook.admission.configuration import Config
from webhook.config import config_maps
from webhook.config.config_maps import OBSERVING, as_text, keys
from webhook.config.load import PolicyError, load, own_rules
from webhook.kube import events, paths
from webhook.kube.calls import Writes
from webhook.kube.reflector import Lister, OneObject, Reflector

log = structlog.get_logger()

_DAY = 24 * 3600
_EPOCH = date(1970, 1, 1)
LARGEST_FILE = 1024 * 1024
"""Bytes that are read of a file: more than a policy may have."""
POLL_SECONDS = 5.0
"""The interval of reading, in case file events are missed or the directory is missing."""
MAX_PAUSE = 5.0


class PolicyMetrics(Protocol):
    """The metrics about the policy."""

    def policy_in_force(self, digest: str, profile: str) -> None: ...

    def policy_refused(self) -> None: ...


class LivePolicy:
    """The policy in force."""

    def __init__(
        self, metrics: PolicyMetrics, namespace: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """`namespace`: the webhook's own, where policies are judged; empty: everywhere. `clock`: seconds
        since the epoch."""
        self._clock, self._namespace = clock, namespace
        # Until a valid policy is read: the defaults could enforce rules that the user has switched off.
        self._config = self._load(OBSERVING)
        self.read = asyncio.Event()
        """Set after the first attempt to read the source."""
        self.fails_open = False
        """Whether the override sets the failurePolicy Ignore for every webhook entry."""
        self._metrics = metrics
        self._offered: Mapping[str, str] | None = None
        self._meanwhile = "observing"
        metrics.policy_refused()

    @property
    def config(self) -> Config:
        """The configuration. Each day has a new object, because exemptions end and the memo must notice."""
        day = self._clock() // _DAY
        if day != self._day:
            self._day = day
            self._config = replace(self._config, today=_EPOCH + timedelta(days=day))
        return self._config

    @config.setter
    def config(self, config: Config) -> None:
        self._config, self._day = config, -1.0

    _day = -1.0

    def offer(self, files: Mapping[str, str], origin: str) -> str | None:
        """Load the policy in `files`; on an error keep the present one and return the error.

        Unchanged files, which every new watch brings, have no effect.
        """
        self.read.set()
        if files == self._offered:
            return None
        self._offered = dict(files)
        try:
            self.config = self._load(files)
        except Exception as error:  # even a bug in loading must not stop the server
            self._metrics.policy_refused()
            unexpected = not isinstance(error, PolicyError)
            log.warning(
                f"policy refused, {self._meanwhile}", origin=origin, error=str(error), exc_info=unexpected
            )
            return str(error)
        self._meanwhile = "last good kept"
        self._metrics.policy_in_force(self.config.digest, self.config.rules.profile.value)
        for note in self.config.notes:
            log.warning("policy names a setting that was removed", origin=origin, note=str(note))
        log.info("policy in force", origin=origin, files=sorted(files), digest=self.config.digest)
        return None

    def _load(self, files: Mapping[str, str]) -> Config:
        return replace(load(files), own_rules=own_rules(self._namespace))

    def missing(self, origin: str, why: str) -> None:
        """The source does not exist."""
        self.read.set()
        self._offered = None
        self._metrics.policy_refused()
        log.warning(f"no policy at its source, {self._meanwhile}", origin=origin, why=why)


class PolicySource(Protocol):
    async def follow(self, policy: LivePolicy) -> None:
        """Offer the present policy and every change, until cancelled."""


class DefaultPolicy:
    """No policy: all settings have their defaults."""

    async def follow(self, policy: LivePolicy) -> None:
        policy.offer({}, "defaults")
        await asyncio.Event().wait()


# --- a directory ---------------------------------------------------------------------------------------


class PolicyDirectory:
    """YAML files in a directory, such as a ConfigMap volume."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def follow(self, policy: LivePolicy) -> None:
        was_missing = False
        while True:
            try:
                policy.offer(await asyncio.to_thread(self._read), str(self._path))
                was_missing = False
                await self._follow_changes(policy)
            except OSError as error:
                if not was_missing:
                    policy.missing(str(self._path), str(error))
                was_missing = True
                await asyncio.sleep(POLL_SECONDS)

    async def _follow_changes(self, policy: LivePolicy) -> None:
        from watchfiles import awatch  # not imported if other sources are used

        # The directory: the kubelet replaces the `..data` link, and the files' inodes never change.
        async for _ in awatch(
            self._path,
            recursive=False,
            step=20,
            debounce=200,
            rust_timeout=int(POLL_SECONDS * 1000),
            yield_on_timeout=True,
        ):
            policy.offer(await asyncio.to_thread(self._read), str(self._path))

    def _read(self) -> dict[str, str]:
        return read_policy(self._path)


class EmptyDirectoryError(FileNotFoundError):
    """A directory without a file of a policy, which is no mounted ConfigMap."""


def read_policy(path: Path) -> dict[str, str]:
    """`read_directory`, for a directory that must have a policy.

    A mounted ConfigMap may be empty on purpose. Another directory raises EmptyDirectoryError: a mount may be
    missing, the path may be wrong, or somebody is about to write the files.
    """
    files = read_directory(path)
    if not files and not linked(path):
        raise EmptyDirectoryError(f"{path} is empty")
    return files


def read_directory(path: Path) -> dict[str, str]:
    """The content of each `*.yaml` in a directory, and `*.yml` to report misspelt keys; all of one version.

    OSError if there is no such directory, if it keeps changing, or if a file can't be read.
    """
    files = read_mounted(path, lambda name: name.endswith((".yaml", ".yml")) and name[0] != ".", LARGEST_FILE)
    return {name: as_text(content) for name, content in files.items()}


# --- a ConfigMap ---------------------------------------------------------------------------------------


class WatchedConfigMap:
    """A ConfigMap, watched through the API and merged with `mlchassis-override`."""

    def __init__(self, lister: Lister, recorder: Writes, namespace: str, name: str) -> None:
        self._lister, self._recorder = lister, recorder
        self._namespace, self._name = namespace, name

    async def follow(self, policy: LivePolicy) -> None:
        async with asyncio.TaskGroup() as tasks:
            layers = _Layers(policy, self._recorder, f"{self._namespace}/{self._name}", tasks)
            for name, sink in (
                (self._name, OneObject(layers.below)),
                (config_maps.OVERRIDE_NAME, OneObject(layers.above, layers.above_unreadable)),
            ):
                following = Reflector(
                    self._lister,
                    paths.collection("v1", "configmaps", self._namespace),
                    sink,
                    query={"fieldSelector": f"metadata.name={name}"},
                    longest_pause=MAX_PAUSE,
                )
                tasks.create_task(following.run())


class _Layers:
    """The policy and the override, offered once both have been read."""

    def __init__(self, policy: LivePolicy, recorder: Writes, origin: str, tasks: asyncio.TaskGroup) -> None:
        self._policy, self._recorder, self._origin, self._tasks = policy, recorder, origin, tasks
        self._below: Json | None = None
        self._above: Json | None = None
        self._why_missing = ""
        self._known = self._known_above = False

    def below(self, item: Json | None, why_missing: str = "") -> None:
        """The policy's ConfigMap has changed; None if there is none."""
        if item is None and self._below is None and self._known:
            return
        self._below, self._why_missing, self._known = item, why_missing, True
        self._offer()

    def above(self, item: Json | None, why_missing: str = "") -> None:
        """The override has changed; None if there is none."""
        if item is None and self._above is None and self._known_above:
            return
        self._above, self._known_above = item, True
        self._offer()

    def above_unreadable(self) -> None:
        """The override can't be read: the previous one stays, and readiness does not wait for the first."""
        if not self._known_above:
            self.above(None)

    def _offer(self) -> None:
        if not (self._known and self._known_above):
            return
        above = keys(self._above or {})
        self._policy.fails_open = config_maps.fails_open(above)
        if self._below is None and not above:
            self._policy.missing(self._origin, self._why_missing)
            return
        error = self._policy.offer(config_maps.merged(keys(self._below or {}), above), self._origin)
        if error is not None:
            regarding = {**self._at_fault(), "apiVersion": "v1", "kind": "ConfigMap"}
            self._tasks.create_task(events.warn(self._recorder, regarding, "PolicyInvalid", error))

    def _at_fault(self) -> Json:
        """The override if the policy loads without it. Which one was read last tells nothing: at the start
        both are."""
        if self._above is None:
            return self._below or {}
        try:
            load(keys(self._below or {}))
        except Exception:  # as in `LivePolicy.offer`
            return self._below or self._above
        return self._above
